"""The flight recorder of a collector: a tape for each session, and the thread that writes recordings.

A tape keeps references to the newest messages of its session, for 30 seconds and within the session's part of
`RING_BYTES`; they are written when the session ends in an error. A session that is chosen is recorded from then on, and
what its tape has of the time before comes first. Packing, compression and the disk are the thread's: the event loop
appends to a list.
"""

import queue
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from ludus.config.recording import RecordConfig
from ludus.play.recordings.file import PART, SUFFIX, Direction, End, Header, pack_end, pack_frames, pack_header
from ludus.protocol.codes import CloseCode

log = structlog.get_logger()

RING_SECONDS: Final = 30.0
RING_BYTES: Final = 64 << 20
"""Of the messages that the tapes of all sessions that are not recorded keep."""
FRAME_BYTES: Final = 128
"""What a message takes beside its bytes."""
PROLOGUE_BYTES: Final = 4 << 20
"""Of the messages that introduce a session and its behaviors; those beyond are not kept."""
CHUNK_SECONDS, CHUNK_BYTES = 1.0, 256 << 10
"""A recording is handed to the thread in chunks of this size: what a collector that is killed loses."""
BACKLOG_BYTES: Final = 32 << 20
"""With more bytes than this waiting for the thread, recordings end."""
MOST_ERRORS: Final = 32
"""Sessions whose end in an error is kept, of one process: a game that breaks the contract joins again and again."""
CLOSE_SECONDS: Final = 5.0
NO_FAULTS: Final = frozenset(
    {
        "left",
        CloseCode.SUPERSEDED,
        CloseCode.SESSION_TAKEN,
        CloseCode.RUN_FINISHED,
        CloseCode.RUN_CANCELLED,
        CloseCode.RUN_PAUSED,
        CloseCode.RUN_MOVED,
        CloseCode.COLLECTOR_CLOSING,
    }
)
"""Codes of sessions that end without an error."""

Sink = Callable[[str, bytes, bool], None]
"""Appends bytes to the file of this name; True: they are its last. The writer's thread calls it. May raise OSError."""


class Subject(Protocol):
    """A session, as its tape sees it."""

    carrier: str
    session_id: str
    number: int
    closed: tuple[str, str] | None

    @property
    def specs(self) -> Mapping[str, object]:
        """By the names of the behaviors."""


class Tape:
    """The newest messages of one session."""

    __slots__ = ("_bytes", "_frames", "_last", "_limit", "_prologue", "_recorder", "_span", "file", "subject", "take")

    def __init__(self, recorder: "FlightRecorder", subject: Subject) -> None:
        self.subject = subject
        self.file: _File | None = None
        """The recording, while there is one."""
        self._recorder = recorder
        self._frames: deque[tuple[float, int, bytes]] = deque()
        self._bytes = 0
        self._prologue: list[tuple[float, int, bytes]] = []
        self._last = b""
        self.adjust()

    def adjust(self) -> None:
        """Choose how messages are taken."""
        recorder = self._recorder
        self.take: Callable[[int, bytes], None] = self._keep
        """Takes a message: its `Direction`, and its bytes."""
        if self.file is not None:
            self._limit, self._span = CHUNK_BYTES, CHUNK_SECONDS
        elif recorder.record.errors and recorder.is_on:
            self._limit, self._span = recorder.ring_bytes, RING_SECONDS
        else:
            self.take = self._remember
            self._frames.clear()
            self._bytes = 0

    def pin(self, instead: bytes | None = None) -> None:
        """Keep the newest message, or what is to be kept instead: it introduces the session, or a behavior."""
        if self._frames:
            seconds, direction, data = self._frames.pop()
            self._frames.append((seconds, direction, instead or data))
        else:
            seconds, data = self._recorder.now(), self._last
        if sum(len(frame[2]) for frame in self._prologue) + len(instead or data) <= PROLOGUE_BYTES:
            self._prologue.append((seconds, Direction.RECEIVED | Direction.BEFORE, instead or data))
        self._last = b""

    def _remember(self, _: int, data: bytes) -> None:
        self._last = data

    def _keep(self, direction: int, data: bytes) -> None:
        now = self._recorder.now()
        self._frames.append((now, direction, data))
        self._bytes += len(data) + FRAME_BYTES
        if self._bytes > self._limit or self._frames[0][0] < now - self._span:
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        if self.file is not None:
            self._recorder.flush(self)
            return
        frames, oldest, limit = self._frames, now - RING_SECONDS, self._recorder.ring_bytes
        self._limit = limit
        while len(frames) > 1 and (self._bytes > limit or frames[0][0] < oldest):
            self._bytes -= len(frames.popleft()[2]) + FRAME_BYTES

    @property
    def first_at(self) -> float:
        """When its first frame came or went; now, if it has none."""
        return self._frames[0][0] if self._frames else self._recorder.now()

    def cut(self) -> Collection[tuple[float, int, bytes]]:
        """Return the frames, which are another's from now on; before the first ones goes what introduced them."""
        frames, self._frames, self._bytes = self._frames, deque(), 0
        if self._prologue and (self.file is None or not self.file.began):
            first = self.first_at if not frames else frames[0][0]
            frames.extendleft(frame for frame in reversed(self._prologue) if frame[0] < first)
        return frames


