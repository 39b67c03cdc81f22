"""CrossQ's configuration (`worker.learning.plugins.crossq` learns)."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from ludus.config.hyperparameters import MAX_BUFFER, MAX_STEPS, EntropyHyperparameters
from ludus.config.trainer import MemorylessConfig, OffPolicyConfig, amendable
from ludus.config.values import Own, Real, Whole


class CrossQHyperparameters(EntropyHyperparameters):
    """CrossQ (Bhatt et al. 2024): SAC's numbers without target networks. Its defaults are the paper's."""

    batch_size: Whole = Field(default=256, ge=1, le=MAX_BUFFER)
    """Experiences per gradient step; as many following ones are normalised with them. Typical: 256 to 1,024."""
    learning_rate: Real = Field(default=1.0e-3, gt=0, le=1)
    """Adam's step size; lower it when the reward does not rise steadily. Typical: 3e-4 to 1e-3."""
    policy_delay: Own[Whole] = Field(default=3, ge=1, le=MAX_STEPS)
    """Gradient steps of the critics for each one of the policy and of the entropy coefficient. Typical: 1 to 4."""
    critic_hidden_units: Own[Whole] = Field(default=2048, ge=1, le=65_536)
    """Width of the hidden layers of both critics; the policy's is `network_settings.hidden_units`. Wider learns from
    fewer steps and takes longer: without a GPU 256 is usual. Typical: 256 to 2,048.
    """


class CrossQConfig(MemorylessConfig, OffPolicyConfig):
    """One behavior with continuous actions, trained by CrossQ (Ludus' own)."""

    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = {
        key: space for key, space in OffPolicyConfig.tuning.items() if key != "hyperparameters.tau"
    }
    head: ClassVar[str] = "squashed"
    implementation: ClassVar[str] = "worker.learning.plugins.crossq:CrossQ"
    amendable: ClassVar[frozenset[str]] = amendable("reset_interval", "policy_delay")
    trainer_type: Own[Literal["crossq"]] = "crossq"
    hyperparameters: CrossQHyperparameters = CrossQHyperparameters()
