"""Collector processes, the learner's side: started ahead of time, configured later, watched, and always ended.

The pool decides which messages they get, and handles those that they send.
"""

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import psutil
import structlog

from ludus.backoff import Backoff
from ludus.child_process import ChildProcess, describe_exit
from ludus.collector import commands, messages
from ludus.collector.channel import Channel, ChannelClosedError, Frame
from ludus.collector.messages import Kind, Message
from worker.collectors.events import Endpoint

log = structlog.get_logger()

MODULE: Final = "worker.collectors"
"""The program of a collector; tells its process from others of the trainer."""
EDGE_MODULE: Final = "worker.collectors.edge.reader"
"""The program of the edge reader."""
EDGE_READER: Final = -1
"""Its index; those of collectors begin at 0."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The policy's products are small: threads would cost more than they bring."""
NUMBERS: Final = 1 << 20
"""Size of a number range. Each place, and the local collectors together, own one range of simulators' numbers."""


LOOK_SECONDS = 1.0
"""How often the process is measured while it is silent."""
LONGEST_LOOK_SECONDS = 2 * LOOK_SECONDS
"""More time between two looks is not counted: the process that looks did not run meanwhile."""
_WANTS_TO_RUN = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP}
"""States of a process that waits for a processor, or for memory or files from a disk."""


class Silence:
    """The time in which a process that should send a message every second has sent none, although it could have.

    On a busy machine a healthy collector may get no processor for a while, or wait for its memory to be paged in; and
    the trainer that listens may not run itself. None of that is the silence of a process that has frozen. All times are
    of the same monotonic clock.
    """

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._looked = now
        self._processor_seconds: float | None = None
        """Processor time that it had used at the last look; None before the first one of a silence."""
        self.total = 0.0
        """Seconds without a message."""
        self.idle = 0.0
        """Those of them in which it neither used nor wanted a processor."""

    def heard(self, now: float) -> None:
        """Record a sign of life."""
        self._looked = now
        self._processor_seconds = None
        self.total = self.idle = 0.0

    def look(self, now: float) -> None:
        """Count the time since the last look, if it is time to look again."""
        if now - self._looked < LOOK_SECONDS:
            return
        elapsed = min(now - self._looked, LONGEST_LOOK_SECONDS)
        self._looked = now
        self.total += elapsed
        try:
            process = psutil.Process(self._pid)
            times, status = process.cpu_times(), process.status()
        except psutil.NoSuchProcess:
            return  # the end of its channel says so
        used = times.user + times.system
        if used == self._processor_seconds and status not in _WANTS_TO_RUN:
            self.idle += elapsed
        self._processor_seconds = used


class WarmCollector:
    """A collector process that has imported everything, or is about to, and waits for its settings.

    Start it from a thread that lives as long as the learner: the kernel kills it when that thread ends.
    """

    def __init__(self, process: ChildProcess, channel: Channel) -> None:
        self.process = process
        self.channel = channel

    @classmethod
    def spawn(cls, module: str = MODULE) -> Self:
        """Start a process; it needs about half a second until it can serve."""
        pool_end, child_end = socket.socketpair()
        with child_end:
            process = ChildProcess(
                [sys.executable, "-m", module, "--channel", str(child_end.fileno())],
                environment={**os.environ, **ONE_THREAD, "GRPC_ENABLE_FORK_SUPPORT": "0"},
                descriptors=(child_end.fileno(),),
                tied=True,
            )
        return cls(process, Channel(pool_end))

    def close(self) -> None:
        """End it: it sees end of file, and is killed if that is not enough."""
        self.channel.close()
        self.process.end(1.0)


