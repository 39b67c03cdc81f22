"""The configuration of networks: the policy's, and each reward signal's own."""

from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import Field, StringConstraints, field_validator

from ludus.config.encoder import EncoderConfig
from ludus.config.values import Extensible, Flag, Own, Section, Whole, config_error
from ludus.plugins import Kind, load_all
from ludus.protocol.specs import MAX_NAME_BYTES, MAX_OBSERVATIONS

SensorName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_BYTES)]
"""The name of an observation in a behavior's spec."""
Activation: TypeAlias = Literal["swish", "tanh", "relu", "sigmoid"]
"""Each is described in `ludus.collector.activations`."""
HiddenType: TypeAlias = Literal["dense", "layer_norm", "simba"]
"""Each is described in `worker.learning.networks.normed`."""


class MemorySettings(Section):
    """An LSTM behind the hidden layers (Hochreiter & Schmidhuber 1997): `memory: {}` = all defaults."""

    sequence_length: Whole = Field(default=64, ge=1, le=100_000)
    """Steps of one agent through which gradients flow back; at most `hyperparameters.batch_size`. Too few, and the
    network cannot remember longer. Typical: 4 to 128.
    """
    memory_size: Whole = Field(default=128, ge=2, le=32768)
    """Size of an agent's memory: half of it is the LSTM's hidden state, half its cell; even. Typical: 32 to 256."""

    @field_validator("memory_size")
    @classmethod
    def _halves(cls, memory_size: int) -> int:
        if memory_size % 2:
            raise config_error(
                "invalid_value",
                f"memory_size must be even, since half of it is the LSTM's hidden state and half its cell, but is "
                f"{memory_size}; take {memory_size - 1} or {memory_size + 1}",
            )
        return memory_size


class NetworkSettings(Extensible):
    """The policy's network; the value function has one of the same form. Reward signals have their own."""

    normalize: Flag = False
    """Normalise vector observations by their running mean and variance. Helps where numbers of one observation differ
    in size (positions beside angles) or go far beyond 1; can hurt in simple tasks with discrete actions.
    """
    hidden_units: Whole = Field(default=128, ge=1, le=16384)
    """Width of each hidden layer. Small for simple tasks, where the action depends on few observations: they learn
    sooner. Typical: 32 to 512.
    """
    num_layers: Whole = Field(default=2, ge=0, le=64)
    """Number of hidden layers after the encoders; at least one is built. Typical: 1 to 3."""
    activation: Own[Activation] = "swish"
    """Nonlinearity of the hidden layers; ML-Agents always takes swish. tanh often learns control from few numbers in
    fewer steps (CartPole-v1: half as many).
    """
    hidden_type: Own[HiddenType] = "dense"
    """Form of the hidden layers: `dense` = as in ML-Agents; `layer_norm` = each is normalised before its activation (Ba
    et al. 2016); `simba` = `num_layers` residual blocks with normalised inputs, whose hidden layers are 4 x
    `hidden_units` wide (Lee et al. 2024; with `normalize: true` and `activation: relu` as there). The last two are
    reported to need fewer steps in control tasks, with trainers that learn from a replay buffer; an update takes
    longer. Not with `poca`, nor where goals make the weights.
    """
    vis_encode_type: Literal["fully_connected", "match3", "simple", "nature_cnn", "resnet"] = "simple"
    """Encoder of images: one dense layer, convolutions for boards, two convolutions, three (Mnih et al. 2015), or
    residual blocks (Espeholt et al. 2018). Plug-ins add others, whose keys are under their names here.
    """
    memory: MemorySettings | None = None
    """An LSTM, for tasks where one observation is not enough; null = none. Not for reward signals."""
    goal_conditioning_type: Literal["hyper", "none"] = "hyper"
    """Use of observations that the game marks as goals: `hyper` = they generate the weights of the hidden layers (Ha et
    al. 2016), `none` = as any other observation. Without goals there is no difference.
    """
    privileged_observations: Own[list[SensorName]] = Field(default=[], max_length=MAX_OBSERVATIONS)
    """Observations, by their names in the game, that only the critic sees: the policy acts, and is exported, without
    them (asymmetric actor-critic, Pinto et al. 2017). For what a simulator knows and a player does not: others' hands,
    a target behind a wall, positions without noise. Values that know it are less noisy. Not for reward signals, which
    see everything, nor with `shared_critic`.
    """
    deterministic: Flag = False
    """Act with the most probable action instead of a sample, during training too."""

    @field_validator("privileged_observations")
    @classmethod
    def _named_once(cls, privileged_observations: list[str]) -> list[str]:
        if len(set(privileged_observations)) < len(privileged_observations):
            raise config_error("invalid_value", "names an observation twice; name each once")
        return privileged_observations

    @property
    def encoder(self) -> EncoderConfig | None:
        """The configuration of the encoder of a plug-in; None for one of Ludus."""
        name = self.vis_encode_type
        return None if name not in ENCODERS else getattr(self, name) or ENCODERS[name]()

    @property
    def portable(self) -> Self:
        """The settings for a collector that acts by the learner's graph: it needs no encoder, and thus no plug-in."""
        if self.encoder is None:
            return self
        return self.model_copy(update={"vis_encode_type": "fully_connected", self.vis_encode_type: None})


ENCODERS: Final[dict[str, type[EncoderConfig]]] = load_all(
    Kind.ENCODERS, EncoderConfig, taken=[*dir(NetworkSettings), *NetworkSettings.model_fields]
)
"""The encoders of plug-ins by `vis_encode_type`."""
_literal: Any = Literal
_field = NetworkSettings.__pydantic_fields__["vis_encode_type"]
_field.annotation = _literal[(*get_args(_field.annotation), *ENCODERS)]
for _name, _encoder in ENCODERS.items():
    NetworkSettings.extend(_name, _encoder, f"Keys of `vis_encode_type: {_name}`; null = all defaults.")
NetworkSettings.model_rebuild(force=True)
