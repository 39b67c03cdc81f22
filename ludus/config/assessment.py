"""Runs that evaluate frozen policies instead of training: `match` against another one, `evaluate` alone."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from ludus.config.environment_parameters import ParameterName
from ludus.config.network import NetworkSettings
from ludus.config.values import BehaviorName, CheckpointId, LadderName, Own, Real, Section, Whole, config_error

MAX_GAMES: Final = 1_000_000
CHECKPOINT_KEYS: Final = ("candidate", "champion", "checkpoint")
NAMES: Final = (
    "Its id (`ckpt_...`), an alias (`champion`), or RUN/CHECKPOINT as in `nightly/latest`; the run stores the id that "
    "this means at its creation."
)

Share = Annotated[Real, Field(gt=0.0, lt=0.5)]
SEED_PARAMETER: Final = (
    "Environment parameter that simulators use as the seed of the next episodes (`ludus simulate --seed-parameter`; "
    "in a Unity build the one that your code reads)."
)


class MatchSettings(Section):
    """Two policies of one behavior are compared, game by game, until a sequential test accepts one hypothesis."""

    candidate: Own[CheckpointId] = Field(description=f"The checkpoint under test. {NAMES}")
    champion: Own[CheckpointId]
    """Its opponent, named in the same ways."""
    behavior: Own[BehaviorName]
    """Behavior of the policies; default: the candidate's only one."""
    elo0: Own[Real] = Field(default=0.0, ge=-2000.0, le=2000.0)
    """Lead of the candidate, in Elo points, of the hypothesis that it fails."""
    elo1: Own[Real] = Field(default=20.0, ge=-2000.0, le=2000.0)
    """Lead of the hypothesis that it passes; above `elo0`. Closer leads take more games."""
    alpha: Own[Share] = 0.05
    """Probability that a candidate whose lead is only `elo0` passes."""
    beta: Own[Share] = 0.05
    """Probability that a candidate whose lead is `elo1` fails."""
    max_games: Own[Whole] = Field(default=20_000, ge=2, le=MAX_GAMES)
    """Number of games after which the result is undecided."""
    seed_parameter: Own[ParameterName | None] = Field(
        default=None,
        description=f"{SEED_PARAMETER} Games then count in pairs of one seed with swapped sides; null = each by "
        "itself. Returns are then compared of one seed; null = of the simulators' own seeds.",
    )
    ladder: Own[LadderName | None] = None
    """A shared ladder on which the games count, too, by its name; for games of two sides."""
    compare: Own[Literal["outcome", "return"]] = "outcome"
    """`outcome`: the policies play against each other. `return`: they play a game of one player in turn, with the same
    seeds; the policy with the higher return wins, and each two episodes count as one game.
    """

    @field_validator("champion")
    @classmethod
    def _another(cls, champion: str, info: ValidationInfo) -> str:
        if champion == info.data.get("candidate"):
            raise config_error("contradiction", f"is {champion}, the candidate itself; name another checkpoint")
        return champion

    @field_validator("compare")
    @classmethod
    def _alone(cls, compare: str, info: ValidationInfo) -> str:
        if compare == "return" and info.data.get("ladder") is not None:
            raise config_error("contradiction", "is return, and a ladder counts games of two sides; leave ladder out")
        return compare

    @field_validator("elo1")
    @classmethod
    def _above(cls, elo1: float, info: ValidationInfo) -> float:
        elo0 = info.data.get("elo0")
        if elo0 is not None and elo1 <= elo0:
            raise config_error("out_of_range", f"must be greater than elo0, which is {elo0:g}, but is {elo1:g}")
        return elo1


class EvaluateSettings(Section):
    """One policy plays a number of episodes; its mean return is compared with a threshold."""

    checkpoint: Own[CheckpointId] = Field(description=f"The checkpoint that plays. {NAMES}")
    behavior: Own[BehaviorName]
    """Behavior of the policy; default: the checkpoint's only one."""
    episodes: Own[Whole] = Field(default=100, ge=1, le=10_000)
    """Number of episodes."""
    threshold: Own[Real | None] = None
    """Required mean return: the policy passes if the whole interval of the mean is at the threshold or above, and fails
    if the whole interval is below. Null = no threshold.
    """
    confidence: Own[Annotated[Real, Field(ge=0.5, lt=1.0)]] = 0.95
    """Confidence level: the share of bootstrapped means in the interval."""
    seed_parameter: Own[ParameterName | None] = Field(
        default=None,
        description=f"{SEED_PARAMETER} Every evaluation with the same `seed` then plays the same episodes; null = "
        "the simulators' own seeds.",
    )


AssessmentSettings = MatchSettings | EvaluateSettings


class TrainedPolicy(BaseModel):
    """How the policy of a checkpoint was trained: an assessment builds its network by that. No part of a document."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trainer_type: str
    network_settings: NetworkSettings


def checkpoints_of(settings: AssessmentSettings) -> dict[str, str]:
    """Return the ids of the checkpoints that play, by their keys; the one that is evaluated comes first."""
    match settings:
        case MatchSettings():
            return {"candidate": settings.candidate, "champion": settings.champion}
        case EvaluateSettings():
            return {"checkpoint": settings.checkpoint}
