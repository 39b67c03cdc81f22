"""The configuration of training, for those who use it: the models, and how documents become them.

A document (`parse_document`: YAML or JSON in ML-Agents' format) is resolved (`resolve`: defaults filled in, everything
checked) into a `RunConfig`. `RunConfig.model_dump(mode="json")` is what is stored, `RunConfig.model_validate(stored)`
loads it again.
"""

from server.training.behavior import (
    BehaviorConfig,
    ExtrinsicConfig,
    NetworkSettings,
    PPOConfig,
    PPOHyperparameters,
    RewardSignals,
)
from server.training.document import parse_document
from server.training.resolution import Change, apply_overrides, diff, resolve
from server.training.run import RunConfig, SimulatorsConfig, TorchSettings
from server.training.values import Schedule

__all__ = [
    "BehaviorConfig",
    "Change",
    "ExtrinsicConfig",
    "NetworkSettings",
    "PPOConfig",
    "PPOHyperparameters",
    "RewardSignals",
    "RunConfig",
    "Schedule",
    "SimulatorsConfig",
    "TorchSettings",
    "apply_overrides",
    "diff",
    "parse_document",
    "resolve",
]
