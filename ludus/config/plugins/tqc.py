"""TQC's configuration (`worker.learning.plugins.tqc` learns)."""

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from ludus.config.hyperparameters import SACHyperparameters
from ludus.config.trainer import MemorylessConfig, OffPolicyConfig, amendable
from ludus.config.values import Own, Real, Whole, config_error


class TQCHyperparameters(SACHyperparameters):
    """Truncated Quantile Critics (Kuznetsov et al. 2020): SAC's numbers, and those of its critics.

    Networks and quantiles are Stable-Baselines3's; the paper has five networks, which take longer.
    """

    critics: Own[Whole] = Field(default=2, ge=1, le=100)
    """Critic networks. More overestimate less and take longer. Typical: 2 to 5."""
    quantiles: Own[Whole] = Field(default=25, ge=1, le=1000)
    """Quantiles of the return that each critic estimates. Typical: 25."""
    dropped_quantiles: Own[Real] = Field(default=2, ge=0, le=999)
    """Largest quantiles that the target leaves out, for each critic: more overestimates less. Times `critics`, rounded,
    they are the ones left out of all. Typical: 0 to 5.
    """

    @field_validator("dropped_quantiles")
    @classmethod
    def _leaves_some(cls, dropped_quantiles: float, info: ValidationInfo) -> float:
        quantiles = info.data.get("quantiles")
        if quantiles is None or dropped_quantiles <= quantiles - 1:
            return dropped_quantiles
        raise config_error(
            "contradiction",
            f"dropped_quantiles ({dropped_quantiles:g}) leaves no quantile of {quantiles}; lower it to at most "
            f"{quantiles - 1}, or raise quantiles",
        )


class TQCConfig(MemorylessConfig, OffPolicyConfig):
    """One behavior with continuous actions, trained by TQC (Ludus' own)."""

    head: ClassVar[str] = "squashed"
    implementation: ClassVar[str] = "worker.learning.plugins.tqc:TQC"
    amendable: ClassVar[frozenset[str]] = amendable("tau", "reset_interval", "dropped_quantiles")
    trainer_type: Own[Literal["tqc"]] = "tqc"
    hyperparameters: TQCHyperparameters = TQCHyperparameters()
