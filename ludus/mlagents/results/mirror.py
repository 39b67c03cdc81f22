"""Copies the results of a run on the server to a folder, step by step while it trains.

Each `sync` gets and writes the new results. The folder's journal records them, so that the mirror can be interrupted at
any time and continues in another process. Where a later attempt of the run resumed before points that are written
already, the event files mark these as superseded and get the new attempt's points, as the API shows them.
"""

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from ludus.client import TERMINAL_STATES, Client, NotFound, ProblemAnswer
from ludus.mlagents.results import console
from ludus.mlagents.results.configuration import Section, behavior_settings, given_to, render
from ludus.mlagents.results.events import EventWriter, Scalar, TensorBoardMissing, new_path
from ludus.mlagents.results.folder import (
    BehaviorJournal,
    EventFile,
    Folder,
    Journal,
    pack,
    place_copy,
    write_json,
    write_text,
)
from ludus.mlagents.results.status import BehaviorStatus, Gauge, Json, SavedModel, timers, training_status
from ludus.protocol.spec import file_name
from ludus.schemas import STEPS_PER_SECOND, Checkpoint, Event, Metric, Run, Series

STATE_FILES = ("state.safetensors", "state.json")
GONE = frozenset({"checkpoint_deleted", "artifact_not_found"})
"""Codes of checkpoints that retention has deleted: with their row, or just before that."""


class CheckpointCopies:
    """Copies of the newest checkpoints of a run and of the runs that it continues."""

    def __init__(
        self, client: Client, folder: Folder, journal: Journal, say: Callable[[str], None], keep: Callable[[str], int]
    ) -> None:
        """`keep` returns the number of checkpoints of a behavior that stay in the folder."""
        self.due = True
        """Whether the server may have a checkpoint that is not here."""
        self._client = client
        self._folder = folder
        self._journal = journal
        self._say = say
        self._keep = keep
        self._newest_first: list[Checkpoint] = []

    def sync(self) -> None:
        """Download the newest checkpoints of each behavior, and remove the older ones that Ludus wrote."""
        runs = (self._journal.run, *reversed(self._journal.former))
        self._newest_first = [checkpoint for run in runs for checkpoint in self.of_run(run)]
        self.due = False
        for behavior in sorted({name for checkpoint in self._newest_first for name in checkpoint.steps}):
            journal = self._journal.of(behavior)
            newest = self.newest(behavior)
            for step in sorted(newest.keys() - journal.checkpoints.keys()):
                files = self._fetch(behavior, step, newest[step])
                if files:
                    journal.checkpoints[step] = files
                    self._folder.write_journal(self._journal)
            for step in sorted(journal.checkpoints.keys() - newest.keys()):
                for file in journal.checkpoints.pop(step):
                    (self._folder.path / file).unlink(missing_ok=True)
            last = max(journal.checkpoints, default=0)
            copies = {".onnx": self._folder.model(behavior), ".pt": self._folder.behavior(behavior) / "checkpoint.pt"}
            for suffix, target in copies.items():
                source = self._folder.checkpoint(behavior, last, suffix)
                if journal.checkpoints and source.exists() and not (target.exists() and target.samefile(source)):
                    place_copy(source, target)

    def of_run(self, run: str) -> Sequence[Checkpoint]:
        """Return a run's checkpoints, newest first; none of a former run that the server has deleted."""
        try:
            return self._client.checkpoints.list(run)
        except NotFound:
            if run == self._journal.run:
                raise
            return []

    def newest(self, behavior: str) -> dict[int, Checkpoint]:
        """Return the checkpoints to keep, by the behavior's step; of several with one step the newest."""
        keep = self._keep(behavior)
        by_step: dict[int, Checkpoint] = {}
        for checkpoint in self._newest_first:
            step = checkpoint.steps.get(behavior)
            if step is not None and step not in by_step and len(by_step) < keep:
                by_step[step] = checkpoint
        return by_step

    def _fetch(self, behavior: str, step: int, checkpoint: Checkpoint) -> list[str]:
        """Download a behavior's part of a checkpoint; return the files, none if retention deleted them meanwhile."""
        names = {file.name for file in checkpoint.files}
        model, state = (self._folder.checkpoint(behavior, step, suffix) for suffix in (".onnx", ".pt"))
        name = f"{file_name(behavior)}.onnx"
        try:
            if name in names:
                self._client.checkpoints.download(checkpoint.run_id, checkpoint.id, name, model)
            if names.issuperset(STATE_FILES):
                # The state of the run, which is that of all behaviors, as one file.
                state.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=state.parent, prefix=".state-") as folder:
                    targets = [Path(folder, file) for file in STATE_FILES]
                    for target in targets:
                        self._client.checkpoints.download(checkpoint.run_id, checkpoint.id, target.name, target)
                    pack(targets, state)
        except ProblemAnswer as error:
            if error.code not in GONE:
                raise
            self.due = True
            model.unlink(missing_ok=True)
            return []
        if name in names:
            self._say(console.info(f"Exported {model.as_posix()}"))
        return [path.relative_to(self._folder.path).as_posix() for path in (model, state) if path.exists()]


