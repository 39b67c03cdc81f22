"""Reports for CI systems: a JUnit file (`--junit`) and a Markdown summary (`--summary`).

`ReportedCommand` writes them at every end of the command: a result, a refusal by the server, a wrong command line, an
interrupt. The JUnit file is written once before the work begins, as an error, so that a job that is killed leaves one,
too. CI systems read its elements so:

    failure   the question was answered, and the answer is no: an unmet requirement, a gate that did not pass
    error     the question was not answered: the run failed, the server does not answer, or the command line is wrong
    skipped   a requirement that was not judged, because of an error
"""

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO
from urllib.parse import quote
from xml.etree import ElementTree as ET

import click

from ludus.cli.client import Failure
from ludus.cli.ending import steps_of
from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.options import FILE, Command, Requirement
from ludus.cli.render import LINES, echo, number, printable
from ludus.cli.require import Verdict
from ludus.client import ApiError, Client
from ludus.metric_keys import SHORT_KEYS
from ludus.paths import replaced
from ludus.schemas import Run, Series

FAILURES: Final = frozenset({Exit.UNMET, Exit.WARNED, Exit.FAILED_GATE, Exit.UNDECIDED})
"""Exit codes that answer the question with no; all others but OK are errors."""
KILLED: Final = 137
"""Exit code of a command that got SIGKILL, as shells say it."""
CURVE_POINTS: Final = 40
_TYPES: Final[Mapping[int, str]] = {
    Exit.RUN_FAILED: "FAILED",
    Exit.RUN_CANCELLED: "CANCELLED",
    Exit.FAILED_GATE: "fail",
    Exit.UNDECIDED: "undecided",
    KILLED: "killed",
}
"""Exit code -> `type` of the XML element, where that is a state of the run or a verdict."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
INTERRUPTION: Final = "interrupted (Ctrl-C or SIGTERM)"
_UNFINISHED: Final = "the command was killed before it could say how it ended"


@dataclass
class Report:
    """The findings of a command so far. The command adds them; `write` writes the files."""

    command: str
    """Its name, as in `run wait`."""
    junit: Path | None = None
    summary: Path | None = None
    server: str = ""
    subject: str = ""
    """The arguments of the command: ids or names of the runs or checkpoints that it judges."""
    requirements: Sequence[Requirement] = ()
    run: Run | None = None
    verdicts: Sequence[Verdict] = ()
    lines: list[str] = field(default_factory=list)
    """Sentences that the command printed about the outcome."""
    details: list[str] = field(default_factory=list)
    """Sentences about its causes."""
    reason: str = ""
    """The reason of the outcome."""
    curves: Sequence[Series] = ()
    _began: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        """Print a line about the outcome, which is also its reason, and keep it."""
        self.lines.append(line)
        self.reason = line
        echo(line, err=True)

    def add(self, line: str) -> None:
        """Print a further line, about the outcome's cause, and keep it."""
        self.details.append(line)
        echo(line, err=True)

    def collect(self, client: Client, run: Run) -> None:
        """Store the run; for a summary, get the curves of the reward and of the required metrics, too."""
        self.run, self.server = run, client.server
        if self.summary is None:
            return
        required = [(requirement.behavior, requirement.key) for requirement in self.requirements]
        curves = dict[tuple[str, str], Series]()
        for behavior, key in dict.fromkeys([(None, SHORT_KEYS["reward"]), *required]):
            if key == "step":
                continue
            with suppress(ApiError):  # a metric that the run does not have; the requirement's verdict says so
                series = client.metrics.series(run.id, key, behavior, CURVE_POINTS, with_predecessors=True)
                curves |= {(curve.behavior, curve.key): curve for curve in series}
        self.curves = list(curves.values())

    def begin(self) -> None:
        """Write the JUnit file of a command that was killed. Raises Failure where a report cannot be written."""
        try:
            if self.junit is not None:
                self._write_junit(self.junit, KILLED, _UNFINISHED)
            if self.summary is not None:
                with _for_appending(self.summary):
                    pass
        except OSError as error:
            raise Failure(f"the report cannot be written: {error}", Exit.USAGE) from error

    def write(self, code: int, reason: str = "") -> None:
        """Write the files; `reason` says in words why the command ended with this exit code. Raises OSError."""
        if code in {Exit.UNMET, Exit.NO_METRIC} and self.verdicts:
            unmet = [f"{verdict.requirement.text}: {verdict.reason}" for verdict in self.verdicts if not verdict.met]
            reason = f"{len(unmet)} of {len(self.verdicts)} requirements not met: {'; '.join(unmet)}"
        default = "done" if code == Exit.OK else f"ended with exit code {code} ({_type(code)})"
        reason = reason or self.reason or default
        if self.junit is not None:
            self._write_junit(self.junit, code, reason)
        if self.summary is not None:
            with _for_appending(self.summary) as file:
                file.write(self._markdown(code, reason) + "\n")

    def _write_junit(self, path: Path, code: int, reason: str) -> None:
        seconds = f"{self._seconds():.3f}"
        suite = ET.Element("testsuite", name=f"ludus {self.command}")
        properties = ET.SubElement(suite, "properties")
        if self.run is not None:
            for name, value in {"run": self.run.id, "state": self.run.state, "page": self._page()}.items():
                ET.SubElement(properties, "property", name=name, value=value)
        classname = f"ludus.{self.command.replace(' ', '.')}"
        case = ET.SubElement(suite, "testcase", classname=classname, name=self._named(), time=seconds)
        # An unmet requirement has its own test case; the test case of the run passes then.
        passed = code in {Exit.OK, Exit.UNMET} or (code == Exit.NO_METRIC and bool(self.verdicts))
        if not passed:
            kind = "failure" if code in FAILURES else "error"
            # Some systems show the text alone: it says where to look, and does not repeat the message.
            ET.SubElement(case, kind, type=_type(code), message=reason).text = "\n".join([*self.details, self._page()])
        judged = {verdict.requirement: verdict for verdict in self.verdicts}
        for requirement in self.requirements:
            case = ET.SubElement(suite, "testcase", classname=classname, name=requirement.text, time="0.000")
            verdict = judged.get(requirement)
            if verdict is None or not (passed or code == Exit.WARNED):
                why = "" if verdict is None else f": {verdict.reason}"
                ET.SubElement(case, "skipped", message=f"not judged{why}")
            elif not verdict.judged:
                ET.SubElement(case, "error", type=_type(Exit.NO_METRIC), message=verdict.reason)
            elif not verdict.met:
                ET.SubElement(case, "failure", type="unmet", message=verdict.reason)
        lines = [line for line in [*self.lines, *(self.details if passed else ())] if line != reason]
        ET.SubElement(suite, "system-out").text = "".join(f"{line}\n" for line in lines)
        ET.SubElement(suite, "system-err")
        counts = {kind: str(len(suite.findall(f"testcase/{kind}"))) for kind in ("failure", "error", "skipped")}
        suite.attrib |= {
            "tests": str(len(suite.findall("testcase"))),
            "failures": counts["failure"],
            "errors": counts["error"],
            "skipped": counts["skipped"],
            "time": seconds,
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": socket.gethostname(),
        }
        for element in suite.iter():
            # XML has no way to write control characters; a server's text may have them.
            element.text = None if element.text is None else printable(element.text, LINES)
            element.attrib = {name: printable(text) for name, text in element.attrib.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, ET.tostring(suite, encoding="utf-8", xml_declaration=True))

    def _markdown(self, code: int, reason: str) -> str:
        outcome = "passed" if code == Exit.OK else "failed" if code in FAILURES else "not judged"
        lines = [f"### {_cell(f'ludus {self.command} {self._named()}')}: {outcome}", "", _cell(reason), ""]
        for line in [*self.lines, *self.details]:
            if line != reason:
                lines += [_cell(line), ""]
        if self.requirements:
            verdicts = {verdict.requirement: verdict for verdict in self.verdicts}
            lines += ["| requirement | result | value |", "| --- | --- | --- |"]
            for requirement in self.requirements:
                judged = verdicts.get(requirement)
                if judged is None or not judged.judged or code not in {*FAILURES, Exit.OK, Exit.NO_METRIC}:
                    result = "not judged"
                else:
                    result = "met" if judged.met else "**not met**"
                lines.append(f"| {_cell(requirement.text)} | {result} | {_cell(judged.reason if judged else '')} |")
            lines.append("")
        if self.run is not None:
            run = self.run
            why = f" ({run.stop_reason})" if run.stop_reason else ""
            link = f"[{_cell(run.name)}]({self._page()})"
            lines += ["| run | state | steps | attempts |", "| --- | --- | --- | --- |"]
            lines.append(f"| {link} | {run.state}{why} | {steps_of(run)} | {run.attempt} |")
            lines.append("")
        if self.curves:
            lines += ["| metric | curve | lowest | highest | last |", "| --- | --- | --- | --- | --- |"]
            for curve in self.curves:
                name = _cell(f"{curve.behavior} {curve.key}".strip())
                lowest = min((value for value in curve.minima if value is not None), default=None)
                highest = max((value for value in curve.maxima if value is not None), default=None)
                figures = " | ".join(map(number, (lowest, highest, curve.values[-1])))
                lines.append(f"| {name} | {sparkline(curve.values)} | {figures} |")
            lines.append("")
        return "\n".join(lines)

    def _page(self) -> str:
        """Return the address of the run's page; empty without a run."""
        if self.run is None:
            return ""
        project = "" if self.run.project == "default" else f"?project={quote(self.run.project)}"
        return f"{self.server}/ui/runs/{self.run.id}{project}"

    def _named(self) -> str:
        return self.subject or (self.run.name if self.run is not None else "") or "?"

    def _seconds(self) -> float:
        run = self.run
        if run is not None and run.finished_at is not None:
            return (run.finished_at - run.created_at).total_seconds()
        return time.monotonic() - self._began