class _File:
    """A recording that is written."""

    def __init__(self, name: str, header: Header, began_at: float) -> None:
        self.name = name
        self.header = header
        self.began_at = began_at
        """On the event loop's clock."""
        self.began = False
        """Whether the header was handed over."""
        self.size = 0
        """Bytes of its messages."""


class FlightRecorder:
    """The tapes of a collector. Everything but `Writer` runs in its event loop."""

    def __init__(
        self,
        record: RecordConfig | None = None,
        *,
        run: tuple[str, int, int] = ("", 0, 0),
        prefix: str = "",
        now: Callable[[], float] = float,
        wall_clock: Callable[[], float] = float,
        sink: Sink | None = None,
    ) -> None:
        """`run`: id, attempt and seed of the run. `prefix`: of files' names. Without a sink nothing is kept."""
        self.record = record or RecordConfig()
        self.is_on = sink is not None
        self.now = now
        self.ring_bytes = RING_BYTES
        """Those of one tape."""
        self._run = run
        self._prefix = prefix
        self._wall_clock = wall_clock
        self._writer = None if sink is None else Writer(sink)
        self._tapes: set[Tape] = set()
        self._recorded: set[str] = set()
        """Ids of sessions that were recorded: once each."""
        self._files = self._errors = 0
        self._next_tick = 0.0

    def open(self, subject: Subject) -> Tape:
        """Return the tape of a new session."""
        tape = Tape(self, subject)
        if self.is_on:
            self._tapes.add(tape)
            self.ring_bytes = RING_BYTES // len(self._tapes)
        return tape

    def change(self, record: RecordConfig) -> None:
        """Record other sessions, or within other limits, from now on."""
        self.record = record
        for tape in list(self._tapes):
            if tape.file is not None and not self._is_chosen(tape):
                self._finish(tape, "stopped")
            tape.adjust()
        self._next_tick = 0.0

    def tick(self) -> None:
        """Do what is due every second: begin recordings, and hand over what was recorded."""
        now = self.now()
        if now < self._next_tick or not self.is_on:
            return
        self._next_tick = now + CHUNK_SECONDS
        free = self.record.sessions - sum(tape.file is not None for tape in self._tapes)
        for tape in list(self._tapes):
            if tape.file is not None:
                self.flush(tape)
            elif free > 0 and tape.subject.number >= 0 and tape.subject.closed is None and self._is_chosen(tape):
                session_id = tape.subject.session_id
                if session_id not in self._recorded:
                    self._recorded.add(session_id)
                    free -= 1
                    tape.file = self._new_file(tape)
                    tape.adjust()

    def flush(self, tape: Tape) -> None:
        """Hand the frames of a recording to the thread; end the recording where it has reached a limit."""
        file, record = tape.file, self.record
        assert file is not None, "there is a recording"
        self._hand_over(tape, file)
        assert self._writer is not None, "there is a writer where there are recordings"
        if self._writer.waiting > BACKLOG_BYTES:
            self._finish(tape, "behind")
        elif file.size >= record.max_bytes or self.now() - file.began_at >= record.max_seconds:
            self._finish(tape, "limit")

    def ended(self, tape: Tape) -> None:
        """Complete the recording of a session that has ended, or keep its last seconds if it ended in an error.

        Nothing is kept of a session that was not welcomed: it is a stranger's.
        """
        self._tapes.discard(tape)
        self.ring_bytes = RING_BYTES // max(len(self._tapes), 1)
        code, _ = tape.subject.closed or ("", "")
        is_error = code not in NO_FAULTS
        if tape.file is not None:
            self._finish(tape, "error" if is_error else "session")
        elif is_error and self.is_on and self.record.errors and tape.subject.number >= 0 and self._errors < MOST_ERRORS:
            self._errors += 1
            tape.file = self._new_file(tape)
            self._finish(tape, "error")

    def close(self) -> None:
        """Complete every recording, and wait for the thread, `CLOSE_SECONDS` at most."""
        for tape in [tape for tape in self._tapes if tape.file is not None]:
            self._finish(tape, "stopped")
        if self._writer is not None:
            self._writer.close()

    def _is_chosen(self, tape: Tape) -> bool:
        return zlib.crc32(tape.subject.session_id.encode()) < self.record.share * 2**32

    def _new_file(self, tape: Tape) -> _File:
        self._files += 1
        (run_id, attempt, seed), subject = self._run, tape.subject
        began_at = tape.first_at
        started_at = self._wall_clock() - (self.now() - began_at)
        header = Header(run_id, attempt, subject.session_id, subject.number, subject.carrier, started_at, seed)
        return _File(f"{self._prefix}{self._files}{SUFFIX}", header, began_at)

    def _hand_over(self, tape: Tape, file: _File, end: End | None = None) -> None:
        frames = tape.cut()
        if frames or end is not None:
            assert self._writer is not None, "there is a writer where there are recordings"
            header = None if file.began else file.header
            file.began = True
            size = sum(len(frame[2]) for frame in frames)
            file.size += size
            self._writer.put(_Job(file.name, file.began_at, frames, size, header, end))

    def _finish(self, tape: Tape, cause: str) -> None:
        file, subject = tape.file, tape.subject
        assert file is not None, "there is a recording"
        code, reason = subject.closed or ("", "")
        self._hand_over(tape, file, End(cause, code, reason, tuple(subject.specs)))
        tape.file = None
        tape.adjust()


