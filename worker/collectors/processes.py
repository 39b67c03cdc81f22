"""Collector processes, the learner's side: started ahead of time, configured later, watched, and always ended.

The pool decides which messages they get, and handles those that they send.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from ludus.child_process import describe_exit
from ludus.collector import commands, messages
from ludus.collector.channel import Channel, ChannelClosedError
from ludus.collector.messages import Kind, Message
from ludus.collector.silence import Silence
from worker.collectors.collector_process import (
    EDGE_MODULE,
    EDGE_READER,
    NUMBERS,
    CollectorProcess,
    PlaceLine,
    WarmCollector,
)

if TYPE_CHECKING:
    from worker.collectors.pool import CollectorPool

log = structlog.get_logger()

CLOSE_SECONDS = 5.0
START_SECONDS = 30.0
"""How long a collector may take until it listens."""
SILENCE_SECONDS = 30.0
"""A collector that has sent nothing and used no CPU for so long has frozen (`Silence.idle`)."""
BUSY_SECONDS = 300.0
"""One that has sent nothing for so long will not send again, however busy it is."""


class CollectorProcesses:
    """The collectors of a pool. One that dies or freezes is started again.

    A thread serves their channels, and holds the pool's lock for moments only. All methods but `start` and `close`
    are called under that lock; none but `close` ever waits.
    """

    def __init__(
        self,
        count: int,
        edge_places: int,
        warm: Sequence[WarmCollector],
        pool: "CollectorPool",
        lock: threading.Condition,
    ) -> None:
        """`count` collectors, of which the last `edge_places` are places for edge collectors."""
        self._pool = pool
        self._lock = lock
        local = count - edge_places
        self._local = local
        self._children = [CollectorProcess(index, index >= local) for index in range(count)]
        self.number_from()
        self.reader = None if local else CollectorProcess(EDGE_READER, edge=True)
        """The process that serves the places; None before `start_reader`, where games can connect without them."""
        for child, process in zip(self._children[:local], warm, strict=False):
            child.warm = process
        self._spare = list(warm[local:])
        self._retired: list[int] = []
        """Descriptors that may still wait to be sent."""
        self.closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="collector-pool", daemon=True)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[CollectorProcess]:
        return iter(self._children)

    def __getitem__(self, index: int) -> CollectorProcess:
        return self._children[index]

    @property
    def own(self) -> list[CollectorProcess]:
        """The processes of this host: local collectors, and the edge reader."""
        reader = [] if self.reader is None else [self.reader]
        return [*(child for child in self._children if not child.edge), *reader]

    @property
    def listening(self) -> list[CollectorProcess]:
        """Those that serve simulators."""
        return [child for child in self._children if child.warm is not None and child.endpoint is not None]

    def number_from(self, taken: Sequence[int] = ()) -> None:
        """Set the first number of simulators that each will have; no two have one in common, none is taken.

        Local collectors share a range, where the gateway counts too; each place has a range of its own.
        """
        for child in self._children:
            begin = (child.index - self._local + bool(self._local)) * NUMBERS if child.edge else 0
            child.numbers, child.first_number, child.number_step = range(begin, begin + NUMBERS), begin, 1
            child.number_after(taken)
            if not child.edge:
                child.number_step = self._local
                child.first_number += (child.index - child.first_number) % self._local

    def start(self) -> None:
        """Start the processes, and serve them."""
        with self._lock:
            for child in self.own:
                self._launch(child)
            self._thread.start()

    def start_reader(self) -> None:
        """Start the edge reader, unless it was started before. The thread does it: the process ends with that."""
        if self.reader is None:
            self.reader = CollectorProcess(EDGE_READER, edge=True, restart_at=time.monotonic())
            self._wake()

    def open_places(self) -> None:
        """Open each place that is closed; the edge reader listens."""
        assert self.reader is not None, "places are the edge reader's"
        for child in self._children:
            if not child.edge or child.warm is not None or child.restart_at is not None or self.closing:
                continue
            ours, theirs = socket.socketpair()
            child.warm, child.failure = PlaceLine(Channel(ours)), None
            self._selector.register(child.warm.channel, selectors.EVENT_READ, child)
            fd = theirs.detach()
            self.send_message(self.reader, commands.OpenPlace(child.index, child.former), (fd,))
            self.retire([fd])

    def close(self, farewell: Message) -> None:
        """Send `farewell` to those that listen, and end all processes for certain."""
        with self._lock:
            self.closing = True
            self.broadcast(farewell)
            for child in (*self._children, *self.own):
                if child.endpoint is None:
                    self._end(child, 0.0)
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for child in (*self._children, *self.own):
                self._end(child, 0.0)
        if self._thread.ident is not None:
            self._wake()
            self._thread.join()
        for process in self._spare:
            process.close()
        for fd in self._retired:
            os.close(fd)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # Messages ---------------------------------------------------------------------------------------------------

    def broadcast(self, message: Message) -> None:
        """Send a message to all that listen."""
        for child in self.listening:
            self.send_message(child, message)

    def send_message(
        self, child: CollectorProcess, message: Message, descriptors: Sequence[int] = (), *, later: bool = False
    ) -> None:
        """Send a message to one. `later`: with the next one, or with the next call of `flush`."""
        self.send(child, Kind.MESSAGE, message.pack(), descriptors, later=later)

    def send(
        self,
        child: CollectorProcess,
        kind: Kind,
        payload: bytes,
        descriptors: Sequence[int] = (),
        *,
        later: bool = False,
    ) -> None:
        """Send a frame to one, unless it is dead. Descriptors stay open until they are retired."""
        if child.warm is None:
            return
        try:
            child.warm.channel.send(kind, payload, descriptors, later=later)
        except ChannelClosedError:
            return  # reading will find out
        if not later:
            self._watch(child)

    def flush(self) -> None:
        """Send what was to be sent later."""
        for child in self._children:
            if child.warm is not None and child.warm.channel.pending:
                with contextlib.suppress(ChannelClosedError):  # reading will find out
                    child.warm.channel.flush()
                    self._watch(child)

    def _watch(self, child: CollectorProcess) -> None:
        """Wake the thread to send what a collector's socket did not take."""
        assert child.warm is not None
        channel = child.warm.channel
        if channel.pending:
            self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, child)
            self._wake()

    def retire(self, descriptors: Sequence[int]) -> None:
        """Close descriptors, once they cannot wait any more to be sent."""
        self._retired += descriptors
        processes = (*self._children, *self.own)
        if not any(child.warm is not None and child.warm.channel.pending for child in processes):
            for fd in self._retired:
                os.close(fd)
            self._retired.clear()

    # The thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            events = self._selector.select(self._seconds_to_wait())
            with self._lock:
                for key, mask in events:
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    else:
                        self._attend(key.data, mask)
                now = time.monotonic()
                self._end_silent(now)
                for child in (*self._children, *self.own):
                    if child.restart_at is not None and now >= child.restart_at and not self.closing:
                        self._launch(child)
                if self.closing and all(child.warm is None for child in self._children):
                    return

    def _seconds_to_wait(self) -> float:
        processes = (*self._children, *self.own)
        waiting = [child.restart_at - time.monotonic() for child in processes if child.restart_at is not None]
        return max(min([*waiting, messages.ALIVE_SECONDS]), 0.0)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread is awake
            os.write(self._wake_write, b"\0")

    def _attend(self, child: CollectorProcess, mask: int) -> None:
        if child.warm is None:
            return  # ended while this event was on its way
        try:
            if mask & selectors.EVENT_WRITE:
                child.warm.channel.flush()
                if not child.warm.channel.pending:
                    self._selector.modify(child.warm.channel, selectors.EVENT_READ, child)
            if mask & selectors.EVENT_READ:
                frames = child.warm.channel.receive()
                if child.silence is not None:
                    child.silence.heard(time.monotonic())
                for frame in frames:
                    self._pool.received(child, frame)
        except ChannelClosedError:
            self._reap(child)

    def _end_silent(self, now: float) -> None:
        """Kill collectors that have frozen; their end is then noticed like any other."""
        for child in self.own:
            silence = child.silence
            if not isinstance(child.warm, WarmCollector) or silence is None or child.killed_after is not None:
                continue
            silence.look(now)
            timeout = START_SECONDS if child.endpoint is None else SILENCE_SECONDS
            if silence.idle > timeout or silence.total > BUSY_SECONDS:
                log.warning("collector_silent", index=child.index, seconds=silence.total, idle_seconds=silence.idle)
                child.killed_after = silence.total
                child.warm.process.kill()

    # Lives ------------------------------------------------------------------------------------------------------

    def _launch(self, child: CollectorProcess) -> None:
        """Start a collector's process, or adopt a warm one; open a place again if it can be served."""
        child.restart_at = None
        child.failure = None
        if child.edge and child is not self.reader:
            if self.reader is not None and self.reader.endpoint is not None:
                self.open_places()
            return
        if child is self.reader:
            child.warm = WarmCollector.spawn(EDGE_MODULE)
        elif child.warm is None:
            child.warm = self._spare.pop() if self._spare else WarmCollector.spawn()
        assert isinstance(child.warm, WarmCollector), "a process of this host"
        self._selector.register(child.warm.channel, selectors.EVENT_READ, child)
        child.silence = Silence(child.warm.process.pid, time.monotonic())
        child.killed_after = None
        self._pool.launched(child)

    def _reap(self, child: CollectorProcess) -> None:
        """End a collector whose channel has ended, and start it again after a pause."""
        assert child.warm is not None
        lived = time.monotonic() - child.warm.started_at
        was_place = isinstance(child.warm, PlaceLine)
        exit_code = self._end(child, 1.0)
        if was_place:
            child.failure = child.failure or "its stream ended"
        else:
            if child.killed_after is None:
                how = describe_exit(exit_code)
            else:
                how = f"it had said nothing for {child.killed_after:.0f} s, and the trainer killed it"
            child.failure = how if child.failure is None else f"{how}: {child.failure}"
        if not self.closing:
            child.generation += 1
            child.restart_at = time.monotonic() + child.backoff.pause(lived)
        if child is self.reader and self._local and not child.listened:
            self.reader = None  # what it lacks, a port or memory, it would lack again
            self._pool.has_no_reader(child)
            return
        self._pool.died(child, exit_code)
        if child is self.reader:  # one of its places may have been opened again before its own end was noticed
            # A place that is taken ends with its channel, which an edge collector of this host may hold itself.
            for place in self._children:
                if isinstance(place.warm, PlaceLine) and not place.joined:
                    self._reap(place)
            self.retire([])

    def _end(self, child: CollectorProcess, timeout: float) -> int:
        if child.warm is None:
            return 0
        if child.warm.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.warm.channel)
        exit_code = child.warm.end(timeout)
        child.warm = None
        child.endpoint = None
        return exit_code
