"""Self-play: a behavior's teams play against earlier versions of themselves (ML-Agents' ghost trainer)."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from ludus.config.hyperparameters import MAX_STEPS
from ludus.config.values import LadderName, Own, Real, Section, Whole, config_error
from ludus.validation import Form

OpponentSelection: TypeAlias = Literal["uniform", "pfsp_hard", "pfsp_variance"]
InterruptedGames: TypeAlias = Literal["ignore", "draw"]
RANDOM = "random"
"""The scripted opponent: each choice that is possible is as likely as the others; continuous actions are drawn from a
standard normal distribution."""
Opponent: TypeAlias = Annotated[
    str,
    Form(
        "the id of a checkpoint (ckpt_...), with #NUMBER that of a snapshot in it (ckpt_...#3), or another run "
        "(run:NAME, with #* its snapshots)",
        rf"^({RANDOM}|ckpt_[0-9a-z]{{26}}(#(0|[1-9][0-9]{{0,11}}))?|run:[^\s/:?#%&*]+(#\*)?)$",
    ),
]
"""A policy of another run, that of a checkpoint, or with `#NUMBER` a snapshot in the pool of it; `run:NAME` is the
policy in the newest checkpoint of a run, `run:NAME#*` are all snapshots in the pool of that checkpoint; or `RANDOM`."""
MAX_OPPONENTS = 100


def parse_opponent(opponent: Opponent) -> tuple[str, int | None]:
    """Return the id of an opponent's checkpoint, and the number of the snapshot; None: the policy that learned."""
    checkpoint, _, number = opponent.partition("#")
    return checkpoint, int(number) if number else None


def followed_run(opponent: Opponent) -> str | None:
    """Return the id or name of the run whose newest checkpoint an opponent means; None for all others."""
    return opponent.removeprefix("run:").partition("#")[0] if opponent.startswith("run:") else None


def _team_change(section: Mapping[str, int]) -> int:
    """Return five times `save_steps`, what `team_change` is if it isn't given."""
    return section["save_steps"] * 5


class ExploiterSettings(Section):
    """The policy is trained to beat `opponents` alone, and is reset; `exploiter: {}` = it is never reset.

    The main exploiters of AlphaStar (Vinyals et al. 2019, methods), which are reset when they win 70 % of their games,
    or after a time-out. Before a reset the policy is kept as a snapshot, for the run that it exploits: that one names
    `run:NAME#*` among its `opponents`. A reset gives new networks, of another seed, or those of `initialize_from`.
    """

    reset_share: Own[Real | None] = Field(default=None, gt=0.5, le=1.0)
    """Share of points in the newest games, a draw being half of one, at which it is reset. Null = never. Typical: 0.6
    to 0.8.
    """
    reset_steps: Own[Whole | None] = Field(default=None, ge=1, le=MAX_STEPS)
    """Agent steps after which it is reset in any case. Null = never."""


class SelfPlaySettings(Section):
    """One team learns, the others play earlier versions of the policy; `self_play: {}` = all defaults."""

    save_steps: Whole = Field(default=20_000, ge=1, le=MAX_STEPS)
    """Agent steps between versions that are kept as opponents; a larger number makes opponents differ more. Typical:
    10,000 to 100,000.
    """
    team_change: Whole = Field(default_factory=_team_change, ge=1, le=5 * MAX_STEPS)
    """Agent steps after which another team learns. Default: 5 x `save_steps`. Typical: 4 to 10 x `save_steps`."""
    swap_steps: Whole = Field(default=2000, ge=0, le=MAX_STEPS)
    """Steps of the teams that do not learn between exchanges of their policies. For x exchanges in each turn of a team,
    if the learning team has n agents and the others have m: (m / n) * (team_change / x). Typical: 10,000 to 100,000.
    """
    window: Whole = Field(default=10, ge=1, le=100_000)
    """Number of newest versions that are kept as opponents. Typical: 5 to 30."""
    play_against_latest_model_ratio: Real = 0.5
    """Probability that the opponent is the newest policy instead of one of the window. Typical: 0 to 1; lower is more
    stable.
    """
    initial_elo: Real = 1200.0
    """Initial Elo rating."""
    ladder: Own[LadderName | None] = None
    """Name of a ladder that this run shares with others (`ludus ladder create`). Default: a ladder of its own."""
    opponents: Own[list[Opponent]] = Field(default=[], max_length=MAX_OPPONENTS)
    """Policies of other runs that are opponents, too, for the whole run beside the `window`: ids of checkpoints, or
    `ckpt_...#3` for snapshot 3 of the pool that a checkpoint holds. `run:NAME` is the policy of another run, by its
    newest checkpoint; `run:NAME#*` are the snapshots that this checkpoint holds. They must have the same observations,
    actions and networks. Of a checkpoint the behavior of the same name is used, or the only one. `random` is a scripted
    opponent with random actions.
    """
    exploiter: Own[ExploiterSettings | None] = Field(default=None, description="Learn to beat `opponents` alone.")
    opponent_selection: Own[OpponentSelection] = "uniform"
    """Drawing of an opponent from the window and `opponents`: uniformly (`uniform`, as in ML-Agents), or by the
    policy's share of points p against each: `pfsp_hard` prefers opponents that beat it, (1 - p)^2, `pfsp_variance` its
    equals, p (1 - p).
    """
    interrupted_games: Own[InterruptedGames] = "ignore"
    """Result of a game that a time limit ended, not its rules: ignored (as in ML-Agents), or a draw."""

    @field_validator("opponents")
    @classmethod
    def _once_each(cls, opponents: list[str]) -> list[str]:
        for index, opponent in enumerate(opponents):
            if opponent in opponents[:index]:
                raise config_error("invalid_value", f"names {opponent} twice; name each opponent once")
        return opponents

    @field_validator("exploiter")
    @classmethod
    def _has_a_target(cls, exploiter: ExploiterSettings | None, info: ValidationInfo) -> ExploiterSettings | None:
        if exploiter is not None and not info.data.get("opponents", True):
            message = "is given, and there is nothing to exploit; name a policy in `opponents`, as in run:NAME"
            raise config_error("contradiction", message)
        return exploiter
