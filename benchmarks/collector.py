"""Collector without learning, against a bare grpc.aio stream echo of the same bytes.

    python benchmarks/collector.py [--seconds 2] [--rounds 5] [--json FILE] [--only NAME]

Both servers are processes of their own, and so is the client: a raw grpc.aio client that sends messages built
beforehand, each as soon as the answer to the previous one has arrived: the figures measure the server and the
transport. Echo and collector run in turn (A B A B ...) against the same client code; the figures are medians, and the
result is their ratio. The collector does all of its work: it checks, acts with a 2 x 128 network (or one that sees
pictures, or has a memory), writes the arena, cuts segments, and its pool (in this process) takes them and grants rounds
of 12,000 steps.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import torch
import uvloop

from ludus.collector.arena import Arena
from ludus.collector.commands import PolicySpec
from ludus.collector.messages import BehaviorAnnounced
from ludus.collector.service import METHOD
from ludus.collector.settings import CollectorSettings
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import array_to_tensor
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import spec_to_message
from worker.collectors.events import RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool
from worker.learning.networks.actor import Actor
from worker.onnx.graph import acting_graph

NETWORK = NetworkSettings(hidden_units=128, num_layers=2, normalize=True)
ROUND = 12_000
HORIZON = 64
EPISODE = 50
"""Messages from one end of an agent's episode to the next."""
MEMORY = NETWORK.model_copy(update={"memory": MemorySettings(memory_size=128)})
DISCRETE = BehaviorSpec("Bench", (ObservationSpec((4,)),), ActionSpec(0, (2,)))
CONTINUOUS = BehaviorSpec("Bench", (ObservationSpec((8,)),), ActionSpec(2))
PICTURE = BehaviorSpec("Bench", (ObservationSpec((3, 84, 84), dtype="uint8"),), ActionSpec(0, (2,)))


@dataclass(frozen=True)
class Scenario:
    """Number and form of the simulators."""

    name: str
    simulators: int
    agents: int
    spec: BehaviorSpec
    frozen: int = 0
    """Simulators that take an action and never come back."""
    network: NetworkSettings = NETWORK
    round: int = ROUND
    """Steps."""
    rate: int = 0
    """Messages of a simulator in a second, at most; 0: by their number."""


SCENARIOS = (
    Scenario("1 x 12 discrete", 1, 12, DISCRETE),
    Scenario("1 x 12 continuous", 1, 12, CONTINUOUS),
    Scenario("1 x 64 discrete", 1, 64, DISCRETE),
    Scenario("16 x 1 discrete", 16, 1, DISCRETE),
    Scenario("16 x 12 discrete", 16, 12, DISCRETE),
    Scenario("256 x 1, one frozen", 256, 1, DISCRETE, frozen=1),
    Scenario("1 x 4 pictures", 1, 4, PICTURE, round=1_000, rate=2_500),
    Scenario("1 x 12 memory", 1, 12, CONTINUOUS, network=MEMORY),
)


@dataclass(frozen=True)
class Result:
    """Medians over the turns."""

    scenario: str
    echo: float
    """Messages per second."""
    collector: float
    """Messages per second."""
    ratio: float
    slowest: float
    """Messages of the slowest simulator that was served, as a share of the median one's."""


# Servers -----------------------------------------------------------------------------------------------------------


async def _echo(_: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
        await context.write(message)


class _EchoHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no class can be subscripted here
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        return grpc.stream_stream_rpc_method_handler(_echo)


async def _serve_echo(port: Any) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_EchoHandler(),))
    port.value = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.wait_for_termination()


def _run_echo(port: Any) -> None:
    uvloop.run(_serve_echo(port))


# Client ------------------------------------------------------------------------------------------------------------


