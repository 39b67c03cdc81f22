"""The configuration of training, for its users: the models, and functions that make them of documents.

A document (`parse_document`: YAML or JSON in ML-Agents' format) is resolved (`resolve`: defaults filled in, everything
checked) into a `RunConfig`. `RunConfig.model_dump(mode="json")` is what is stored, `RunConfig.model_validate(stored)`
loads it again. What is legal but probably not meant, `review` says beside.
"""

from server.config.assessment import AssessmentSettings, EvaluateSettings, MatchSettings
from server.config.behavior import (
    BehavioralCloningConfig,
    BehaviorConfig,
    CloneConfig,
    CloneHyperparameters,
    FromDemonstrations,
    MemorySettings,
    NetworkSettings,
    POCAConfig,
    POCAHyperparameters,
    PPOConfig,
    PPOHyperparameters,
    ReinforcementConfig,
    SACConfig,
    SACHyperparameters,
    SelfPlaySettings,
    TrainerConfig,
)
from server.config.builds import EngineSettings, EnvironmentSettings
from server.config.document import parse_document
from server.config.resolution import Change, apply_overrides, diff, resolve, review
from server.config.run import CheckpointSettings, RunConfig, SimulatorsConfig, TorchSettings
from server.config.values import Schedule

__all__ = [
    "AssessmentSettings",
    "BehaviorConfig",
    "BehavioralCloningConfig",
    "Change",
    "CheckpointSettings",
    "CloneConfig",
    "CloneHyperparameters",
    "EngineSettings",
    "EnvironmentSettings",
    "EvaluateSettings",
    "FromDemonstrations",
    "MatchSettings",
    "MemorySettings",
    "NetworkSettings",
    "POCAConfig",
    "POCAHyperparameters",
    "PPOConfig",
    "PPOHyperparameters",
    "ReinforcementConfig",
    "RunConfig",
    "SACConfig",
    "SACHyperparameters",
    "Schedule",
    "SelfPlaySettings",
    "SimulatorsConfig",
    "TorchSettings",
    "TrainerConfig",
    "apply_overrides",
    "diff",
    "parse_document",
    "resolve",
    "review",
]