class ReportedCommand(click.Command):
    """A command with `--junit` and `--summary` (`report_options`). Its handler takes a `report`, and fills it in.

    Its arguments name the runs or checkpoints that it evaluates.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; a wrong one is also reported if it names the files."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            report = Report(_command(ctx), _named_file(typed, "--junit"), _named_file(typed, "--summary"))
            with suppress(OSError):  # the error of the command line is more important
                report.write(Exit.USAGE, error.format_message())
            raise

    def invoke(self, ctx: click.Context) -> object:
        """Run the command, and write the reports at its end."""
        report = Report(_command(ctx), ctx.params.pop("junit"), ctx.params.pop("summary"))
        names = [parameter.name or "" for parameter in self.params if isinstance(parameter, click.Argument)]
        report.subject = " ".join(ctx.params[name] for name in names)
        report.begin()
        ctx.params["report"] = report
        code, reason = int(Exit.REFUSED), ""
        try:
            with sigterm_interrupts():
                super().invoke(ctx)
            code = Exit.OK
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else Exit.REFUSED
        except click.ClickException as error:
            code, reason = error.exit_code, error.format_message()
            raise
        except KeyboardInterrupt:
            code, reason = INTERRUPTED, INTERRUPTION
        finally:
            try:
                report.write(code, reason)
            except OSError as error:
                echo(f"Error: the report cannot be written: {error}", err=True)
                code = code or Exit.REFUSED
        sys.exit(code)


def report_options(handler: Command) -> Command:
    """Add the options that name the files of the reports, for a `ReportedCommand`."""
    summary = 'Append a summary in Markdown, as in --summary "$GITHUB_STEP_SUMMARY".'
    handler = click.option("--summary", type=FILE, metavar="FILE", help=summary)(handler)
    junit = "Write a JUnit report, whatever the outcome."
    return click.option("--junit", type=FILE, metavar="FILE", help=junit)(handler)


def sparkline(values: Sequence[float | None]) -> str:
    """Draw values as a line of blocks, from the lowest to the highest of them; a gap where there is no number."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else _BLOCKS[round((value - low) * scale)] for value in values)


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all: if the disk is full, the old content stays."""
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_bytes(content)
        return
    with replaced(path.resolve(), 0o644) as file:
        file.write(content)


def _for_appending(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _command(ctx: click.Context) -> str:
    """Return a command's name without that of the program: `run wait`."""
    names = []
    context: click.Context | None = ctx
    while context is not None and context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return " ".join(reversed(names)) or ctx.info_name or ""


def _named_file(arguments: Sequence[str], option: str) -> Path | None:
    """Return the file that an option names on a command line that click could not read."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return Path(argument.partition("=")[2])
        if argument == option and index + 1 < len(arguments):
            return Path(arguments[index + 1])
    return None


def _type(code: int) -> str:
    if code == INTERRUPTED:
        return "interrupted"
    return _TYPES.get(code) or (Exit(code).name.lower() if code in set(Exit) else f"exit_{code}")


def _cell(text: str) -> str:
    """Return a text for a cell of a Markdown table: one line, in which nothing is markup."""
    line = printable(text.replace("\n", " "))
    for special in "\\`*_[]<>|":
        line = line.replace(special, f"\\{special}")
    return line