@dataclass
class Child(ABC):
    """Another end of a channel of the pool: a process or a place. When it ends, it is started or opened again."""

    index: int
    generation: int = 0
    """Counts its processes; of a place: the edge collectors that had it."""
    channel: Channel | None = None
    """None while there is no process, or the place is closed."""
    started_at: float = 0.0
    """When the process was started, or the place opened (clock: monotonic)."""
    endpoint: Endpoint | None = None
    """Where it listens; None while it starts, and while a place is free."""
    failure: str | None = None
    """Why it ends or has ended; None while it serves."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 10.0, immediate=1))
    restart_at: float | None = None
    has_served: bool = False
    """Whether any process of it, or collector that had the place, has ever listened."""

    @property
    def name(self) -> str:
        """For people."""
        return "the edge reader" if self.index == EDGE_READER else f"collector {self.index}"

    @abstractmethod
    def end(self, timeout: float) -> int:
        """End it for certain, after `timeout` seconds at most; return the exit code of its process, or 0."""

    @abstractmethod
    def explain_end(self, exit_code: int) -> str:
        """Return why it has ended."""


@dataclass
class HostProcess(Child):
    """A process of this host."""

    process: ChildProcess | None = None
    silence: Silence | None = None
    """Of the process."""
    killed_after: float | None = None
    """Seconds of silence after which the process was killed; None: it was not."""
    reported: str | None = None
    """The failure to start that was reported last: a process that fails again in the same way is not news."""

    def adopt(self, warm: WarmCollector) -> Channel:
        """Go on with a process that waits for its settings; return its channel."""
        self.process, self.channel, self.started_at = warm.process, warm.channel, warm.process.started_at
        self.silence, self.killed_after = Silence(warm.process.pid, time.monotonic()), None
        return self.channel

    def end(self, timeout: float) -> int:
        """Wait for the end of the process, kill it after `timeout` seconds, and return its exit code."""
        assert self.process is not None, "what has a channel has a process"
        assert self.channel is not None, "what has ended is not ended again"
        exit_code = self.process.end(timeout)
        self.channel.close()
        self.process = self.channel = self.endpoint = None
        return exit_code

    def explain_end(self, exit_code: int) -> str:
        """Return how the process ended, and its last error."""
        how = describe_exit(exit_code)
        if self.killed_after is not None:
            how = f"it had said nothing for {self.killed_after:.0f} s, and the trainer killed it"
        return how if self.failure is None else f"{how}: {self.failure}"


@dataclass
class EdgeReader(HostProcess):
    """The process that edge collectors stream to. It serves the places."""

    index: int = EDGE_READER


@dataclass
class Collector(Child):
    """A collector, over all of its processes: it serves simulators."""

    simulators: dict[str, messages.SimulatorConnected] = field(default_factory=dict)
    """By session id."""
    numbers: range = range(NUMBERS)
    """Numbers that its simulators may have."""
    first_number: int = 0
    """Number of the next simulator that comes without a ticket."""
    number_step: int = 1
    """Distance to the one after it."""
    parameter_set: int = 0
    """Number of the environment parameters that it was started with."""
    identity: str = ""
    """The id of the edge collector that serves here; empty for a collector of this host, and while a place is free."""

    def number_after(self, numbers: Iterable[int]) -> None:
        """Set the number of the next simulator to one after these."""
        for number in numbers:
            if number in self.numbers:
                self.first_number = max(self.first_number, number + self.number_step)


@dataclass
class LocalCollector(HostProcess, Collector):
    """A collector of this host."""


@dataclass
class EdgePlace(Collector):
    """A place for an edge collector, which the edge reader serves."""

    taken: messages.PlaceTaken | None = None
    """The edge collector that has the place."""
    joined: bool = False
    """Whether that has begun to collect."""
    former: str = ""
    """Identity of the edge collector that had the place in the former attempt and left snapshots there."""

    def take(self, taken: messages.PlaceTaken | None) -> None:
        """Give the place to an edge collector, or set it free."""
        self.taken, self.identity, self.joined = taken, "" if taken is None else taken.identity, False

    def open(self) -> tuple[Channel, int]:
        """Open the place: return the pool's channel, and the descriptor of its other end, which is the reader's."""
        pool_end, reader_end = socket.socketpair()
        self.channel, self.started_at, self.failure = Channel(pool_end), time.monotonic(), None
        return self.channel, reader_end.detach()

    def end(self, timeout: float) -> int:
        """Give the place up: the edge reader ends its stream. Nothing is waited for."""
        del timeout
        assert self.channel is not None, "what has ended is not ended again"
        self.channel.close()
        self.channel = self.endpoint = None
        return 0

    def explain_end(self, exit_code: int) -> str:
        """Return why the stream of the edge collector has ended."""
        del exit_code
        return self.failure or "its stream ended"

    def number_after(self, numbers: Iterable[int]) -> None:
        """Set the number of the next simulator to one after these, if they are in the lower half of the range.

        A place has more numbers than simulators will ever come, and a stranger that names the last one must not push
        others out of the range.
        """
        lower_half = self.numbers[: NUMBERS // 2]
        super().number_after(number for number in numbers if number in lower_half)


CLOSE_SECONDS = 5.0
START_SECONDS = 30.0
"""How long a collector may take until it listens."""
SILENCE_SECONDS = 30.0
"""A collector that has sent nothing and used no CPU for so long has frozen (`Silence.idle`)."""
BUSY_SECONDS = 300.0
"""One that has sent nothing for so long will not send again, however busy it is."""


@dataclass(frozen=True, slots=True)
class ChildListener:
    """Functions that are called with the lock held when something has happened to a child."""

    launched: Callable[[Child], None]
    """Its process was started, and waits for settings."""
    received: Callable[[Child, Frame], None]
    died: Callable[[Child, int], None]
    """It has ended, with this exit code. An edge reader that could not be started is not started again."""


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
        listener: ChildListener,
        lock: threading.Condition,
    ) -> None:
        """`count` collectors, of which the last `edge_places` are places for edge collectors."""
        self._listener = listener
        self._lock = lock
        self._local = local = count - edge_places
        self._children: list[Collector] = [LocalCollector(index) for index in range(local)]
        self._children += [EdgePlace(index) for index in range(local, count)]
        self.number_from()
        self.reader = None if local else EdgeReader()
        """The process that serves the places; None before `start_reader`, where games can connect without them."""
        self._warm = deque(warm)
        """Processes that wait for settings."""
        self._retired: list[int] = []
        """Descriptors that may still wait to be sent."""
        self.closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="collector-pool", daemon=True)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Collector]:
        return iter(self._children)

    def __getitem__(self, index: int) -> Collector:
        return self._children[index]

    @property
    def of_host(self) -> list[HostProcess]:
        """The processes of this host: local collectors, and the edge reader."""
        return [child for child in self._everything if isinstance(child, HostProcess)]

    @property
    def places(self) -> list[EdgePlace]:
        """The places for edge collectors."""
        return [child for child in self._children if isinstance(child, EdgePlace)]

    @property
    def listening(self) -> list[Collector]:
        """Those that serve simulators."""
        return [child for child in self._children if child.endpoint is not None]

    @property
    def _everything(self) -> list[Child]:
        return [*self._children, *([] if self.reader is None else [self.reader])]

    def number_from(self, taken: Sequence[int] = ()) -> None:
        """Set the first number of simulators that each will have; no two have one in common, none is taken.

        Local collectors share a range, where the gateway counts too; each place has a range of its own.
        """
        for child in self._children:
            is_place = isinstance(child, EdgePlace)
            begin = (child.index - self._local + bool(self._local)) * NUMBERS if is_place else 0
            child.numbers, child.first_number, child.number_step = range(begin, begin + NUMBERS), begin, 1
            child.number_after(taken)
            if not is_place:
                child.number_step = self._local
                child.first_number += (child.index - child.first_number) % self._local

    def start(self) -> None:
        """Start the processes, and serve them."""
        with self._lock:
            for child in self.of_host:
                self.launch(child)
            self._thread.start()

    def start_reader(self) -> None:
        """Start the edge reader, unless it was started before. The thread does it: the process ends with that."""
        if self.reader is None:
            self.reader = EdgeReader(restart_at=time.monotonic())
            self._wake()

    def open_places(self) -> None:
        """Open each place that is closed; the edge reader listens."""
        assert self.reader is not None, "places are the edge reader's"
        for place in self.places:
            if place.channel is None and place.restart_at is None and not self.closing:
                channel, fd = place.open()
                self._selector.register(channel, selectors.EVENT_READ, place)
                self.send_message(self.reader, commands.OpenPlace(place.index, place.former), (fd,))
                self.retire([fd])

    def close(self, farewell: Message) -> None:
        """Send `farewell` to those that listen, and end all processes for certain."""
        with self._lock:
            self.closing = True
            self.broadcast(farewell)
            for child in self._everything:
                if child.endpoint is None:
                    self._end(child, 0.0)
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for child in self._everything:
                self._end(child, 0.0)
        if self._thread.ident is not None:
            self._wake()
            self._thread.join()
        for warm in self._warm:
            warm.close()
        for fd in self._retired:
            os.close(fd)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def broadcast(self, message: Message) -> None:
        """Send a message to all that listen."""
        for child in self.listening:
            self.send_message(child, message)

    def send_message(
        self, child: Child, message: Message, descriptors: Sequence[int] = (), *, later: bool = False
    ) -> None:
        """Send a message to one. `later`: with the next one, or with the next call of `flush`."""
        self.send(child, Kind.MESSAGE, message.pack(), descriptors, later=later)

    def send(
        self,
        child: Child,
        kind: Kind,
        payload: bytes,
        descriptors: Sequence[int] = (),
        *,
        later: bool = False,
    ) -> None:
        """Send a frame to one, unless it is dead. Descriptors stay open until they are retired."""
        if child.channel is None:
            return
        try:
            child.channel.send(kind, payload, descriptors, later=later)
        except ChannelClosedError:
            return  # reading will find out
        if not later:
            self._watch(child)

    def flush(self) -> None:
        """Send what was to be sent later."""
        for child in self._children:
            if child.channel is not None and child.channel.pending:
                with contextlib.suppress(ChannelClosedError):  # reading will find out
                    child.channel.flush()
                    self._watch(child)

    def _watch(self, child: Child) -> None:
        """Wake the thread to send what a collector's socket did not take."""
        if child.channel is not None and child.channel.pending:
            self._selector.modify(child.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, child)
            self._wake()

    def retire(self, descriptors: Sequence[int]) -> None:
        """Close descriptors, once they cannot wait any more to be sent."""
        self._retired += descriptors
        if not any(child.channel is not None and child.channel.pending for child in self._everything):
            for fd in self._retired:
                os.close(fd)
            self._retired.clear()

    def _serve(self) -> None:
        while True:
            pauses = [child.restart_at - time.monotonic() for child in self._everything if child.restart_at is not None]
            events = self._selector.select(max(min([*pauses, messages.ALIVE_SECONDS]), 0.0))
            with self._lock:
                for key, mask in events:
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    else:
                        self._attend(key.data, mask)
                now = time.monotonic()
                self._end_silent(now)
                for child in self._everything:
                    if child.restart_at is not None and now >= child.restart_at and not self.closing:
                        self.launch(child)
                if self.closing and all(child.channel is None for child in self._children):
                    return

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread is awake
            os.write(self._wake_write, b"\0")

    def _attend(self, child: Child, mask: int) -> None:
        channel = child.channel
        if channel is None:
            return  # ended while this event was on its way
        try:
            if mask & selectors.EVENT_WRITE:
                channel.flush()
                if not channel.pending:
                    self._selector.modify(channel, selectors.EVENT_READ, child)
            if mask & selectors.EVENT_READ:
                frames = channel.receive()
                if isinstance(child, HostProcess) and child.silence is not None:
                    child.silence.heard(time.monotonic())
                for frame in frames:
                    self._listener.received(child, frame)
        except ChannelClosedError:
            self.reap(child)

    def _end_silent(self, now: float) -> None:
        """Kill collectors that have frozen; their end is then noticed like any other."""
        for child in self.of_host:
            silence = child.silence
            if child.process is None or silence is None or child.killed_after is not None:
                continue
            silence.look(now)
            timeout = START_SECONDS if child.endpoint is None else SILENCE_SECONDS
            if silence.idle > timeout or silence.total > BUSY_SECONDS:
                log.warning("collector_silent", index=child.index, seconds=silence.total, idle_seconds=silence.idle)
                child.killed_after = silence.total
                child.process.kill()

    def launch(self, child: Child) -> None:
        """Start a process, or adopt a warm one; open a place again if it can be served."""
        child.restart_at = child.failure = None
        if not isinstance(child, HostProcess):
            if self.reader is not None and self.reader.endpoint is not None:
                self.open_places()
            return
        if isinstance(child, EdgeReader):
            warm = WarmCollector.spawn(EDGE_MODULE)
        else:
            warm = self._warm.popleft() if self._warm else WarmCollector.spawn()
        self._selector.register(child.adopt(warm), selectors.EVENT_READ, child)
        self._listener.launched(child)

    def reap(self, child: Child) -> None:
        """End what has lost its channel, and start it again after a pause."""
        lived = time.monotonic() - child.started_at
        exit_code = self._end(child, 1.0)
        child.failure = child.explain_end(exit_code)
        if not self.closing:
            child.generation += 1
            child.restart_at = time.monotonic() + child.backoff.pause(lived)
        if isinstance(child, EdgeReader) and self._local and not child.has_served:
            self.reader = None  # what it lacks, a port or memory, it would lack again
        self._listener.died(child, exit_code)
        if isinstance(child, EdgeReader):  # one of its places may have been opened again before its end was noticed
            # A place that is taken ends with its channel, which an edge collector of this host may hold itself.
            for place in self.places:
                if place.channel is not None and not place.joined:
                    self.reap(place)
            self.retire([])

    def _end(self, child: Child, timeout: float) -> int:
        if child.channel is None:
            return 0
        if child.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.channel)
        return child.end(timeout)
