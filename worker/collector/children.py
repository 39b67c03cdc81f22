"""Collector processes as the learner sees them: started warm, told what to do later, ended for certain."""

import os
import socket
import subprocess
import sys
from typing import Self

from worker.experience.channel import Channel

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The policy's products are small: threads would cost more than they bring."""


class WarmCollector:
    """A collector process that has imported everything, or is about to, and waits for its settings.

    Start it from a thread that lives as long as the learner: the kernel kills it when that thread ends.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel) -> None:
        self.process = process
        self.channel = channel

    @classmethod
    def spawn(cls) -> Self:
        """Start a process; it needs about half a second until it can serve."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "worker.collector"),
                    *("--channel", str(theirs.fileno()), "--parent", str(os.getpid())),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            )
        return cls(process, Channel(ours))

    def close(self) -> None:
        """End it: it sees end of file, and is killed if that is not enough."""
        self.channel.close()
        self.end(1.0)

    def end(self, patience: float) -> int:
        """Wait for its exit, kill it when that takes too long, and return the exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
