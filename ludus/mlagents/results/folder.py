"""The folder of a run's results on this machine, and the record of files that Ludus has written.

    <run>/configuration.yaml
    <run>/<Behavior>.onnx                        copy of the last checkpoint's model
    <run>/<Behavior>/<Behavior>-<step>.onnx      the newest `keep_checkpoints`
    <run>/<Behavior>/<Behavior>-<step>.pt        the complete state: an archive of state.safetensors and state.json
    <run>/<Behavior>/checkpoint.pt               the newest of them
    <run>/<Behavior>/events.out.tfevents.*
    <run>/run_logs/training_status.json, timers.json
    <run>/run_logs/ludus.json                    the journal: which run this is, and how far it is mirrored

Files appear complete or not at all: they are written beside their name and renamed. Nothing that the journal doesn't
list is ever deleted or cut.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.paths import AnyPath, replaced
from ludus.protocol.spec import file_name
from ludus.reading import read_record

JOURNAL_VERSION = 1


class ResultsUnusable(Exception):
    """A results folder cannot be continued; the message says why."""


@dataclass
class EventFile:
    """A file of TensorBoard events that the mirror appends to."""

    name: str
    size: int
    """Bytes that belong to the steps of the journal; bytes after them are cut off."""


@dataclass
class BehaviorJournal:
    """The progress of the mirror with one behavior."""

    steps: dict[str, int] = field(default_factory=dict)
    """Newest step of each metric that is in the event file."""
    summary: int = 0
    """Step of the newest summary line on the console."""
    event_file: EventFile | None = None
    checkpoints: dict[int, list[str]] = field(default_factory=dict)
    """Files of each mirrored checkpoint, by the behavior's step."""


@dataclass
class Journal:
    """The progress of the mirror of a folder: `run_logs/ludus.json`."""

    run: str
    server: str = ""
    """The server's address; empty for a stack that `ludus learn` starts itself."""
    attempt: int = 0
    """The attempt that was seen last."""
    event: int = 0
    """Sequence number of the newest event that was shown."""
    behaviors: dict[str, BehaviorJournal] = field(default_factory=dict)
    former: list[str] = field(default_factory=list)
    """Ids of the runs that this one continues, the oldest first."""

    def of(self, behavior: str) -> BehaviorJournal:
        """Return the journal of a behavior; a new one for a new behavior."""
        return self.behaviors.setdefault(behavior, BehaviorJournal())

    def continue_with(self, run: str) -> None:
        """Record the run that continues where this one has ended."""
        self.former.append(self.run)
        self.run, self.attempt, self.event = run, 0, 0


class Folder:
    """One `results/<run>`."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)

    @property
    def logs(self) -> Path:
        """The folder of `timers.json`, `training_status.json` and the players' logs."""
        return self.path / "run_logs"

    def behavior(self, name: str) -> Path:
        """The folder of a behavior's checkpoints and events."""
        return self.path / file_name(name)

    def model(self, name: str) -> Path:
        """The copy of a behavior's last model."""
        return self.path / f"{file_name(name)}.onnx"

    def checkpoint(self, name: str, step: int, suffix: str) -> Path:
        """One file of a behavior's checkpoint."""
        return self.behavior(name) / f"{file_name(name)}-{step}{suffix}"

    def read_journal(self) -> Journal | None:
        """Return the journal; None if Ludus has written nothing. Raises ResultsUnusable."""
        path = self.logs / "ludus.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] == JOURNAL_VERSION:
                return read_record(Journal, data)
            problem: object = f"version {data['version']}"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = error
        remedy = "use another run ID, or --force to start again"
        raise ResultsUnusable(f"{path.as_posix()} can't be read ({problem}): {remedy}")

    def write_journal(self, journal: Journal) -> None:
        """Store the progress of the mirror."""
        write_json(self.logs / "ludus.json", {"version": JOURNAL_VERSION, **asdict(journal)})


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: object) -> None:
    """Write JSON as ML-Agents does, four spaces deep."""
    write_text(path, json.dumps(value, indent=4))


def pack(files: Sequence[Path], target: Path) -> None:
    """Write one uncompressed archive of files in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            archive.write(file, file.name)


def place_copy(source: Path, target: Path) -> None:
    """Copy a file in one step, as a second name of the same content if the file system has links."""
    temporary = target.with_name(f".{target.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    temporary.replace(target)
    temporary.unlink(missing_ok=True)  # renaming onto another name of the same file does nothing
