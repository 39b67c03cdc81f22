"""Where rewards come from: the game, curiosity, or the resemblance to demonstrations. Each signal is an axis.

The set of signals is the fields of `RewardSignals`: those below, then those of plug-ins, by name. Their order is the
order of the value heads.
"""

from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from ludus.config.imitation import FromDemonstrations
from ludus.config.signal import IntrinsicConfig, RewardSignalConfig
from ludus.config.values import Extensible, Flag, Own, Real, config_error
from ludus.plugins import Kind, load_all

MAX_GAIL = 8
"""Most GAIL signals of one behavior."""


class ExtrinsicConfig(RewardSignalConfig):
    """The rewards that the game gives."""

    strength: Real = 1.0
    """Factor on this signal's rewards. Typical: 1."""


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


class RewardSignals(Extensible):
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
    """Reward for what a random network does not predict; `{}` = all defaults, null = none."""

    @model_validator(mode="after")
    def _some(self) -> "RewardSignals":
        if not self.active():
            raise config_error("missing", "is missing")
        return self

    def active(self) -> list[tuple[str, RewardSignalConfig]]:
        """Return the signals that exist, with their names, in the order of the value heads."""
        named = []
        for name in RewardSignals.model_fields:
            configured: RewardSignalConfig | list[RewardSignalConfig] | None = getattr(self, name)
            several = configured if isinstance(configured, list) else [configured]
            signals = [signal for signal in several if signal is not None]
            named += [(f"{name}_{number}" if number > 1 else name, signal) for number, signal in enumerate(signals, 1)]
        return named


for _name, _signal in load_all(
    Kind.REWARDS, RewardSignalConfig, taken=[*dir(RewardSignals), *RewardSignals.model_fields]
).items():
    _summary = (_signal.__doc__ or "").partition("\n")[0]
    RewardSignals.extend(_name, _signal, f"{_summary} `{{}}` = all defaults, null = none.")
RewardSignals.model_rebuild(force=True)
