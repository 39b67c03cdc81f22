"""`ludus gate`, `ludus evaluate`: commands that end with a verdict on a policy, for pipelines."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

import click

from ludus.cli import exits
from ludus.cli.client import Failure, connected, explain
from ludus.cli.ending import cancel_interrupted, causes, end_run
from ludus.cli.exits import OUTCOMES, VERDICTS, Exit
from ludus.cli.follow import Standstill
from ludus.cli.options import (
    SEED,
    Command,
    assignment,
    count_option,
    envs_option,
    finite,
    games_gateway_option,
    json_option,
    option,
    run_name_option,
    run_tag_option,
    timeout_option,
)
from ludus.cli.render import echo, number, print_json
from ludus.cli.reports import Report, ReportedCommand, report_options
from ludus.cli.sources import GAME_METAVAR, Source, game_type
from ludus.cli.sources import check as check_source
from ludus.client import TERMINAL_STATES, ApiError, Client, NotFound, RunStalled
from ludus.client.backoff import ServerBackoff
from ludus.client.started_simulators import StartedSimulators
from ludus.json_values import JsonObject
from ludus.schemas import EvaluationResult, MatchResult, Run

LOOK_SECONDS: Final = 1.0
Result = MatchResult | EvaluationResult


@dataclass(frozen=True)
class Assessed:
    """The end of an assessment."""

    run: Run
    result: Result | None
    ended: Exit
    """Exit code for the end of the run, without the verdict."""


@dataclass(frozen=True)
class Games:
    """The simulators that a command starts: none without a `source`."""

    source: Source | None
    count: int
    envs: int
    gateway: str | None


@dataclass(frozen=True)
class RunOptions:
    """The options of the run, and of its report."""

    name: str | None
    tags: tuple[str, ...]
    seed: int | None
    overrides: tuple[tuple[str, object], ...]
    timeout: float | None
    as_json: bool


def games_options(handler: Command) -> Command:
    """Add the options that start simulators; the command takes them as `games`."""

    @click.option(
        "--game",
        type=game_type,
        metavar=GAME_METAVAR,
        help="Start simulators here, as `ludus simulate` does. [those that join otherwise]",
    )
    @click.option("--game-behavior", help="Behavior of the checkpoint that the game of --game plays. [the game's name]")
    @click.option(
        "--env-arg",
        "game_arguments",
        metavar="KEY=VALUE",
        type=assignment,
        multiple=True,
        help="Argument of the --game, as in max_cycles=100. Can be given several times.",
    )
    @count_option
    @envs_option
    @games_gateway_option
    @functools.wraps(handler)
    def command(
        *args: object,
        game: Source | None,
        game_behavior: str | None,
        game_arguments: tuple[tuple[str, object], ...],
        count: int,
        envs: int,
        gateway: str | None,
        **others: object,
    ) -> None:
        source = game and replace(game, behavior=game_behavior, arguments=dict(game_arguments))
        handler(*args, games=Games(source, count, envs, gateway), **others)

    return command  # type: ignore[return-value]  # click adds the options, which the caller doesn't see


def run_options(handler: Command) -> Command:
    """Add the options of the run and of its reports; the command takes them as `options`."""

    @run_name_option
    @run_tag_option
    @click.option("--seed", type=SEED, help="Seed of the run. [drawn]")
    @click.option(
        "--set",
        "overrides",
        type=assignment,
        multiple=True,
        help="Any other key of the run, as in environment_parameters.size=9. Can be given several times.",
    )
    @timeout_option
    @json_option
    @report_options
    @functools.wraps(handler)
    def command(*args: object, **given: Any) -> None:
        options = RunOptions(**{field.name: given.pop(field.name) for field in fields(RunOptions)})
        handler(*args, options=options, **given)

    return command  # type: ignore[return-value]  # likewise


def run_assessment(
    client: Client, section: str, settings: Mapping[str, object], games: Games, options: RunOptions, report: Report
) -> Assessed:
    """Create a run, wait for its end while its progress is printed, and report. A time-out cancels the run.

    `settings` go to a `section` of its configuration, `match` or `evaluate`; None stands for the default. The seed
    parameter of simulators that the command starts is `seed` by default.
    """
    document: JsonObject = {section: {key: value for key, value in settings.items() if value is not None}}
    if games.source is not None:
        check_source(games.source, {})
        document[section].setdefault("seed_parameter", "seed")
    if options.seed is not None:
        document["seed"] = options.seed
    # All requests have the same idempotency key, so that the run is created once.
    create = functools.partial(
        client.runs.create,
        document,
        overrides=dict(options.overrides),
        name=options.name,
        tags=options.tags,
        idempotency_key=str(uuid4()),
    )
    run: Run | None = None
    backoff = ServerBackoff(options.timeout)
    try:
        run = create() if options.timeout is None else backoff.persist(create)
        report.run, report.server = run, client.server
        echo(f"run {run.id} {run.name if run.name != run.id else ''}".rstrip(), err=True)
        resolved = (run.config or {}).get(section) or {}
        with _simulators(client, run.id, games, resolved.get("seed_parameter")) as simulators:
            if simulators is None:
                echo(f"waiting for simulators: ludus simulate GAME --run {run.name}", err=True)
            assessed = _follow(client, run, backoff, simulators)
    except KeyboardInterrupt:
        # The run may exist although the answer was not read: with the same key, the server returns it.
        echo(cancel_interrupted(client, (run or create()).id), err=True)
        raise
    report.collect(client, assessed.run)
    if assessed.result is not None:
        report.lines.append(progress_line(assessed.result))
    if assessed.ended is Exit.REFUSED:
        end_run(client, run.id, "cancel")
        last = [] if simulators is None else [*simulators.last_lines]
        report.lines.extend(last)
        why = f": {last[-1]}" if last else ""
        report.say(f"the simulators have ended before {run.id}, which is cancelled{why}")
    elif assessed.ended is Exit.STALLED:
        end_run(client, run.id, "cancel")
        report.say(f"{RunStalled(assessed.run)}. The command does not wait for its verdict: {run.id} is cancelled")
    elif assessed.ended is Exit.TIMED_OUT:
        reasons = [*causes(client, assessed.run)]
        end_run(client, run.id, "cancel")
        sentence = f"not decided within {options.timeout:g} s (--timeout); {run.id} is cancelled"
        report.say(sentence)
        for reason in reasons:
            report.add(reason)
    elif assessed.result is None or assessed.ended is not Exit.OK:
        why = assessed.run.stop_detail or assessed.run.stop_reason or assessed.run.state
        report.say(f"{run.id} {assessed.run.state}: {why}")
    else:
        report.say(assessed.run.stop_detail or "")
    if options.as_json:
        print_json({"run": assessed.run, "result": assessed.result})
    return assessed


def _follow(client: Client, run: Run, backoff: ServerBackoff, simulators: StartedSimulators | None) -> Assessed:
    """Wait until the run ends, at most until the deadline of `backoff`, and print its progress when it changes.

    Stop waiting when all simulators of this command have ended, or when the run needs a person to continue.
    """
    last_line, standstill = "", Standstill()
    while True:
        # Before the request, because the run may end in between.
        all_ended = simulators is not None and simulators.exit_code is not None
        present = backoff.persist(partial(client.runs.get, run.id))
        try:
            result: Result | None = backoff.persist(partial(client.runs.result, run.id))
        except NotFound:
            result = None
        line = _state(present) if result is None else progress_line(result)
        if result is not None and present.state not in TERMINAL_STATES | {"RUNNING"}:
            line += f"; the run is {_state(present)}"
        if line != last_line:
            last_line = line
            echo(line, err=True)
        news = standstill.news(present)
        if news is not None:
            echo(news, err=True)
        if present.state in TERMINAL_STATES:
            return Assessed(present, result, OUTCOMES[present.state])
        if present.needs_action:
            return Assessed(present, result, Exit.STALLED)
        if all_ended:
            return Assessed(present, result, Exit.REFUSED)
        if backoff.over:
            return Assessed(present, result, Exit.TIMED_OUT)
        backoff.sleep(LOOK_SECONDS)


def _state(run: Run) -> str:
    return f"{run.state}{f' ({run.stop_detail or run.stop_reason})' if run.stop_reason else ''}"


def progress_line(result: Result) -> str:
    """Return a line about the progress of an assessment."""
    if isinstance(result, EvaluationResult):
        interval = "" if result.low is None else f" ({number(result.low)} to {number(result.high)})"
        return f"{result.episodes} of {result.wanted} episodes, mean return {number(result.mean)}{interval}"
    match result.elo, result.elo_low, result.elo_high:
        case float(elo), float(low), float(high):
            lead = f", Elo {elo:+.0f} ({low:+.0f} to {high:+.0f})"
        case None, float(low), None:  # all games had the same result, so that the interval has one end
            lead = f", Elo {low:+.0f} or more"
        case None, None, float(high):
            lead = f", Elo {high:+.0f} or less"
        case _:
            lead = ""
    if result.mean is not None:
        lead += f", mean returns {number(result.mean)} and {number(result.champion_mean)}"
        if result.difference_low is not None:
            lead += f" (difference {number(result.difference_low)} to {number(result.difference_high)})"
    return (
        f"{result.games} games{', paired' if result.paired else ''}: {result.wins} won, {result.draws} drawn, "
        f"{result.losses} lost{lead}, LLR {result.llr:+.2f} ({result.llr_lower:+.2f} to {result.llr_upper:+.2f})"
    )


@contextmanager
def _simulators(
    client: Client, run: str, games: Games, seed_parameter: str | None
) -> Iterator[StartedSimulators | None]:
    """Run simulators while the block runs; none without a game."""
    if games.source is None:
        yield None
        return
    with client.simulators.start(
        run,
        f"{games.source.library}:{games.source.name}",
        count=games.count,
        envs=games.envs,
        gateway=games.gateway,
        behavior=games.source.behavior,
        arguments=games.source.arguments,
        seed_parameter=seed_parameter,
        show=partial(echo, err=True),
    ) as simulators:
        yield simulators


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
            option("--elo0", type=finite, default=elo0, help="Elo lead of the hypothesis that the candidate fails."),
            option("--elo1", type=finite, default=elo1, help="Elo lead of the hypothesis that it passes."),
            option(
                "--alpha", type=finite, default=0.05, help="Maximum probability that a candidate with lead ELO0 passes."
            ),
            option(
                "--beta", type=finite, default=0.05, help="Maximum probability that a candidate with lead ELO1 fails."
            ),
            option("--max-games", type=int, default=games, help="Games after which the result is undecided."),
        )
        for add_option in reversed(options):
            handler = add_option(handler)
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
    client: Client, *, games: Games, promote: str | None, options: RunOptions, report: Report, **match: object
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
@click.option("--threshold", type=finite, help="Required mean return. [none]")
@click.option("--against", help=f"Checkpoint that it must not be worse than: {CHECKPOINTS}. [none]")
@test_options(elo0=-40.0, elo1=0.0, games=2_000)
@promote_option
@option("--confidence", type=finite, default=0.95, help="Confidence level of the interval.")
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
    **given: object,
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
    client: Client, match: Mapping[str, object], games: Games, promote: str | None, options: RunOptions, report: Report
) -> Exit:
    """Compare two checkpoints, and promote the candidate if it passes; return the exit code.

    A candidate that the alias names already was promoted before: a job that is repeated passes without a game.
    """
    against = str(match["champion"])
    is_alias = "/" not in against and not against.startswith("ckpt_")
    alias = promote or (against if is_alias else CHAMPION)
    try:
        assessed = run_assessment(client, "match", match, games, options, report)
    except ApiError:  # the server refuses a match of a checkpoint against itself
        if (
            promote is None
            or alias != against
            or _checkpoint_id(client, str(match["candidate"])) != _named(client, alias)
        ):
            raise
        report.say(f"{alias} is this checkpoint already: it was promoted before, and nothing is left to decide")
        return Exit.OK
    code = _exit_code(assessed)
    if promote is not None and code is Exit.OK:
        assert isinstance(assessed.result, MatchResult)
        promote_to(client, alias, assessed.result)
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


def _exit_code(assessed: Assessed) -> Exit:
    """Return the exit code of an assessment."""
    if assessed.ended is not Exit.OK or assessed.result is None or assessed.result.verdict is None:
        return Exit.UNDECIDED if assessed.ended is Exit.OK else assessed.ended
    return VERDICTS[assessed.result.verdict]


def promote_to(client: Client, alias: str, result: MatchResult) -> None:
    """Move an alias from the champion that was played to the candidate."""
    present = _named(client, alias)
    expected = None if present is None else result.champion
    try:
        moved = client.aliases.set(alias, result.candidate, expected=expected)
    except ApiError as error:
        raise Failure(f"the candidate passed, but was not promoted: {explain(error)}", Exit.REFUSED) from error
    echo(f"{moved.name} is {moved.checkpoint_id} now", err=True)
