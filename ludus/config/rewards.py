"""Where rewards come from: the game, curiosity, or the resemblance to demonstrations. Each signal is an axis.

The set of signals is the fields of `RewardSignals`; their order is the order of the value heads.
"""

from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from ludus.config.imitation import FromDemonstrations
from ludus.config.network import NetworkSettings
from ludus.config.values import Flag, Own, Real, Section, Whole, config_error

MAX_GAIL = 8
"""Most GAIL signals of one behavior."""


class RewardSignalConfig(Section):
    """Parent of all signals."""

    gamma: Real = Field(default=0.99, ge=0, le=1)
    """Discount factor per decision; higher if rewards come late. Typical: 0.8 to 0.995."""
    strength: Real = 1.0
    """Factor on this signal's rewards."""


class ExtrinsicConfig(RewardSignalConfig):
    """The rewards that the game gives."""

    strength: Real = 1.0
    """Factor on this signal's rewards. Typical: 1."""


class IntrinsicConfig(RewardSignalConfig):
    """Parent of the signals that learn."""

    learning_rate: Real = Field(default=3.0e-4, gt=0, le=1)
    """Adam's step size for the signal's own networks; lower it when their losses jump. Typical: 1e-5 to 1e-3."""
    network_settings: NetworkSettings = NetworkSettings()
    """The signal's own network, without memory."""


class CuriosityConfig(IntrinsicConfig):
    """Reward for prediction errors: those of a forward model (ICM, Pathak et al. 2017)."""

    strength: Real = 1.0
    """Factor on this signal's rewards: just large enough to matter beside the game's own. Typical: 0.001 to 0.1."""


class RNDConfig(IntrinsicConfig):
    """Reward for new observations: the error in predicting a fixed random network (RND, Burda et al. 2018)."""

    strength: Real = 1.0
    """Factor on this signal's rewards: just large enough to matter beside the game's own. Typical: 0.001 to 0.01."""
    learning_rate: Real = Field(default=1.0e-4, gt=0, le=1)
    """Adam's step size for the signal's own networks. Typical: 1e-5 to 1e-3."""


class GAILConfig(IntrinsicConfig, FromDemonstrations):
    """Reward for behaving like demonstrations, as a discriminator judges (GAIL, Ho & Ermon 2016)."""

    gamma: Real = Field(default=0.99, ge=0, le=1)
    """Discount factor per decision. Typical: 0.8 to 0.9."""
    strength: Real = 1.0
    """Factor on this signal's rewards; below 0.1 beside the game's own if demonstrations are not optimal. Typical: 0.01
    to 1.
    """
    use_actions: Flag = False
    """The discriminator sees observations together with actions, not alone."""
    use_vail: Flag = False
    """Limit the discriminator's information by a variational bottleneck (VAIL, Peng et al. 2019)."""
    ignore_done: Own[Flag] = False
    """Continue this signal's returns after a termination, with the mean value of the beginnings of episodes. False, as
    in ML-Agents: returns end there. The reward is never negative, so with false the policy is rewarded for surviving,
    whether or not it resembles the expert, and for delaying a success that ends the episode. True removes this survivor
    bias, for games whose episodes differ in length.
    """


class NoveltyConfig(RewardSignalConfig):
    """Reward for observations that were seldom seen: `1 / sqrt(1 + count)`. For discrete observations."""

    strength: Real = 1.0
    """Factor on this signal's rewards: large enough to be felt beside the game's own, and no larger. Typical: 0.001 to
    0.1.
    """
    resolution: Real = Field(default=1.0, gt=0, le=1e6)
    """Numbers of observations are rounded to multiples of it before they are compared. Typical: 1 for cells and
    choices, 0.1 for coordinates.
    """
    table_size: Whole = Field(default=65_536, ge=1_024, le=16_777_216)
    """Counts that are kept; make it ten times the number of different observations."""


SignalConfig: TypeAlias = ExtrinsicConfig | CuriosityConfig | GAILConfig | RNDConfig | NoveltyConfig
"""The union of all reward signals."""


class RewardSignals(Section):
    """The sources of reward, each with its own discount factor and value head; at least one."""

    extrinsic: ExtrinsicConfig | None = None
    """The game's own rewards; `{}` = all defaults, null = none."""
    curiosity: CuriosityConfig | None = None
    """Reward for surprise; `{}` = all defaults, null = none."""
    gail: (
        Annotated[
            Annotated[GAILConfig, Tag("one")]
            | Annotated[list[GAILConfig], Tag("several"), Field(min_length=1, max_length=MAX_GAIL)],
            Discriminator(lambda value: "several" if isinstance(value, list) else "one"),
        ]
        | None
    ) = None
    """Reward for resembling demonstrations; a list makes several such signals (Ludus' own), named gail, gail_2, gail_3,
    ...; null = none.
    """
    rnd: RNDConfig | None = None
    """Reward for novelty; `{}` = all defaults, null = none."""
    novelty: Own[NoveltyConfig | None] = None
    """Reward for observations that were seldom seen; `{}` = all defaults, null = none."""

    @model_validator(mode="after")
    def _some(self) -> "RewardSignals":
        if not self.active():
            raise config_error("missing", "is missing")
        return self

    def active(self) -> list[tuple[str, SignalConfig]]:
        """Return the signals that exist, with their names, in the order of the value heads."""
        named = []
        for name in RewardSignals.model_fields:
            configured: SignalConfig | list[SignalConfig] | None = getattr(self, name)
            several = configured if isinstance(configured, list) else [configured]
            signals = [signal for signal in several if signal is not None]
            named += [(f"{name}_{number}" if number > 1 else name, signal) for number, signal in enumerate(signals, 1)]
        return named
