"""Simulators that play beside a test, and what tests ask of a pool."""

import threading

import grpc

from ludus.protocol import simulation_pb2 as pb
from tests.ludus.collector.stack import Simulator
from worker.collectors.pool import CollectorPool


class Playing:
    """A simulator that plays in a thread of its own until it is told to stop, or its stream ends."""

    def __init__(self, simulator: Simulator, agents: int) -> None:
        self.simulator = simulator
        self.answers = 0
        self.close: pb.Close | None = None
        self._agents = range(agents)
        self._stop = False
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        try:
            self.simulator.step(self._agents)
            while not self._stop:
                response = self.simulator.receive()
                if response.HasField("close"):
                    self.close = response.close
                    return
                self.answers += 1
                # Agent 0's episodes last 10 steps.
                ended = [0] if self.answers % 10 == 0 else []
                self.simulator.step(self._agents, ended=ended)
        except (StopIteration, grpc.RpcError):
            pass  # its collector died, or `stop` was called

    def stop(self) -> None:
        self._stop = True
        self.simulator.vanish()
        self._thread.join()


def pids_of(pool: CollectorPool) -> list[int]:
    return [child.process.pid for child in pool.children if child.process is not None]