UNITY_CLIENT = re.compile(r"Unity ML-Agents (\S+) \(API (\S+)\)$")
"""A Unity game in the words of a collector: the version of its package, and that of its protocol."""
PAGE = 5000
"""Maximum number of points of a metric in one request."""


class Mirror:
    """The copy of one run in one folder. Close it, or use it as a context manager."""

    def __init__(
        self,
        client: Client,
        run: Run,
        folder: Folder,
        *,
        say: Callable[[str], None] = lambda _line: None,
        began: float | None = None,
        given: Section | None = None,
        local: Mapping[str, Section] | None = None,
        server: str = "",
        command: str = "",
    ) -> None:
        """Continue from the folder's journal of this run, or of the runs that it continues; ignore that of another run.

        `say` gets the lines that `mlagents-learn` would print. Their times elapse from `began`, by default from the
        run's creation, or from its resumption if the folder has its journal. `given` is the user's configuration
        document and `local` are the sections that this machine acts on, for `configuration.yaml`; `command` is the
        command line, for `timers.json`; `server` is remembered in the journal. Raises `ResultsUnusable`.
        """
        self._client = client
        self._folder = folder
        self._say = say
        self._given = given or {}
        self._local = local or {}
        self._command = command
        self._config: Section = run.config or {}
        self._settings_of_run: Section = self._config.get("checkpoint_settings", {})
        self._trains = not self._settings_of_run.get("inference", False)
        journal = folder.read_journal()
        goes_on = journal is not None and journal.run == run.id
        self.journal = journal if journal is not None and goes_on else Journal(run.id, server)
        self._since = (run.updated_at if goes_on else run.created_at).timestamp() if began is None else began
        self._writers: dict[str, EventWriter] = {}
        self._tensorboard = True
        self._checkpoints = CheckpointCopies(
            client, folder, self.journal, say, lambda behavior: int(self._resolved(behavior).get("keep_checkpoints", 5))
        )
        self._metrics: list[Metric] = []
        self._status: Json | None = None
        self._ratings: dict[str, float] = {}
        """The present Elo rating of each behavior in self-play."""
        write_text(folder.path / "configuration.yaml", render(self._config, self._given, self._local, run.seed))
        folder.write_journal(self.journal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def sync(self) -> Run:
        """Copy the new results, and return the run as it was at the beginning. Raises ApiError and OSError."""
        run = self._client.runs.get(self.journal.run)
        self._ratings = {} if run.self_play is None else run.self_play.elo
        before = asdict(self.journal)
        self._follow_attempts(run)
        for event in self._client.events.list(self.journal.run, self.journal.event):
            self._show(event)
            self.journal.event = event.seq
        self._follow_metrics(run)
        if self._checkpoints.due or run.state in TERMINAL_STATES:
            self._checkpoints.sync()
        self._write_status(ended=False)
        if asdict(self.journal) != before:
            self._folder.write_journal(self.journal)
        return run

    def finish(self) -> Run:
        """Copy the rest of a run that has ended, or is left; then write the files that ML-Agents writes at the end."""
        run = self.sync()
        self._write_status(ended=True)
        ended = (run.finished_at or run.updated_at).timestamp()
        started = ended if run.started_at is None else run.started_at.timestamp()
        write_json(
            self._folder.logs / "timers.json",
            timers(run.created_at.timestamp(), started, ended, self._gauges(), self._command),
        )
        for behavior, journal in self.journal.behaviors.items():
            model = self._folder.model(behavior)
            if journal.checkpoints and model.exists():
                newest = self._folder.checkpoint(behavior, max(journal.checkpoints), ".onnx")
                self._say(console.info(f"Copied {newest.as_posix()} to {model.as_posix()}."))
        return run

    # attempts and events ------------------------------------------------------------------------------------------

    def _follow_attempts(self, run: Run) -> None:
        """Remove the points that an attempt after the known one has not kept."""
        if run.attempt == self.journal.attempt:
            return
        if self.journal.attempt:
            for attempt in self._client.runs.attempts(run.id):
                if attempt.number > self.journal.attempt:
                    checkpoint = attempt.resumed_from
                    self._rewind({} if checkpoint is None else self._client.checkpoints.get(run.id, checkpoint).steps)
        elif self.journal.former:
            checkpoint = self._settings_of_run["resume_from"]
            copies = [copy for former in self.journal.former for copy in self._checkpoints.of_run(former)]
            self._rewind(next((copy.steps for copy in copies if copy.id == checkpoint), {}))
        self.journal.attempt = run.attempt

    def _rewind(self, restored: Mapping[str, int]) -> None:
        """Remove points after these steps, from which behaviors continue; an unnamed behavior began again."""
        for behavior, journal in self.journal.behaviors.items():
            step = restored.get(behavior, 0)
            if max(journal.steps.values(), default=0) <= step:
                continue
            journal.steps = {tag: min(newest, step) for tag, newest in journal.steps.items()}
            journal.summary = min(journal.summary, step)
            if (writer := self._writer(behavior)) is not None:
                writer.restart(step + 1)
                self._account(journal, writer)

    def _show(self, event: Event) -> None:
        match event.type:
            case "checkpoint_saved":
                self._checkpoints.due = True
            case "simulator_connected":
                self._say(console.info(self._connected(event)))
            case "behavior_admitted":
                self._introduce(str(event.data["behavior"]), str(event.data.get("name", event.data["behavior"])))
            case "team_announced":
                self._say(console.info(f"Connected new brain: {event.data['name']}"))
            case "lessons_began":
                for line in event.data["log_lines"]:
                    self._say(console.info(str(line)))
            case "lesson_changed" | "parameter_changed":
                self._say(console.info(str(event.data["log_line"])))
            case "self_play_turn_began" if "log_line" in event.data:
                self._say(console.info(str(event.data["log_line"])))
            case "behavior_initialized" | "run_paused":
                self._say(console.info(event.message))
            case _ if event.level in {"warning", "error"}:
                self._say(f"[{event.level.upper()}] {event.message}")

    def _connected(self, event: Event) -> str:
        """Describe a simulator that has connected, in ML-Agents' words if it is a Unity game."""
        simulators = self._client.simulators.list(self.journal.run)
        session_id = event.data.get("session_id")
        client = next((simulator.client for simulator in simulators if simulator.session_id == session_id), "")
        unity = UNITY_CLIENT.search(client)
        if unity is None:
            return event.message
        return f"Connected to Unity environment with package version {unity[1]} and communication version {unity[2]}"

    def _introduce(self, behavior: str, name: str) -> None:
        """Print ML-Agents' lines about a new behavior; `name` is the game's name of it, with its team."""
        self._say(console.info(f"Connected new brain: {name}"))
        self._say(console.hyperparameters_line(behavior, self._settings(behavior)))

    def _settings(self, behavior: str) -> Section:
        return behavior_settings(self._resolved(behavior), given_to(self._given, behavior))

    def _resolved(self, behavior: str) -> Section:
        settings: Section | None = self._config.get("behaviors", {}).get(behavior)
        return settings or self._config.get("default_settings") or {}

    # metrics ------------------------------------------------------------------------------------------------------

    def _follow_metrics(self, run: Run) -> None:
        """Write new points up to the newest values: a summary is recorded in one step, and read in one step."""
        self._metrics = [metric for metric in self._client.metrics.list(run.id) if metric.behavior]
        by_behavior: defaultdict[str, list[Metric]] = defaultdict(list)
        for metric in self._metrics:
            by_behavior[metric.behavior].append(metric)
        for behavior, metrics in by_behavior.items():
            journal = self.journal.of(behavior)
            writer = self._writer(behavior)
            new = [metric for metric in metrics if metric.step > journal.steps.get(metric.key, -1)]
            points = self._new_points(run.id, behavior, new, journal) if new else []
            if not points:
                continue
            if self._client.runs.get(run.id).attempt != self.journal.attempt:
                return  # another attempt began meanwhile: the points may be those of both
            points.sort(key=lambda point: point.step)
            if writer is not None:
                writer.scalars(points)
                self._account(journal, writer)
            for point in points:
                journal.steps[point.tag] = point.step
            self._summarise(behavior, journal, points)

    def _new_points(self, run: str, behavior: str, metrics: Sequence[Metric], journal: BehaviorJournal) -> list[Scalar]:
        """Return the points of some metrics that are not written yet, by one request if those are few."""
        written = {metric.key: journal.steps.get(metric.key, -1) for metric in metrics}
        newest = {metric.key: metric.step for metric in metrics}
        first = min(written.values()) + 1
        points: list[Scalar] = []
        for series in self._client.metrics.compare(
            [run], list(written), behavior, PAGE, from_step=first, common_steps=False
        ):
            key = series.key
            # A longer history is thinned.
            pages = [series] if series.total <= PAGE else self._pages(run, behavior, key, written[key], newest[key])
            points += [
                Scalar(key, step, math.nan if value is None else value, time.timestamp())
                for page in pages
                for step, time, value in zip(page.steps, page.times, page.values, strict=True)
                if time is not None and written[key] < step <= newest[key]
            ]
        return points

    def _pages(self, run: str, behavior: str, key: str, after: int, newest: int) -> Iterator[Series]:
        """Yield the points of a metric behind a step, a page after the other."""
        while after < newest:
            try:
                (series,) = self._client.metrics.series(run, key, behavior, PAGE, after)
            except NotFound:
                return  # superseded a moment ago
            yield series
            if len(series.steps) < PAGE:
                return
            after = series.steps[-1]

    def _summarise(self, behavior: str, journal: BehaviorJournal, points: Sequence[Scalar]) -> None:
        """Print a line for each new summary."""
        by_step: defaultdict[int, dict[str, Scalar]] = defaultdict(dict)
        for point in points:
            by_step[point.step][point.tag] = point
        for step, summary in by_step.items():
            if STEPS_PER_SECOND not in summary or step <= journal.summary:
                continue
            journal.summary = step
            line = console.Summary(
                behavior,
                step,
                max(0.0, summary[STEPS_PER_SECOND].time - self._since),
                {tag: point.value for tag, point in summary.items()},
                training=self._trains and step <= self._resolved(behavior).get("max_steps", math.inf),
            )
            self._say(console.summary_line(line))

    def _writer(self, behavior: str) -> EventWriter | None:
        """Return the writer of a behavior's event file; None where TensorBoard is not installed."""
        if behavior in self._writers or not self._tensorboard:
            return self._writers.get(behavior)
        journal, folder = self.journal.of(behavior), self._folder.behavior(behavior)
        try:
            if journal.event_file is not None:
                try:
                    path = folder / journal.event_file.name
                    self._writers[behavior] = EventWriter(path, journal.event_file.size)
                    return self._writers[behavior]
                except OSError:
                    pass  # the file was removed: its points are written again
            writer = self._writers[behavior] = EventWriter(new_path(folder))
        except TensorBoardMissing as error:
            self._tensorboard = False
            self._say(console.warning(f"{error}."))
            return None
        writer.text("Hyperparameters", console.hyperparameters(self._settings(behavior)))
        journal.event_file = EventFile(writer.path.name, 0)
        journal.steps = {}
        self._account(journal, writer)
        # Before any point is in the file: a mirror that is interrupted now would else leave a file without a journal,
        # with points that the next mirror writes again.
        self._folder.write_journal(self.journal)
        return writer

    def _account(self, journal: BehaviorJournal, writer: EventWriter) -> None:
        assert journal.event_file is not None, "a writer has its entry in the journal"
        journal.event_file.size = writer.sync()

    def _gauges(self) -> list[Gauge]:
        """Return a gauge with the range of each metric."""
        gauges = []
        for metric in self._metrics:
            (series,) = self._client.metrics.series(self.journal.run, metric.key, metric.behavior, 1)
            smallest, largest = series.minima[0], series.maxima[0]
            if metric.value is None or smallest is None or largest is None:
                continue
            gauges.append(Gauge(metric.behavior, metric.key, metric.value, smallest, largest, series.total))
            if metric.key == STEPS_PER_SECOND:
                frequency = self._resolved(metric.behavior).get("summary_freq", metric.step)
                numbers = {
                    "Step": (metric.step, min(frequency, metric.step), metric.step),
                    "Is Training": (float(self._trains),) * 3,
                }
                gauges += [Gauge(metric.behavior, key, *values, series.total, True) for key, values in numbers.items()]
        return gauges

    def _write_status(self, *, ended: bool) -> None:
        behaviors: dict[str, BehaviorStatus] = {}
        newest = {(metric.behavior, metric.key): metric.value for metric in self._metrics}
        for behavior, journal in self.journal.behaviors.items():
            saved = []
            for step, checkpoint in sorted(self._checkpoints.newest(behavior).items()):
                if step in journal.checkpoints:
                    states = [name for name in journal.checkpoints[step] if name.endswith(".pt")]
                    model = SavedModel(
                        step,
                        self._folder.checkpoint(behavior, step, ".onnx").as_posix(),
                        checkpoint.metrics.get(behavior),
                        checkpoint.created_at.timestamp(),
                        [(self._folder.path / name).as_posix() for name in states],
                    )
                    saved.append(model)
            final = self._folder.model(behavior).as_posix() if ended else None
            elo = self._ratings.get(behavior, newest.get((behavior, console.ELO)))  # older servers have means alone
            behaviors[behavior] = BehaviorStatus(saved, final, elo)
        lessons: dict[str, int] = {}
        if self._config.get("environment_parameters"):
            parameters = self._client.environment_parameters.get(self.journal.run).parameters
            lessons = {parameter.name: parameter.lesson - 1 for parameter in parameters}  # ML-Agents counts from 0
        status = training_status(behaviors, lessons)
        if status != self._status:
            write_json(self._folder.logs / "training_status.json", status)
            self._status = status
