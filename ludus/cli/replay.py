"""`ludus replay`: plays a recording of a session again, without a server, and looks into it."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click

from ludus.cli.client import Failure
from ludus.cli.exits import Exit
from ludus.cli.options import EXISTING_FILE, SEED, json_option
from ludus.cli.render import echo, print_facts, print_json, print_json_line
from ludus.play.model import ModelPlayer, UnusableModel
from ludus.play.players import Player, RandomPlayer
from ludus.play.recordings.file import BadRecording, Summary, summarize
from ludus.play.recordings.reading import frame_text, shown_frames
from ludus.play.recordings.result import Finding, Replayed
from ludus.protocol.spec import BehaviorSpec

LEARNERS: Final = "ludus.replay"
"""Entry point group: `learn` feeds a recording to a learner. The worker's package has it."""
ALL: Final = "all"


@click.command()
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--inspect",
    metavar="[FRAME]",
    is_flag=False,
    flag_value=ALL,
    help="Show the messages in words and play nothing: all in a line each, or FRAME agent by agent.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[BEHAVIOR=]FILE.onnx",
    help="Exported model that acts, of all behaviors or of one. Can be given several times. [random actions]",
)
@click.option("--all", "everything", is_flag=True, help="Print every message, not only what is to be told.")
@click.option("--learn", is_flag=True, help="Feed the recorded steps to a learner, too. Needs the extra `worker`.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random actions.")
@json_option
def replay(
    *, file: Path, inspect: str | None, models: tuple[str, ...], everything: bool, learn: bool, seed: int, as_json: bool
) -> None:
    """Play the recording FILE against a collector of this machine, and compare its answers with those of then.

    \b
        ludus recording list RUN
        ludus recording download RUN RECORDING -o game.ludusrec
        ludus replay game.ludusrec
        ludus replay game.ludusrec --inspect 17

    Each line names the frame, what the game sent, what the server answered then, and what it answers now. Actions have
    other values, unless the same model acts; answers differ in kind: a session's end, its code, another number of
    agents or actions.

    \b
    Exit codes:
      0  the answers are of the same kind
      1  they differ, or FILE is no recording
      2  the command line is wrong
    """
    try:
        summary = summarize(file)
        if inspect is not None:
            _inspect(file, inspect, summary, as_json=as_json)
            return
        if learn:
            sys.exit(_learn(file, summary))
        _print_summary(summary, as_json=as_json)
        result = asyncio.run(_play(file, _players(models, seed), everything=everything, as_json=as_json))
    except BadRecording as error:
        raise Failure(f"{file}: {error}", Exit.REFUSED) from None
    except UnusableModel as error:
        raise click.UsageError(str(error)) from None
    _print_result(result, as_json=as_json)
    sys.exit(Exit.REFUSED if result.differences else Exit.OK)


async def _play(file: Path, make: Callable[[BehaviorSpec], Player], *, everything: bool, as_json: bool) -> Replayed:
    from ludus.play.recordings.replay import Replay  # noqa: PLC0415  a light installation has no collector

    _log_to_stderr()
    with file.open("rb") as opened:
        report: Callable[[Finding], None] = (lambda _: None) if as_json else _print_finding
        return await Replay(opened, make).run(report, everything=everything)


def _players(models: tuple[str, ...], seed: int) -> Callable[[BehaviorSpec], Player]:
    chosen: Mapping[str, str] = {
        name if equals else "": path if equals else name
        for name, equals, path in (model.partition("=") for model in models)
    }

    def make(spec: BehaviorSpec) -> Player:
        path = chosen.get(spec.behavior, chosen.get(""))
        return RandomPlayer(spec.actions, seed) if path is None else ModelPlayer(path, spec, seed=seed)

    return make


def _inspect(file: Path, wanted: str, summary: Summary, *, as_json: bool) -> None:
    if wanted != ALL and not wanted.isdecimal():
        raise click.UsageError(f"--inspect {wanted}: frames have numbers, from 1 to {summary.frames}")
    number = 0 if wanted == ALL else int(wanted)
    if wanted != ALL and not 1 <= number <= summary.frames:
        raise click.UsageError(f"--inspect {number}: the recording has the frames 1 to {summary.frames}")
    if wanted == ALL:
        _print_summary(summary, as_json=as_json)
    with file.open("rb") as opened:
        for frame in shown_frames(opened, max(number, 1), None if wanted == ALL else 1):
            if as_json:
                print_json_line(frame)
            elif wanted == ALL:
                echo(frame_text(frame).partition("\n")[0])
            else:
                text = frame_text(frame)
                echo(text, kept="\n")


def _log_to_stderr() -> None:
    """Keep the collector's log out of the answer."""
    import structlog  # noqa: PLC0415  a light installation has none

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _learn(file: Path, summary: Summary) -> int:
    for entry in entry_points(group=LEARNERS, name="learn"):
        try:
            learn = entry.load()
        except ModuleNotFoundError:  # the wheel of the client names it, too
            continue
        _log_to_stderr()
        return int(learn(file, summary, echo))
    raise Failure("--learn needs the extra `worker`: pip install '.[worker]' in Ludus' repository", Exit.REFUSED)


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        return
    header, end = summary.header, summary.end
    ended = f"{end.cause}{f', {end.code}' if end.code else ''}{f': {end.reason}' if end.reason else ''}"
    torn = f"{summary.torn_bytes} bytes at its end cannot be read" if summary.torn_bytes else ""
    print_facts(
        [
            ("run", f"{header.run_id}, attempt {header.attempt}"),
            ("session", f"{header.session_id}, simulator {header.number}, {header.carrier}"),
            ("behaviors", ", ".join(end.behaviors)),
            ("messages", f"{summary.frames} in {summary.seconds:.3f} s"),
            ("ended", ended),
            ("torn", torn),
        ]
    )


def _print_finding(finding: Finding) -> None:
    echo(f"frame {finding.frame}  {finding.seconds:+.3f} s  {finding.what}")
    if finding.then:
        echo(f"  then: {finding.then}")
    echo(f"  {'NOW:' if finding.differs else 'now:'}  {finding.now}")


def _print_result(result: Replayed, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(result), "differences": result.differences})
        return
    rest = "; the session has ended, so the rest was not played" if result.ended else ""
    echo(
        f"{result.received} messages played, {result.answers} answers, {result.steps} steps of experience, "
        f"{result.differences} difference{'' if result.differences == 1 else 's'}{rest}"
    )
