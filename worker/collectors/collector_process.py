"""The pool's children: collectors of this host, places for edge collectors, and the edge reader that serves those."""

import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from ludus.backoff import Backoff
from ludus.child_process import ChildProcess, describe_exit
from ludus.collector import messages
from ludus.collector.channel import Channel
from ludus.collector.silence import Silence
from worker.collectors.events import Endpoint

MODULE: Final = "worker.collectors"
"""The program of a collector; tells its process from others of the trainer."""
EDGE_MODULE: Final = "worker.collectors.edge"
"""The program of the edge reader."""
EDGE_READER: Final = -1
"""Its index; those of collectors begin at 0."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The policy's products are small: threads would cost more than they bring."""
NUMBERS: Final = 1 << 20
"""Size of a number range. Each place, and the local collectors together, own one range of simulators' numbers."""


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
        ours, theirs = socket.socketpair()
        with theirs:
            process = ChildProcess(
                [sys.executable, "-m", module, "--channel", str(theirs.fileno())],
                environment={**os.environ, **ONE_THREAD, "GRPC_ENABLE_FORK_SUPPORT": "0"},
                descriptors=(theirs.fileno(),),
                tied=True,
            )
        return cls(process, Channel(ours))

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
    @abstractmethod
    def name(self) -> str:
        """For people."""

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

    @property
    def name(self) -> str:
        """For people."""
        return "the edge reader"


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

    @property
    def name(self) -> str:
        """For people."""
        return f"collector {self.index}"

    @property
    def identity(self) -> str:
        """The id of the edge collector that serves here; empty for a collector of this host."""
        return ""

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

    @property
    def identity(self) -> str:
        """The id of the edge collector that serves here; empty while the place is free."""
        return "" if self.taken is None else self.taken.identity

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
