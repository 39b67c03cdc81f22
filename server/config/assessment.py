"""Runs that judge frozen policies instead of training: `match` against another one, `evaluate` alone."""

from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from server.config.parameters import ParameterName
from server.config.values import OWN, BehaviorName, Real, Section, Text, Whole, mistake

MAX_GAMES: Final = 1_000_000
CHECKPOINT: Final = r"^ckpt_[0-9a-z]{26}$"
NAMES: Final = (
    "Its id (`ckpt_...`), an alias (`champion`), or RUN/CHECKPOINT as in `nightly/latest`; what it means when the run "
    "is created is stored."
)

CheckpointId = Annotated[str, StringConstraints(pattern=CHECKPOINT)]
Share = Annotated[Real, Field(gt=0.0, lt=0.5)]
LadderName = Annotated[Text, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
SEED_PARAMETER: Final = (
    "Environment parameter by which simulators take the seed of the next episodes (`ludus simulate --seed-parameter`; "
    "in a Unity build whichever your code reads)."
)


class MatchSettings(Section):
    """Two policies of one behavior play against each other until it is known which hypothesis holds."""

    candidate: CheckpointId = Field(
        description=f"The checkpoint that is to show that it is stronger. {NAMES}", json_schema_extra=OWN
    )
    champion: CheckpointId = Field(
        description="The checkpoint that it plays against, named in the same ways.", json_schema_extra=OWN
    )
    behavior: BehaviorName = Field(
        description="Whose policies play; not given, the only behavior that the candidate has.", json_schema_extra=OWN
    )
    elo0: Real = Field(
        default=0.0,
        ge=-2000.0,
        le=2000.0,
        description="Lead of the candidate, in Elo points, with which it fails.",
        json_schema_extra=OWN,
    )
    elo1: Real = Field(
        default=20.0,
        ge=-2000.0,
        le=2000.0,
        description="Lead with which it passes; above `elo0`. The closer both are, the more games it takes.",
        json_schema_extra=OWN,
    )
    alpha: Share = Field(
        default=0.05,
        description="Probability that a candidate whose lead is only `elo0` passes.",
        json_schema_extra=OWN,
    )
    beta: Share = Field(
        default=0.05, description="Probability that a candidate whose lead is `elo1` fails.", json_schema_extra=OWN
    )
    max_games: Whole = Field(
        default=20_000,
        ge=2,
        le=MAX_GAMES,
        description="Games after which it stays undecided.",
        json_schema_extra=OWN,
    )
    seed_parameter: ParameterName | None = Field(
        default=None,
        description=f"{SEED_PARAMETER} Games then count in pairs of one seed with swapped sides; null = each by "
        "itself.",
        json_schema_extra=OWN,
    )
    ladder: LadderName | None = Field(
        default=None, description="A shared ladder on which the games count, too, by its name.", json_schema_extra=OWN
    )

    @field_validator("champion")
    @classmethod
    def _another(cls, champion: str, info: ValidationInfo) -> str:
        if champion == info.data.get("candidate"):
            raise mistake(
                "contradiction", f"is {champion}, the candidate itself: nobody is stronger than itself; name another"
            )
        return champion

    @field_validator("elo1")
    @classmethod
    def _above(cls, elo1: float, info: ValidationInfo) -> float:
        elo0 = info.data.get("elo0")
        if elo0 is not None and elo1 <= elo0:
            raise mistake("out_of_range", f"must be greater than elo0, which is {elo0:g}, but is {elo1:g}")
        return elo1


class EvaluateSettings(Section):
    """One policy plays a number of episodes; what it earns on average is compared with a threshold."""

    checkpoint: CheckpointId = Field(description=f"The checkpoint that plays. {NAMES}", json_schema_extra=OWN)
    behavior: BehaviorName = Field(
        description="Whose policy plays; not given, the only behavior that the checkpoint has.", json_schema_extra=OWN
    )
    episodes: Whole = Field(
        default=100, ge=1, le=10_000, description="Episodes that are played.", json_schema_extra=OWN
    )
    threshold: Real | None = Field(
        default=None,
        description="Mean return that is enough: the policy passes where the whole interval of the mean is there or "
        "above, and fails where the whole interval is below. Null = there is nothing to pass.",
        json_schema_extra=OWN,
    )
    confidence: Annotated[Real, Field(ge=0.5, lt=1.0)] = Field(
        default=0.95, description="What part of bootstrapped means the interval holds.", json_schema_extra=OWN
    )
    seed_parameter: ParameterName | None = Field(
        default=None,
        description=f"{SEED_PARAMETER} Every evaluation with the same `seed` then plays the same episodes; null = "
        "whatever the simulators begin with.",
        json_schema_extra=OWN,
    )


AssessmentSettings = MatchSettings | EvaluateSettings


def checkpoints_of(settings: AssessmentSettings) -> dict[str, str]:
    """Return the ids of the checkpoints that play, by their keys; the one that is judged comes first."""
    match settings:
        case MatchSettings():
            return {"candidate": settings.candidate, "champion": settings.champion}
        case EvaluateSettings():
            return {"checkpoint": settings.checkpoint}


def checkpoints_named(settings: Any) -> dict[str, str]:
    """Return what a document says for the keys that name checkpoints, where it is text."""
    keys = ("candidate", "champion", "checkpoint")
    return {key: settings[key] for key in keys if isinstance(settings.get(key), str)}