def _messages(scenario: Scenario, count: int) -> list[bytes]:
    """Build steps: every agent decides, and now and then one of them ends an episode and begins the next."""
    rng = np.random.default_rng(1)
    agents, spec = scenario.agents, scenario.spec
    ids = np.arange(agents, dtype=np.int32)
    (observed,) = spec.observations
    built = []
    for step in range(1, count + 1):
        if observed.dtype == "uint8":
            observations: npt.NDArray[Any] = rng.integers(0, 256, (agents, *observed.shape), np.uint8)
        else:
            observations = rng.standard_normal((agents, *observed.shape), np.float32)
        part = pb.BehaviorStep(
            behavior=spec.name,
            decisions=pb.DecisionSteps(
                agent_ids=ids.tobytes(),
                rewards=np.ones(agents, np.float32).tobytes(),
                observations=[array_to_tensor(observations)],
            ),
        )
        ending = ids[(ids * EPISODE // agents - step) % EPISODE == 0] if step > 1 else ids[:0]
        if len(ending):
            part.terminals.CopyFrom(
                pb.TerminalSteps(
                    agent_ids=ending.tobytes(),
                    rewards=np.ones(len(ending), np.float32).tobytes(),
                    observations=[array_to_tensor(observations[ending])],
                    truncated=bytes(len(ending)),
                )
            )
        built.append(pb.ConnectRequest(step=pb.Step(step_id=step, behaviors=[part])).SerializeToString())
    return built


@dataclass
class _Window:
    """When messages count: from the moment that every simulator has been answered once."""

    seconds: float
    barrier: asyncio.Barrier
    begin: float = math.inf

    async def open(self) -> None:
        """Wait for the others."""
        await self.barrier.wait()
        self.begin = min(self.begin, time.monotonic())

    @property
    def end(self) -> float:
        """When the last message counts."""
        return self.begin + self.seconds


async def _simulate(port: int, hello: bytes | None, messages: list[bytes], window: _Window, *, frozen: bool) -> int:
    """Exchange messages and return how many were answered within the window."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, as a process of its own would have
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call: Any = channel.stream_stream(METHOD)()  # type: ignore[call-arg]  # the stubs want serializers
        first = messages[0]
        if hello is not None:
            await call.write(hello)
            await call.read()
        await call.write(first)
        answer = await call.read()
        if hello is not None:
            while pb.ConnectResponse.FromString(answer).WhichOneof("message") == "wait":
                answer = await call.read()
            assert pb.ConnectResponse.FromString(answer).HasField("actions"), answer
        await window.open()
        if frozen:
            await asyncio.sleep(window.seconds)
            return 0
        end = window.end
        for counted, message in enumerate(messages[1:]):
            await call.write(message)
            await call.read()
            if time.monotonic() >= end:
                return counted
        raise RuntimeError("too few messages were built; lower --seconds")


async def _client(scenario: Scenario, port: int, *, greet: bool, messages: list[bytes], seconds: float) -> list[int]:
    tag = os.urandom(4).hex()
    window = _Window(seconds, asyncio.Barrier(scenario.simulators))

    def hello(number: int) -> bytes:
        message = pb.Hello(protocol_version=1, session_id=f"{tag}-{number}", behaviors=[spec_to_message(scenario.spec)])
        return pb.ConnectRequest(hello=message).SerializeToString()

    return await asyncio.gather(
        *(
            _simulate(
                port, hello(number) if greet else None, messages, window, frozen=greet and number < scenario.frozen
            )
            for number in range(scenario.simulators)
        )
    )


def run_client(scenario: Scenario, turns: Any, answers: Any, seconds: float) -> None:
    """Play on request, in a process of its own: receives (port, whether to send Hello), returns counts of answers."""
    rate = scenario.rate or (12_000 if scenario.simulators == 1 else 30_000 // scenario.simulators + 1_000)
    messages = _messages(scenario, int(rate * (seconds + 2)))
    answers.send("ready")
    while (turn := turns.recv()) is not None:
        port, greet = turn
        answers.send(uvloop.run(_client(scenario, port, greet=greet, messages=messages, seconds=seconds)))


# Measuring ---------------------------------------------------------------------------------------------------------


class Bench:
    """One scenario's servers and client."""

    def __init__(self, scenario: Scenario, seconds: float, settings: CollectorSettings | None = None) -> None:
        self.scenario = scenario
        context = multiprocessing.get_context("spawn")
        port = context.Value("i", 0)
        self._echo = context.Process(target=_run_echo, args=(port,), daemon=True)
        self._echo.start()
        self._pool = CollectorPool(settings or CollectorSettings("bench", 1, 7))
        self.collector_port = self._pool.start()[0].port
        self._ticks, theirs = context.Pipe()
        self._answers, ours = context.Pipe(duplex=False)
        self._client = context.Process(target=run_client, args=(scenario, theirs, ours, seconds), daemon=True)
        self._client.start()
        self._answers.recv()
        self.echo_port = port.value
        generator = torch.Generator().manual_seed(0)
        self._actor = Actor(scenario.spec, scenario.network, generator)
        self._arena = Arena.create(scenario.spec, 2 * scenario.round, memory_size=self._actor.memory_size)
        self._round = 0

    def turn(self, *, collector: bool) -> list[int]:
        """Run the client against one of the servers and return each simulator's answered messages."""
        self._ticks.send((self.collector_port if collector else self.echo_port, collector))
        while not self._answers.poll(0):
            for notice in self._pool.poll(0.05):
                self._handle(notice)
        counts: list[int] = self._answers.recv()
        return counts

    def _handle(self, notice: object) -> None:
        name = self.scenario.spec.behavior
        match notice:
            case BehaviorAnnounced():
                weights = self._actor.flatten()
                policy = PolicySpec(self.scenario.network, weights.size, HORIZON, graph=acting_graph(self._actor))
                self._pool.admit(notice.spec, policy, self._arena)
                self._pool.publish(name, 1, weights)
                self._pool.grant(name, self._round, self.scenario.round)
            case SegmentsDelivered():
                self._pool.reclaim(name, notice.segments)
            case RoundCollected():
                self._round += 1
                self._pool.grant(name, self._round, self.scenario.round)

    def close(self) -> None:
        """End every process."""
        self._ticks.send(None)
        self._pool.close("run_finished", "the benchmark is over", rejoin=False)
        self._echo.kill()
        self._client.join()


def measure(scenario: Scenario, seconds: float, rounds: int) -> Result:
    """Take turns between echo and collector."""
    bench = Bench(scenario, seconds)
    try:
        bench.turn(collector=True)  # admission and warm-up
        echo, collector, slowest = [], [], []
        for _ in range(rounds):
            echo.append(sum(bench.turn(collector=False)) / seconds)
            counts = bench.turn(collector=True)
            collector.append(sum(counts) / seconds)
            served = sorted(counts[scenario.frozen :])
            slowest.append(served[0] / max(statistics.median(served), 1))
    finally:
        bench.close()
    ratio = statistics.median(b / a for a, b in zip(echo, collector, strict=True))
    return Result(
        scenario.name, statistics.median(echo), statistics.median(collector), ratio, statistics.median(slowest)
    )


def main() -> None:
    """Measure every scenario and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    results = []
    print(f"{'simulators x agents':<22}{'echo msg/s':>12}{'collector':>12}{'ratio':>8}{'slowest/median':>16}")
    for scenario in SCENARIOS:
        if arguments.only in scenario.name:
            result = measure(scenario, arguments.seconds, arguments.rounds)
            results.append(result)
            print(
                f"{result.scenario:<22}{result.echo:>12.0f}{result.collector:>12.0f}{result.ratio:>8.2f}"
                f"{result.slowest:>16.2f}",
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
