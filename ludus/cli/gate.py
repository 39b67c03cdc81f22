"""`ludus gate`, `ludus evaluate`: commands that end with a verdict on a policy, for pipelines."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from ludus.cli import exits
from ludus.cli.assess import Assessed, Games, RunOptions, games_options, run_assessment, run_options
from ludus.cli.client import Failure, connected, explain
from ludus.cli.exits import VERDICTS, Exit
from ludus.cli.options import FINITE, Command, option
from ludus.cli.render import echo
from ludus.cli.reports import Report, ReportedCommand
from ludus.client import ApiError, Client, NotFound
from ludus.schemas import MatchResult

CHAMPION = "champion"
CHECKPOINTS = "an id (ckpt_...), an alias, or RUN/latest"

behavior_option = click.option("--behavior", help="Behavior. [the checkpoint's only one]")
seed_parameter_option = click.option(
    "--seed-parameter",
    metavar="NAME",
    help="Environment parameter that simulators use as an episode's seed. [seed with --game, else none]",
)


promote_option = click.option(
    "--promote",
    is_flag=False,
    flag_value="",
    metavar="[ALIAS]",
    help=f"Move ALIAS to the candidate if it passes. [the alias in --against, else {CHAMPION}]",
)


def test_options(*, elo0: float, elo1: float, games: int) -> Callable[[Command], Command]:
    """Return the options of a sequential test, with these defaults."""

    def add(handler: Command) -> Command:
        options = (
            option("--elo0", type=FINITE, default=elo0, help="Elo lead of the hypothesis that the candidate fails."),
            option("--elo1", type=FINITE, default=elo1, help="Elo lead of the hypothesis that it passes."),
            option(
                "--alpha", type=FINITE, default=0.05, help="Maximum probability that a candidate with lead ELO0 passes."
            ),
            option(
                "--beta", type=FINITE, default=0.05, help="Maximum probability that a candidate with lead ELO1 fails."
            ),
            option("--max-games", type=int, default=games, help="Games after which the result is undecided."),
        )
        for each in reversed(options):
            handler = each(handler)
        return handler

    return add


@click.command(cls=ReportedCommand, epilog=exits.VERDICT_HELP)
@click.argument("candidate")
@option("--against", "champion", default=CHAMPION, help=f"Checkpoint to beat: {CHECKPOINTS}.")
@behavior_option
@test_options(elo0=0.0, elo1=20.0, games=20_000)
@seed_parameter_option
@click.option("--ladder", help="Shared ladder on which the games count, too.")
@games_options
@promote_option
@run_options
@connected
def gate(
    client: Client, *, games: Games, promote: str | None, options: RunOptions, report: Report, **match: Any
) -> None:
    """Play CANDIDATE against a champion until a test decides whether it is stronger; a checkpoint is an id
    (ckpt_...), an alias, or RUN/latest.

    Both sides are frozen policies, on the simulators that are connected to the run, or on those that --game starts
    here: `ludus gate nightly/latest --against champion --game pettingzoo:classic.connect_four_v3 --promote`. A
    sequential test (SPRT) stops as soon as one of two hypotheses on the candidate's lead, ELO0 and ELO1, is accepted.
    """
    sys.exit(_decide(client, match, games, promote, options, report))


@click.command(cls=ReportedCommand, epilog=exits.VERDICT_HELP)
@click.argument("checkpoint")
@behavior_option
@option("--episodes", type=int, default=100, help="Episodes to play, without --against.")
@click.option("--threshold", type=FINITE, help="Required mean return. [none]")
@click.option("--against", help=f"Checkpoint that it must not be worse than: {CHECKPOINTS}. [none]")
@test_options(elo0=-40.0, elo1=0.0, games=2_000)
@promote_option
@option("--confidence", type=FINITE, default=0.95, help="Confidence level of the interval.")
@seed_parameter_option
@games_options
@run_options
@connected
def evaluate(
    client: Client,
    *,
    games: Games,
    against: str | None,
    promote: str | None,
    options: RunOptions,
    report: Report,
    **given: Any,
) -> None:
    """Play episodes with CHECKPOINT and compare the mean return with a threshold; a checkpoint is an id
    (ckpt_...), an alias, or RUN/latest.

    It passes where the whole interval of the mean (bootstrap) lies at the threshold or above, fails where all of it
    lies below: `ludus evaluate nightly/latest --threshold 475 --seed 1 --game gymnasium:CartPole-v1`.

    With --against both checkpoints play the same seeds in turn, and the higher return wins a game; a sequential test
    (SPRT) stops as soon as it is known whether CHECKPOINT is worse: `ludus evaluate nightly/latest --against champion
    --promote --game gymnasium:CartPole-v1`.
    """
    test = {name: given.pop(name) for name in ("elo0", "elo1", "alpha", "beta", "max_games")}
    if against is None:
        if promote is not None:
            raise click.UsageError("--promote needs --against: without a champion there is nothing to beat")
        sys.exit(_exit_code(run_assessment(client, "evaluate", given, games, options, report)))
    if given.pop("threshold") is not None:
        raise click.UsageError("--threshold and --against are two questions; leave one out")
    del given["confidence"], given["episodes"]
    match = {"candidate": given.pop("checkpoint"), "champion": against, "compare": "return", **test, **given}
    sys.exit(_decide(client, match, games, promote, options, report))


def _decide(
    client: Client, match: Mapping[str, Any], games: Games, promote: str | None, options: RunOptions, report: Report
) -> Exit:
    """Compare two checkpoints, and promote the candidate if it passes; return the exit code.

    A candidate that the alias names already was promoted before: a job that is repeated passes without a game.
    """
    against: str = match["champion"]
    is_alias = "/" not in against and not against.startswith("ckpt_")
    alias = promote or (against if is_alias else CHAMPION)
    try:
        found = run_assessment(client, "match", match, games, options, report)
    except ApiError:  # the server refuses a match of a checkpoint against itself
        if promote is None or alias != against or _checkpoint_id(client, match["candidate"]) != _named(client, alias):
            raise
        report.say(f"{alias} is this checkpoint already: it was promoted before, and nothing is left to decide")
        return Exit.OK
    code = _exit_code(found)
    if promote is not None and code is Exit.OK:
        assert isinstance(found.result, MatchResult)
        promote_to(client, alias, found.result)
    return code


def _named(client: Client, alias: str) -> str | None:
    """Return the id of the checkpoint that an alias names; None where there is no such alias."""
    try:
        return client.aliases.get(alias).checkpoint_id
    except NotFound:
        return None


def _checkpoint_id(client: Client, checkpoint: str) -> str:
    """Return the id of a checkpoint from an id, an alias, or RUN/latest; what does not exist stays as it is."""
    run, slash, name = checkpoint.partition("/")
    if not slash:
        return _named(client, checkpoint) or checkpoint
    try:
        return client.checkpoints.get(run, name).id
    except NotFound:
        return checkpoint


def _exit_code(found: Assessed) -> Exit:
    """Return the exit code of an assessment."""
    if found.ended is not Exit.OK or found.result is None or found.result.verdict is None:
        return Exit.UNDECIDED if found.ended is Exit.OK else found.ended
    return VERDICTS[found.result.verdict]


def promote_to(client: Client, alias: str, result: MatchResult) -> None:
    """Move an alias from the champion that was played to the candidate."""
    present = _named(client, alias)
    expected = None if present is None else result.champion
    try:
        moved = client.aliases.set(alias, result.candidate, expected=expected)
    except ApiError as error:
        raise Failure(f"the candidate passed, but was not promoted: {explain(error)}", Exit.REFUSED) from error
    echo(f"{moved.name} is {moved.checkpoint_id} now", err=True)
