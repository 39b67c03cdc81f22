"""Follows the watched event logs: one thread, one small query per round, for any number of watchers.

A log is that of a run, or that of a project (`server.runs.events.projects`). The source is polled for the newest
sequence number of each watched log; new events are read once and kept in a short ring per log. Watchers are woken and
take the events that they have not seen. Sequence numbers have no gaps, so a watcher sees when the ring does not reach
back to its last event, and reads that part from the source itself. Nothing is stored per watcher: a slow watcher costs
no memory.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from ludus.schemas.states import RunState
from server.kit.errors import LudusError

log = structlog.get_logger(__name__)

RING_SIZE = 256
BACK_OFF_SECONDS = 1.0
LAST_SECONDS = 5.0
"""Longest wait for the last look."""


@dataclass(frozen=True)
class Head:
    """The end of a log."""

    seq: int
    state: RunState | None
    """Of the run; None for the log of a project."""


@dataclass(frozen=True)
class Entry:
    """One event, encoded for the wire once for all watchers."""

    seq: int
    chunk: bytes


class EventSource(Protocol):
    """A store of event logs."""

    def heads(self, log_ids: Collection[str]) -> Mapping[str, Head]:
        """Return the end of each of these logs that exists."""
        ...

    def after(self, log_id: str, seq: int, limit: int) -> Sequence[Entry]:
        """Return a log's events with a sequence number above `seq`, in order, at most `limit`."""
        ...


class Feed:
    """The tailer's state of one log. Its values are replaced as a whole, so they are read without a lock."""

    def __init__(self, log_id: str) -> None:
        self.log_id = log_id
        self.head: Head | None = None
        """None until the first look, and if the log does not exist."""
        self.ring: tuple[Entry, ...] = ()
        """The newest events that arrived while the log was watched, without gaps."""
        self.wakers: set[Callable[[], None]] = set()

    def since(self, seq: int) -> tuple[Entry, ...] | None:
        """Return the events after `seq`, or None if the ring doesn't reach back that far."""
        if self.head is None or self.head.seq <= seq:
            return ()
        if not self.ring or self.ring[0].seq > seq + 1:
            return None
        return tuple(entry for entry in self.ring if entry.seq > seq)


class Tailer:
    """Polls for the watched logs while there are any. Safe to share between threads."""

    def __init__(self, source: EventSource, interval_seconds: float = 0.05) -> None:
        self.source = source
        self._interval = interval_seconds
        self._feeds: dict[str, Feed] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.closed = False
        """Watchers leave when they see this."""

    @contextmanager
    def watch(self, log_id: str, wake: Callable[[], None]) -> Iterator[Feed]:
        """Follow a log. `wake` is called from the tailer's thread after each change; it must not block."""
        with self._changed:
            feed = self._feeds.setdefault(log_id, Feed(log_id))
            feed.wakers.add(wake)
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="event-tailer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            yield feed
        finally:
            with self._changed:
                feed.wakers.discard(wake)
                if not feed.wakers:
                    self._feeds.pop(log_id, None)

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def close(self) -> None:
        """Wake all watchers, which leave, and end the thread; wait for its last look, which may have a connection."""
        with self._changed:
            self.closed = True
            thread = self._thread
            self._changed.notify_all()
            wakers = [wake for feed in self._feeds.values() for wake in feed.wakers]
        for wake in wakers:
            wake()
        if thread is not None:
            thread.join(LAST_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        try:
            while self._rest(pause):
                try:
                    self._round()
                    pause = self._interval
                except LudusError as error:
                    log.warning("event_tail_failed", code=error.code, detail=error.message)
                    pause = BACK_OFF_SECONDS
        finally:
            with self._changed:
                self._thread = None

    def _rest(self, seconds: float) -> bool:
        """Pause, and wait for a watcher. Return False when the tailer is closed."""
        if seconds:
            time.sleep(seconds)
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._feeds)
            return not self.closed

    def _round(self) -> None:
        with self._changed:
            feeds = list(self._feeds.values())
        heads = self.source.heads([feed.log_id for feed in feeds])
        for feed in feeds:
            head = heads.get(feed.log_id)
            if head is not None and head != feed.head:
                self._advance(feed, head)

    def _advance(self, feed: Feed, head: Head) -> None:
        """Read new events. The first look at a log only reads the number of its newest event."""
        if feed.head is not None and head.seq > feed.head.seq:
            # Events appended between the last look at the head and the reading of events are in the ring already.
            last = feed.ring[-1].seq if feed.ring else feed.head.seq
            entries = tuple(self.source.after(feed.log_id, last, RING_SIZE))
            feed.ring = (feed.ring + entries)[-RING_SIZE:]
            if entries and entries[-1].seq < head.seq:
                feed.ring = ()  # more than a ring at once: watchers read it from the source
        feed.head = head
        with self._changed:
            wakers = list(feed.wakers)
        for wake in wakers:
            wake()
