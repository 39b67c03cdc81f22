"""`ludus gate`, `ludus evaluate`: does a policy pass? Commands that end with a verdict, for pipelines."""

import sys

import click

from ludus.cli import exits
from ludus.cli.assess import Assessed, Games, RunOptions, games_options, run_assessment, run_options
from ludus.cli.client import Failure, connected, explain
from ludus.cli.exits import VERDICTS, Exit
from ludus.cli.options import Finite
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


@click.command(cls=ReportedCommand, epilog=exits.VERDICT_HELP)
@click.argument("candidate")
@click.option("--against", "champion", default=CHAMPION, show_default=True, help=f"Checkpoint to beat: {CHECKPOINTS}.")
@behavior_option
@click.option(
    "--elo0", type=Finite(), default=0.0, show_default=True, help="Elo lead of the hypothesis that the candidate fails."
)
@click.option(
    "--elo1", type=Finite(), default=20.0, show_default=True, help="Elo lead of the hypothesis that it passes."
)
@click.option(
    "--alpha",
    type=Finite(),
    default=0.05,
    show_default=True,
    help="Maximum probability that a candidate with lead ELO0 passes.",
)
@click.option(
    "--beta",
    type=Finite(),
    default=0.05,
    show_default=True,
    help="Maximum probability that a candidate with lead ELO1 fails.",
)
@click.option(
    "--max-games",
    type=int,
    default=20_000,
    show_default=True,
    help="Number of games after which the result is undecided.",
)
@seed_parameter_option
@click.option("--ladder", help="Shared ladder on which the games count, too.")
@games_options
@click.option(
    "--promote",
    is_flag=False,
    flag_value="",
    metavar="[ALIAS]",
    help=f"Move ALIAS to the candidate if it passes. [the alias in --against, else {CHAMPION}]",
)
@run_options
@connected
def gate(
    client: Client,
    *,
    candidate: str,
    champion: str,
    behavior: str | None,
    elo0: float,
    elo1: float,
    alpha: float,
    beta: float,
    max_games: int,
    seed_parameter: str | None,
    ladder: str | None,
    games: Games,
    promote: str | None,
    options: RunOptions,
    report: Report,
) -> None:
    """Play CANDIDATE against a champion until a test decides whether it is stronger; a checkpoint is an id
    (ckpt_...), an alias, or RUN/latest.

    Both sides are frozen policies, on the simulators that are connected to the run, or on those that --game starts
    here: `ludus gate nightly/latest --against champion --game pettingzoo:classic.connect_four_v3 --promote`. A
    sequential test (SPRT) stops as soon as one of two hypotheses on the candidate's lead, ELO0 and ELO1, is accepted.
    """
    settings = {
        "candidate": candidate,
        "champion": champion,
        "behavior": behavior,
        "elo0": elo0,
        "elo1": elo1,
        "alpha": alpha,
        "beta": beta,
        "max_games": max_games,
        "seed_parameter": seed_parameter or games.seed_parameter,
        "ladder": ladder,
    }
    alias = None if promote is None else promote or (CHAMPION if _is_no_alias(champion) else champion)
    found = run_assessment(client, "match", settings, games, options, report)
    code = _verdict(found)
    if alias is not None and code is Exit.OK:
        assert isinstance(found.result, MatchResult)
        promote_to(client, alias, found.result)
    sys.exit(code)


@click.command(cls=ReportedCommand, epilog=exits.VERDICT_HELP)
@click.argument("checkpoint")
@behavior_option
@click.option("--episodes", type=int, default=100, show_default=True, help="Episodes to play.")
@click.option("--threshold", type=Finite(), help="Required mean return. [none]")
@click.option("--confidence", type=Finite(), default=0.95, show_default=True, help="Confidence level of the interval.")
@seed_parameter_option
@games_options
@run_options
@connected
def evaluate(
    client: Client,
    *,
    checkpoint: str,
    behavior: str | None,
    episodes: int,
    threshold: float | None,
    confidence: float,
    seed_parameter: str | None,
    games: Games,
    options: RunOptions,
    report: Report,
) -> None:
    """Play episodes with CHECKPOINT and compare the mean return with a threshold; a checkpoint is an id
    (ckpt_...), an alias, or RUN/latest.

    It passes where the whole interval of the mean (bootstrap) lies at the threshold or above, fails where all of it
    lies below: `ludus evaluate nightly/latest --threshold 475 --seed 1 --game gymnasium:CartPole-v1`.
    """
    settings = {
        "checkpoint": checkpoint,
        "behavior": behavior,
        "episodes": episodes,
        "threshold": threshold,
        "confidence": confidence,
        "seed_parameter": seed_parameter or games.seed_parameter,
    }
    found = run_assessment(client, "evaluate", settings, games, options, report)
    sys.exit(_verdict(found))


def _verdict(found: Assessed) -> Exit:
    """Return the exit code of an assessment."""
    if found.ended is not Exit.OK or found.result is None or found.result.verdict is None:
        return Exit.UNDECIDED if found.ended is Exit.OK else found.ended
    return VERDICTS[found.result.verdict]


def _is_no_alias(name: str) -> bool:
    return "/" in name or name.startswith("ckpt_")


def promote_to(client: Client, alias: str, result: MatchResult) -> None:
    """Move an alias from the champion that was played to the candidate."""
    try:
        present = client.aliases.get(alias).checkpoint_id
    except NotFound:
        present = None
    expected = None if present is None else result.champion
    try:
        moved = client.aliases.set(alias, result.candidate, expected=expected)
    except ApiError as error:
        raise Failure(f"the candidate passed, but was not promoted: {explain(error)}", Exit.REFUSED) from error
    echo(f"{moved.name} is {moved.checkpoint_id} now", err=True)