@dataclass(slots=True)
class _Job:
    """Work of the thread."""

    name: str
    began_at: float
    frames: Collection[tuple[float, int, bytes]]
    size: int
    header: Header | None
    end: End | None

    def pack(self) -> bytes:
        """Return the bytes to append."""
        parts = [] if self.header is None else [pack_header(self.header)]
        parts += [pack_frames(self.frames, self.began_at)] if self.frames else []
        parts += [] if self.end is None else [pack_end(self.end)]
        return b"".join(parts)


class Writer:
    """Packs and writes recordings, in a thread of its own that begins with the first one."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._put = self._done = 0
        """Bytes: the first is written by the event loop alone, the second by the thread."""
        self._failed: set[str] = set()

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return self._put - self._done

    def put(self, job: _Job) -> None:
        """Write soon."""
        self._put += job.size
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="recordings", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait until everything is written, `CLOSE_SECONDS` at most."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.name not in self._failed:
                try:
                    self._sink(job.name, job.pack(), job.end is not None)
                except OSError as error:  # the disk is full: a recording is not worth a run
                    self._failed.add(job.name)
                    log.warning("recording_failed", name=job.name, error=str(error))
            self._done += job.size


def folder_sink(folder: Path, prefix: str) -> Sink:
    """Return a sink that writes files into a folder; what former processes with this prefix have left is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(f"{prefix}*{PART}"):
        with suppress(OSError):
            part.rename(part.with_name(part.name.removesuffix(PART)))

    def sink(name: str, data: bytes, last: bool) -> None:
        part = folder / (name + PART)
        with part.open("ab") as file:
            file.write(data)
        if last:
            part.rename(folder / name)

    return sink
