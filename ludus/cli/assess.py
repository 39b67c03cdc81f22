"""Shared by `ludus gate` and `ludus evaluate`: a run, its simulators, progress, and reports."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import click

from ludus.cli.ending import cancel_interrupted, causes, end_run
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.follow import Standstill
from ludus.cli.options import (
    ASSIGNMENT,
    SEED,
    count_option,
    envs_option,
    json_option,
    run_name_option,
    run_tag_option,
    timeout_option,
)
from ludus.cli.render import echo, number, print_json
from ludus.cli.reports import Report, report_options
from ludus.cli.sources import GAME_METAVAR, SOURCE, Source
from ludus.cli.sources import check as check_source
from ludus.client import TERMINAL_STATES, Client, NotFound, RunStalled
from ludus.client.backoff import ServerBackoff
from ludus.client.started_simulators import StartedSimulators
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.schemas import EvaluationResult, MatchResult, Run

LOOK_SECONDS: Final = 1.0
Result = MatchResult | EvaluationResult
Command = TypeVar("Command", bound=Callable[..., Any])


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
    overrides: tuple[tuple[str, Any], ...]
    timeout: float | None
    as_json: bool


def games_options(handler: Command) -> Command:
    """Add the options that start simulators; the command takes them as `games`."""

    @click.option(
        "--game",
        type=SOURCE,
        metavar=GAME_METAVAR,
        help="Start simulators here, as `ludus simulate` does. [those that join otherwise]",
    )
    @click.option("--game-behavior", help="Behavior of the checkpoint that the game of --game plays. [the game's name]")
    @click.option(
        "--env-arg",
        "game_arguments",
        metavar="KEY=VALUE",
        type=ASSIGNMENT,
        multiple=True,
        help="Argument of the --game, as in max_cycles=100. Can be given several times.",
    )
    @count_option
    @envs_option
    @click.option(
        "--gateway",
        metavar="HOST:PORT",
        envvar=GATEWAY_VARIABLE,
        help="Where the simulators of --game join. [the server's host, port 7070]",
    )
    @functools.wraps(handler)
    def command(
        *args: Any,
        game: Source | None,
        game_behavior: str | None,
        game_arguments: tuple[tuple[str, Any], ...],
        count: int,
        envs: int,
        gateway: str | None,
        **others: Any,
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
        type=ASSIGNMENT,
        multiple=True,
        help="Any other key of the run, as in environment_parameters.size=9. Can be given several times.",
    )
    @timeout_option
    @json_option
    @report_options
    @functools.wraps(handler)
    def command(*args: Any, **given: Any) -> None:
        options = RunOptions(**{each.name: given.pop(each.name) for each in fields(RunOptions)})
        handler(*args, options=options, **given)

    return command  # type: ignore[return-value]  # likewise


def run_assessment(
    client: Client, section: str, settings: Mapping[str, Any], games: Games, options: RunOptions, report: Report
) -> Assessed:
    """Create a run, wait for its end while its progress is printed, and report. A time-out cancels the run.

    `settings` go to a `section` of its configuration, `match` or `evaluate`; None stands for the default. The seed
    parameter of simulators that the command starts is `seed` by default.
    """
    document: dict[str, Any] = {section: {key: value for key, value in settings.items() if value is not None}}
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
            found = _follow(client, run, backoff, simulators)
    except KeyboardInterrupt:
        # The run may exist although the answer was not read: with the same key, the server returns it.
        echo(cancel_interrupted(client, (run or create()).id), err=True)
        raise
    report.collect(client, found.run)
    if found.result is not None:
        report.lines.append(progress_line(found.result))
    if found.ended is Exit.REFUSED:
        end_run(client, run.id, "cancel")
        last = [] if simulators is None else [*simulators.last_lines]
        report.lines.extend(last)
        why = f": {last[-1]}" if last else ""
        report.say(f"the simulators have ended before {run.id}, which is cancelled{why}")
    elif found.ended is Exit.STALLED:
        end_run(client, run.id, "cancel")
        report.say(f"{RunStalled(found.run)}. The command does not wait for its verdict: {run.id} is cancelled")
    elif found.ended is Exit.TIMED_OUT:
        reasons = [*causes(client, found.run)]
        end_run(client, run.id, "cancel")
        sentence = f"not decided within {options.timeout:g} s (--timeout); {run.id} is cancelled"
        report.say(sentence)
        for reason in reasons:
            report.add(reason)
    elif found.result is None or found.ended is not Exit.OK:
        why = found.run.stop_detail or found.run.stop_reason or found.run.state
        report.say(f"{run.id} {found.run.state}: {why}")
    else:
        report.say(found.run.stop_detail or "")
    if options.as_json:
        print_json({"run": found.run, "result": found.result})
    return found


def _follow(client: Client, run: Run, backoff: ServerBackoff, simulators: StartedSimulators | None) -> Assessed:
    """Wait until the run ends, at most until the deadline of `backoff`, and print its progress when it changes.

    Stop waiting when all simulators of this command have ended, or when the run needs a person to continue.
    """
    said, standstill = "", Standstill()
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
        if line != said:
            said = line
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
