"""`ludus doctor`: whether a gateway is there, and whether a game is one that can be learned, before any run.

Plays the game with random actions in this process and says, in one sentence each, what would keep a run from learning.
"""

import asyncio
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from ludus.child_process import TAIL_LINES, ChildProcess, describe_exit
from ludus.cli.collect import CLIENT
from ludus.cli.exits import INTERRUPTED, Exit, exit_of_error, sigterm_interrupts
from ludus.cli.options import ca_file_option, envs_option, option, token_option
from ludus.cli.render import LINES, echo, print_json
from ludus.cli.sources import GAME_METAVAR, Source, game_options, game_type, try_to_make
from ludus.games.process import PORT_ARGUMENT, ExecutableNotFound, find_executable
from ludus.play.checks.trial import Trial, try_game, without_influence
from ludus.play.checks.watch import Confirm
from ludus.protocol.options import DEFAULT_SERVER, GATEWAY_VARIABLE
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import JoinClient, Target

NO_RUN: Final = "ludus-doctor"
"""Name of a run that no server has: who is told so has reached the gateway."""
NOT_FOUND: Final = {"run_not_found", "run_ended"}
DAY_SECONDS: Final = 86_400
TICK_SECONDS: Final = 0.05
START_SECONDS: Final = 120.0
"""How long a build may take until its first agent."""
QUIT_SECONDS: Final = 5.0
QUIET_ARGUMENTS: Final = ("-nographics", "-batchmode")


@dataclass(frozen=True)
class Diagnosis:
    """A finding about a game, or about the way to it."""

    code: str
    behavior: str | None
    message: str
    remedy: str


