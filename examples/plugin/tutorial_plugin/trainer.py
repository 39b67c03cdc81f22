"""The configuration of A2C. It is read by the server, which has no torch: what learns is in `learning`."""

from typing import ClassVar, Literal

from pydantic import Field

from ludus.config.hyperparameters import PPOHyperparameters
from ludus.config.trainer import ReinforcementConfig, amendable
from ludus.config.values import Whole


class A2CHyperparameters(PPOHyperparameters):
    """Advantage actor-critic (Mnih et al. 2016, without the asynchrony)."""

    num_epoch: Whole = Field(default=1, ge=1, le=1)
    """Passes over the buffer per update: one, since the gradient is that of the policy that acted."""


class A2CConfig(ReinforcementConfig):
    """One behavior, trained by A2C."""

    implementation: ClassVar[str] = "tutorial_plugin.learning:A2C"
    amendable: ClassVar[frozenset[str]] = amendable("beta", "lambd")
    trainer_type: Literal["a2c"] = "a2c"
    hyperparameters: A2CHyperparameters = A2CHyperparameters()
