"""Recordings that edge collectors send: files beside those that the collectors of this host write themselves.

Edge collectors are strangers: each one's files have names of its place, and its bytes in an attempt are limited.
"""

import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from ludus.config.recording import RecordConfig
from ludus.play.recordings.file import PART, SUFFIX

log = structlog.get_logger()

_NAME: Final = re.compile(rf"[0-9-]{{1,60}}{re.escape(SUFFIX)}")
MOST_OPEN: Final = 64
"""Files of a place that are not complete, beside those of sessions that are recorded."""


class ReceivedRecordings:
    """The files of all places. The pool's lock guards every method."""

    def __init__(self, folder: str | None) -> None:
        """`folder`: None where nothing is kept."""
        self._folder = folder
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._open: defaultdict[int, set[Path]] = defaultdict(set)

    def take(self, place: int, payload: bytes, record: RecordConfig) -> None:
        """Append to a file what `Kind.RECORDING` says. What breaks a limit is dropped."""
        head, _, data = payload.partition(b"\n")
        name = head[1:].decode("ascii", "replace")
        self._bytes[place] += len(data)
        opened = self._open[place]
        is_legal = head[:1] in {b".", b"!"} and _NAME.fullmatch(name) and len(opened) < record.sessions + MOST_OPEN
        if not self._folder or not is_legal or self._bytes[place] > record.total_bytes:
            log.warning("recording_dropped", place=place, name=name[:80], bytes=self._bytes[place])
            return
        part = Path(self._folder) / f"edge{place}-{name}{PART}"
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                file.write(data)
            opened.add(part)
            if head[:1] == b"!":
                opened.discard(part)
                part.rename(part.with_name(part.name.removesuffix(PART)))
        except OSError as error:  # the disk is full: a recording is not worth a run
            log.warning("recording_failed", place=place, name=name, error=str(error))

    def complete(self, place: int) -> None:
        """Complete the files of a collector that has ended: what it has not sent, it does not send any more."""
        for part in self._open.pop(place, ()):
            with suppress(OSError):
                part.rename(part.with_name(part.name.removesuffix(PART)))