@click.command(
    epilog="""\b
Exit codes:
  0  nothing was found
  1  the game cannot be played, or the gateway refuses
  2  the command line is wrong
  3  the gateway cannot be reached
  6  the game can be played, and something was found"""
)
@click.argument("source", metavar=f"[{GAME_METAVAR}]", type=game_type, required=False)
@click.option("--env", "build", type=click.Path(path_type=Path), help="A Unity build, which is started.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Wait at this port for a game that dials it by itself, as the Editor."
)
@envs_option
@game_options
@click.option("--behavior", help="Name of the behavior. [the game's name]")
@option("--steps", type=click.IntRange(min=1), default=2400, help="Random decisions of each behavior.")
@option("--seconds", type=click.FloatRange(0, min_open=True), default=30.0, help="Longest time of the trial.")
@click.option(
    "--server",
    envvar=GATEWAY_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help=f"The gateway, which has to be there then. [{DEFAULT_SERVER}, if it is there]",
)
@token_option
@ca_file_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    *,
    source: Source | None,
    build: Path | None,
    port: int | None,
    envs: int,
    arguments: tuple[tuple[str, object], ...],
    steps: int,
    seconds: float,
    server: str | None,
    token: str | None,
    ca_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Look whether a gateway can be reached, and whether GAME can be learned: no run is needed.

    GAME is named as for `ludus simulate`: `ludus doctor gymnasium:CartPole-v1`, `ludus doctor python:maze.py`. It is
    played with random actions. What is found is a sentence with what to do. --env starts a Unity build. With --port a
    game dials this machine by itself: the Editor (5004), or one with a native client, which gets this address in place
    of a gateway's. Without any of these only the gateway is looked at.
    """
    if source is not None and (port is not None or build is not None):
        raise click.UsageError("GAME is played in this process; --env and --port are of games that dial: give one")
    findings: list[Diagnosis] = []
    report: dict[str, object] = {}
    gateway = ask_gateway(Target(server or DEFAULT_SERVER, NO_RUN, token, "doctor", ca_file, 2.0))
    address = server or DEFAULT_SERVER
    report["gateway"] = {"server": address, "reached": gateway is None, "problem": gateway and gateway[1]}
    code = Exit.OK
    if gateway is not None and (server is not None or (source is None and port is None and build is None)):
        code = exit_of_error(gateway[0])
        findings.append(
            Diagnosis(gateway[0], None, f"{gateway[1]}.", "`ludus up` starts a server; --server names another.")
        )
    say = (lambda _: None) if as_json else echo
    say(f"gateway   {address} {'answers' if gateway is None else f'is not there: {gateway[1]}'}")
    trial: Trial | None = None
    try:
        with sigterm_interrupts():
            if source is not None:
                source = replace(source, arguments=dict(arguments), **options)
                try_to_make(source, envs).close()
                simulation = source.make(envs)
                try:
                    trial = try_game(simulation, steps, seconds)
                finally:
                    simulation.close()
            elif port is not None or build is not None:
                trial = asyncio.run(listen(port or 0, build, steps, seconds, say))
    except ExecutableNotFound as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if trial is not None:
        if trial.trace is not None:
            echo(trial.trace, err=True, kept=LINES)
        findings += diagnoses(trial, source)
        rate = trial.decisions / trial.game_seconds if trial.game_seconds else 0.0
        report |= {
            "behaviors": [described(spec) for spec in trial.specs.values()],
            "decisions": trial.decisions,
            "episodes": trial.episodes,
            "steps_per_second": round(rate, 1),
            "steps_per_day": round(rate * DAY_SECONDS),
        }
        for spec in trial.specs.values():
            say(f"behavior  {described(spec)}")
        say(f"played    {trial.decisions:,} random decisions, {trial.episodes:,} episodes ended")
        if rate:
            day = rate * DAY_SECONDS / 1e6
            say(f"speed     {rate:,.0f} steps/s of the game alone: at most {day:,.1f} million steps a day")
        if trial.problem is not None:
            code = code or Exit.REFUSED
        elif findings:
            code = code or Exit.UNMET
    for finding in findings:
        whose = "" if finding.behavior is None else f"{finding.behavior}: "
        say(f"finding   {whose}{finding.message} {finding.remedy} ({finding.code})")
    if not findings and trial is not None:
        say(f"sound     {'nothing was found' if trial.watch.steps >= steps else _unjudged(trial, steps)}")
    if as_json:
        print_json({**report, "findings": [asdict(finding) for finding in findings]})
    sys.exit(code)


def ask_gateway(target: Target) -> tuple[str, str] | None:
    """Return the code and the sentence of why a gateway cannot be used; None if it answers."""

    async def ask() -> None:
        async with JoinClient(target, lambda *_: None, CLIENT) as client:
            await client.ask()

    try:
        asyncio.run(ask())
    except SimulatorError as error:
        if error.code not in NOT_FOUND:
            return error.code, str(error).partition("; gave up")[0]
    return None


async def listen(port: int, build: Path | None, steps: int, seconds: float, say: Any) -> Trial:
    """Answer a game that dials a port with random actions, until it has been watched for long enough.

    `build` is started; without one the game is somebody else's.
    """
    # What it needs, a light installation lacks.
    from ludus.play.checks.exchange import LocalExchange  # noqa: PLC0415

    printed = deque[str](maxlen=TAIL_LINES)
    player: ChildProcess | None = None
    problem: tuple[str, str, str] | None = None
    began: float | None = None
    try:
        async with LocalExchange(port) as exchange:
            if build is None:
                say(f"waiting   for a game that dials 127.0.0.1:{exchange.port}")
            else:
                arguments = (PORT_ARGUMENT, str(exchange.port), *QUIET_ARGUMENTS)
                player = ChildProcess(
                    [str(find_executable(build)), *arguments],
                    own_group=True,
                    stdout=printed.append,
                    stderr=printed.append,
                )
            deadline = time.monotonic() + (START_SECONDS if build is not None else seconds)
            while time.monotonic() < deadline and exchange.watch.steps < steps and exchange.problem is None:
                if began is None and exchange.watch.behaviors:
                    began = time.monotonic()
                    deadline = began + seconds
                if player is not None and (code := player.exit_code()) is not None:
                    problem = (
                        "build_ended",
                        f"The build ended with {describe_exit(code)}.",
                        "Its last lines are above.",
                    )
                    break
                await asyncio.sleep(TICK_SECONDS)
                exchange.look()
            elapsed = time.monotonic() - (began or time.monotonic())
    finally:
        if player is not None:
            player.end(QUIT_SECONDS)
    if exchange.problem is not None:
        problem = (exchange.problem[0], f"{exchange.problem[1]}.", "A run would end this simulator at that point.")
    elif problem is None and began is None:
        who = "No game has" if build is None else "The build has not"
        sentence = f"{who} shown an agent at 127.0.0.1:{exchange.port} in time."
        remedy = "Give the game this address in place of a gateway's; a Unity build needs a Behavior of type Default."
        problem = ("no_game", sentence, remedy)
    trace = "\n".join(printed) if problem is not None and printed else None
    return Trial(
        exchange.specs,
        exchange.watch,
        exchange.decisions,
        exchange.watch.episodes,
        elapsed,
        problem,
        trace,
        exchange.notes,
    )


def diagnoses(trial: Trial, source: Source | None) -> list[Diagnosis]:
    """Return what is wrong with a game that was played; `source` makes it again."""
    confirm: Confirm | None = None
    if source is not None and trial.problem is None:
        again: Source = source

        def confirm(part: str) -> bool:
            return without_influence(again.make, part) is True

    notes = [Diagnosis(code, None, f"{sentence}.", "") for code, sentence in trial.notes]
    found = notes + [Diagnosis(fact.code, name, fact.message, fact.remedy) for name, fact in trial.watch.facts(confirm)]
    if trial.problem is not None:
        code, sentence, remedy = trial.problem
        found.insert(0, Diagnosis(code, None, sentence, remedy))
    return found


def described(spec: BehaviorSpec) -> str:
    """Return a behavior in words."""
    sensors = [(part.name or "vector", "x".join(map(str, part.shape)), part.dtype) for part in spec.observations]
    seen = ", ".join(" ".join(sensor) for sensor in sensors)
    actions = spec.actions
    columns = [f"{actions.continuous_size} continuous numbers"] if actions.continuous_size else []
    if actions.discrete_branches:
        columns.append(f"choices of {', '.join(map(str, actions.discrete_branches))}")
    return f"{spec.name}: sees {seen or 'nothing'}; acts by {' and '.join(columns) or 'nothing'}"


def _unjudged(trial: Trial, steps: int) -> str:
    return (
        f"nothing was found in {trial.watch.steps:,} steps; {steps:,} are needed to judge all: give it more --seconds"
    )
