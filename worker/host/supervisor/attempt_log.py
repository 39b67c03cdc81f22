"""The log of an attempt, as files of bounded size: its beginning, and of a long log also its end.

Up to `LIMIT_BYTES` the log is one file, `trainer.log`. Beyond that, this file keeps the beginning and says at its end
that it goes on; the newest part is `trainer-end.log`, which always holds at least the last half of the limit (a crash
is at the end). The part between is dropped, in the store and on the host's disk: a run that logs for weeks fills
neither.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 8 << 20
NAME: Final = "trainer.log"
END_NAME: Final = "trainer-end.log"
TAIL_BYTES: Final = 1 << 18
"""How much of a log's end is searched for the last error."""
FOREIGN_ERROR: Final = re.compile(r"Fatal Python error: |terminate called |([\w.]+\.)?\w*(Error|Exception): ")
"""How a line begins with which an interpreter or a C++ runtime says why it ends."""


class AttemptLog:
    """Cuts the file that a trainer and its collectors append to into parts. One thread uses it."""

    def __init__(self, path: Path, limit: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit = limit
        self._size = -1
        self._begun: bytes | None = None
        """The beginning, once it is complete."""
        self._beginning_published = False
        self._carried = b""
        """The part that was cut off the file last: the newest half of a limit."""

    def due(self) -> Iterator[tuple[str, Path]]:
        """Yield names and files that have changed since the last call and are to be published now.

        One counts as published when the next is asked for: what the caller fails at, and breaks off, is due again.
        """
        if not self.path.exists() or (size := self.path.stat().st_size) == self._size:
            return
        if self._begun is None and size > self._limit:
            self._begun = self._cut()
            self._size = -1
        if self._begun is None:
            yield NAME, self.path
            self._size = size
            return
        if not self._beginning_published:
            yield NAME, self._file(NAME, self._begun + _goes_on())
            self._beginning_published = True
        if self.path.stat().st_size > self._limit:
            self._carried = self._cut()
        present = self.path.read_bytes()
        yield END_NAME, self._file(END_NAME, self._carried + present)
        self._size = len(present)

    def last_error(self) -> str | None:
        """Return the last error of the trainer or a collector as one line, None if there is none.

        Their own lines are JSON. Other lines that name an error come from an interpreter that could not log any more.
        """
        if not self.path.exists():
            return None
        content = self._carried + self.path.read_bytes()
        for line in reversed(content[-TAIL_BYTES:].decode(errors="replace").splitlines()):
            if FOREIGN_ERROR.match(line):
                return line.strip()
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("level") in {"error", "critical"}:
                traceback = str(said.get("exception", "")).strip()
                return traceback.splitlines()[-1] if traceback else str(said.get("reason", said.get("event")))
        return None

    def _cut(self) -> bytes:
        """Empty the file, whose writers append, and keep its newest half; return the part that stays published.

        Lines written between the reading and the emptying are lost: one or two of a log that grows fast.
        """
        content = self.path.read_bytes()
        with self.path.open("r+b") as file:
            file.truncate()
        tail = content[-self._limit // 2 :]
        newest = tail[tail.find(b"\n") + 1 :]
        if self._begun is not None:
            return newest
        self._carried = newest
        return content[: content.rfind(b"\n", 0, self._limit) + 1]

    def _file(self, name: str, content: bytes) -> Path:
        file = self.path.with_name(f"published-{name}")
        file.write_bytes(content)
        return file


def _goes_on() -> bytes:
    said = {"event": "log_goes_on", "level": "warning", "process": "supervisor", "name": END_NAME}
    return json.dumps(said).encode() + b"\n"
