"""The configuration of a behavior: trainer, hyperparameters, network, rewards.

The keys and defaults are ML-Agents' 1.1.0.

The set of trainers is a union discriminated by `trainer_type`, the set of reward signals the fields of `RewardSignals`.
A new trainer or reward signal is a plug-in (docs/plugins.md). The sections are in the modules beside this one.

Differences from ML-Agents, all of them refusals: values that it takes and that make no sense (a batch larger than its
buffer never learns, `summary_freq: 0` divides by zero, a negative learning rate climbs down) are refused here.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import BeforeValidator, GetCoreSchemaHandler, field_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import tagged_union_schema

from ludus.config.hyperparameters import (
    CloneHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from ludus.config.network import NetworkSettings
from ludus.config.trainer import (
    RATE,
    SECTION,
    DemonstratedConfig,
    OffPolicyConfig,
    ReinforcementConfig,
    TrainerConfig,
    amendable,
)
from ludus.config.values import Own, config_error
from ludus.plugins import Kind, installed, load_all, refused

_ON_POLICY: Final = (
    *("beta", "beta_schedule", "epsilon", "epsilon_schedule", "lambd", "num_epoch", "max_grad_norm"),
    *("clip_value_loss", "vtrace", "decoupled_objective", "max_policy_lag", "target_kl"),
)
ATTENTION_HEADS = 4
"""Of POCA's critic (`worker.learning.networks.attention`), which share its hidden units."""


_TUNING: Final[Mapping[str, Mapping[str, object]]] = {
    **ReinforcementConfig.tuning,
    "hyperparameters.batch_size": {"values": [64, 128, 256, 512]},
    "hyperparameters.buffer_size": {"values": [1024, 2048, 4096, 10240]},
    "hyperparameters.beta": {"min": 1e-4, "max": 3e-2, "scale": "log"},
    "hyperparameters.epsilon": {"values": [0.1, 0.2, 0.3]},
    "hyperparameters.lambd": {"values": [0.9, 0.95, 0.98]},
    "hyperparameters.num_epoch": {"min": 2, "max": 10},
}
"""Of the trainers that learn from what the policy of the moment has done."""


class PPOConfig(ReinforcementConfig):
    """One behavior, trained by PPO."""

    asymmetric: ClassVar[bool] = True
    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = _TUNING
    amendable: ClassVar[frozenset[str]] = amendable(*_ON_POLICY, "critic_learning_rate")
    trainer_type: Literal["ppo"] = "ppo"
    hyperparameters: PPOHyperparameters = PPOHyperparameters()


class SACConfig(OffPolicyConfig):
    """One behavior, trained by SAC."""

    head: ClassVar[str] = "squashed"
    amendable: ClassVar[frozenset[str]] = amendable("tau", "reset_interval")
    trainer_type: Literal["sac"] = "sac"
    hyperparameters: SACHyperparameters = SACHyperparameters()


class POCAConfig(ReinforcementConfig):
    """One behavior whose agents act in groups, trained by POCA."""

    asymmetric: ClassVar[bool] = True
    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = _TUNING
    amendable: ClassVar[frozenset[str]] = amendable(*_ON_POLICY)
    trainer_type: Literal["poca"] = "poca"
    hyperparameters: POCAHyperparameters = POCAHyperparameters()

    @field_validator("network_settings")
    @classmethod
    def _ordinary_layers(cls, network_settings: NetworkSettings) -> NetworkSettings:
        if network_settings.hidden_type == "dense":
            return network_settings
        raise config_error(
            "contradiction",
            f"trainer_type poca's critic has no hidden_type {network_settings.hidden_type}; remove "
            "network_settings.hidden_type, or take trainer_type ppo",
            at="network_settings.hidden_type",
        )

    @field_validator("network_settings")
    @classmethod
    def _heads_fit(cls, network_settings: NetworkSettings) -> NetworkSettings:
        units = network_settings.hidden_units
        if not units % ATTENTION_HEADS:
            return network_settings
        near = sorted(
            {max(units // ATTENTION_HEADS, 1) * ATTENTION_HEADS, -(-units // ATTENTION_HEADS) * ATTENTION_HEADS}
        )
        raise config_error(
            "contradiction",
            f"network_settings.hidden_units ({units}) is no multiple of the {ATTENTION_HEADS} attention heads of "
            f"trainer_type poca's critic; take {' or '.join(map(str, near))}",
            at="network_settings.hidden_units",
        )


class CloneConfig(DemonstratedConfig):
    """One behavior that imitates demonstrations alone (Ludus' own): simulators are not needed, but evaluate it."""

    amendable: ClassVar[frozenset[str]] = SECTION | {f"hyperparameters.{key}" for key in RATE}
    trainer_type: Own[Literal["clone"]] = "clone"
    hyperparameters: CloneHyperparameters = CloneHyperparameters()


def _trainers() -> Iterator[tuple[str, type[TrainerConfig]]]:
    for trainer in (PPOConfig, SACConfig, POCAConfig, CloneConfig):
        yield trainer.model_fields["trainer_type"].default, trainer
    for name, plugin in load_all(Kind.TRAINERS, TrainerConfig, taken={"ppo", "sac", "poca", "clone"}).items():
        default = plugin.model_fields["trainer_type"].default
        if default == name:
            yield name, plugin
        else:
            refused(installed(Kind.TRAINERS)[name], f"its entry point is {name!r}, but its trainer_type is {default!r}")


TRAINERS: Final[Mapping[str, type[TrainerConfig]]] = dict(_trainers())
"""All trainers by `trainer_type`."""


def _named(value: object) -> object:
    """Give a section its trainer where none is named: PPO, as in ML-Agents."""
    if isinstance(value, dict) and "trainer_type" not in value:
        return {"trainer_type": "ppo", **value}
    return value


class _AnyTrainer:
    """Makes pydantic read the union of all trainers, discriminated by `trainer_type`."""

    @staticmethod
    def __get_pydantic_core_schema__(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {name: handler.generate_schema(trainer) for name, trainer in TRAINERS.items()}
        return tagged_union_schema(choices, discriminator="trainer_type")


BehaviorConfig: TypeAlias = Annotated[ReinforcementConfig | DemonstratedConfig, _AnyTrainer, BeforeValidator(_named)]
"""A behavior's section."""
