"""One collector, the learner's side: its process, or the place for an edge collector that stands for one."""

import os
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from ludus.backoff import Backoff
from ludus.child_process import ChildProcess
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
"""Simulators' numbers in the range of a place, and in that of the local collectors."""


class WarmCollector:
    """A collector process that has imported everything, or is about to, and waits for its settings.

    Start it from a thread that lives as long as the learner: the kernel kills it when that thread ends.
    """

    def __init__(self, process: ChildProcess, channel: Channel) -> None:
        self.process = process
        self.channel = channel

    @property
    def started_at(self) -> float:
        """When the process was started (clock: monotonic)."""
        return self.process.started_at

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

    def end(self, timeout: float) -> int:
        """Wait for its end, kill it after `timeout` seconds, and return its exit code."""
        exit_code = self.process.end(timeout)
        self.channel.close()
        return exit_code

    def close(self) -> None:
        """End it: it sees end of file, and is killed if that is not enough."""
        self.channel.close()
        self.process.end(1.0)


class PlaceLine:
    """The pool's line to a place for an edge collector, which the edge reader serves."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.started_at = time.monotonic()

    def end(self, timeout: float) -> int:
        """Give the place up: the edge reader ends its stream. Nothing is waited for."""
        del timeout
        self.channel.close()
        return 0


@dataclass(slots=True)
class CollectorProcess:
    """One collector, over all of its processes."""

    index: int
    edge: bool = False
    """Whether this is a place for an edge collector, or the edge reader, instead of a collector of this host."""
    generation: int = 0
    """Counts its processes; of a place: the edge collectors that had it."""
    warm: WarmCollector | PlaceLine | None = None
    endpoint: Endpoint | None = None
    """Where it listens; None while it starts, and while a place is free."""
    failure: str | None = None
    """Why its process ends or has ended; None while it serves."""
    simulators: dict[str, messages.SimulatorConnected] = field(default_factory=dict)
    numbers: range = range(NUMBERS)
    """Numbers that its simulators may have."""
    first_number: int = 0
    """Number of the next simulator that comes without a ticket."""
    number_step: int = 1
    """Distance to the one after it."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 10.0, immediate=1))
    restart_at: float | None = None
    silence: Silence | None = None
    """Of its process."""
    killed_after: float | None = None
    """Seconds of silence after which its process was killed; None: it was not."""
    taken: messages.PlaceTaken | None = None
    """The edge collector that has the place."""
    joined: bool = False
    """Whether that has begun to collect."""
    former: str = ""
    """Identity of the edge collector that had the place in the former attempt and left snapshots there."""
    listened: bool = False
    """Whether any process of it has ever served."""
    reported: str | None = None
    """The failure to start that was reported last: a process that fails again in the same way is not news."""
    parameter_set: int = 0
    """Number of the environment parameters that its process was started with."""

    @property
    def name(self) -> str:
        """For people."""
        return "the edge reader" if self.index == EDGE_READER else f"collector {self.index}"

    @property
    def identity(self) -> str:
        """Return the id of the edge collector that serves here; empty for a collector of this host."""
        return "" if self.taken is None else self.taken.identity

    def number_after(self, numbers: Iterable[int]) -> None:
        """Set the number of the next simulator to one after these.

        Of a place only the lower half counts: it has more numbers than simulators will ever come, and a stranger that
        names the last one must not push others out of the range.
        """
        counted = self.numbers[: NUMBERS // 2] if self.edge else self.numbers
        for number in numbers:
            if number in counted:
                self.first_number = max(self.first_number, number + self.number_step)
