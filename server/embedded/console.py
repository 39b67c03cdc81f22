"""Shows warnings and errors of the children's logs for `ludus up`, one short line each."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

LARGEST_LOG_BYTES = 32 * 2**20
LEVELS = ("debug", "info", "warning", "error", "critical")
HIDDEN = frozenset({"timestamp", "level", "event", "process", "exception", "logger", "color_message"})


class LogTail:
    """Reads what was added to a child's log file, and keeps the file from growing without end."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._offset = 0
        self._rest = b""

    def rotate(self) -> None:
        """Put the file aside as `NAME.log.1` and empty it. The child's descriptor stays valid: it appends."""
        if self.path.exists() and self.path.stat().st_size:
            shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
            with self.path.open("r+b") as file:
                file.truncate()
        self._offset, self._rest = 0, b""

    def lines(self) -> Iterator[str]:
        """Yield the complete lines that came since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")
        if self._offset > LARGEST_LOG_BYTES:
            self.rotate()

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the file, for a death notice."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]


class Console:
    """Writes short lines: time, process, text."""

    def __init__(self, write: Callable[[str], None], level: str = "warning") -> None:
        self._write = write
        self._least = LEVELS.index(level)

    def say(self, text: str, name: str = "ludus") -> None:
        """Write one line of `ludus up` itself. If the output is closed (pipe or terminal), the line is lost."""
        with suppress(OSError):
            self._write(f"{datetime.now():%H:%M:%S} {name:<8} {text}")  # noqa: DTZ005  people read it, in their own time

    def show(self, tail: LogTail) -> None:
        """Write what is new in a log and important enough; plain text (tracebacks, greetings) stays in the file."""
        for line in tail.lines():
            try:
                record: object = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("level") in LEVELS[self._least :]:
                context = [f"{key}={value}" for key, value in record.items() if key not in HIDDEN]
                if exception := record.get("exception"):
                    context.append(str(exception).strip().rpartition("\n")[2])
                self.say(" ".join([*str(record.get("event", "")).split(), *context]), tail.name)
