"""A real pool with real collector processes, a learner that grants rounds, and simulators that speak gRPC.

Beside them: edge collectors in threads of the test, which the pool's edge reader serves and simulators dial.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import torch

from ludus.collector.arena import Arena
from ludus.collector.commands import NetworkSpec, OpponentAssignment, PolicySpec
from ludus.collector.edge import EdgeCollector
from ludus.collector.messages import BehaviorAnnounced
from ludus.collector.service import METHOD
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.state import State
from ludus.config.network import NetworkSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import array_to_tensor
from ludus.protocol.options import COLLECTOR_SERVICE, SESSION_ID_METADATA, TICKET_METADATA
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import spec_to_message
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target
from tests.segments import columns_of, rows_of
from worker.collectors.acting import POLICIES
from worker.collectors.events import CollectorEvent, RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool
from worker.experience.rollout import Rollout, gather
from worker.learning.networks.actor import Actor
from worker.onnx.graph import acting_graph

SPEC = BehaviorSpec("Cart", (ObservationSpec((4,)),), ActionSpec(0, (2,)))
NETWORK = NetworkSettings(hidden_units=8, num_layers=1)
PATIENCE = 20.0
STREAM_SECONDS = 6 * PATIENCE
"""How long a simulator may play: longer than a test waits for anything, so that what a test waits for says what failed.
"""

NoticeT = TypeVar("NoticeT")
_session_ids = itertools.count()
_simulators: list["Simulator"] = []
"""Those whose learner has not ended, oldest first."""


class Learner:
    """Admits every behavior, grants rounds, and remembers what it was told."""

    def __init__(
        self,
        settings: CollectorSettings,
        *,
        size: int = 48,
        horizon: int = 16,
        lockstep: bool = True,
        network: NetworkSettings = NETWORK,
        head: str = "gaussian",
        device: str = "cpu",
        assignment: OpponentAssignment | None = None,
        policies: Mapping[int, npt.NDArray[np.float32]] | None = None,
        kept: Sequence[State] = (),
        evaluated: bool = False,
        ahead: int | None = None,
    ) -> None:
        """With `opposition` behaviors are in self-play from their admission on; `policies` are the weights it names.

        Without them all opponents play what the policy that learns begins with. `evaluated`: nothing is learned.
        """
        self.evaluated = evaluated
        self.ahead = ahead
        self.assignment = assignment
        self.policies = policies or {}
        self.pool = CollectorPool(settings)
        self.size = size
        self.horizon = horizon
        self.network = network
        self.head = head
        self.device = device
        self.lockstep = lockstep
        """Grant the next round as soon as one is collected; else tests grant."""
        self.refusals: dict[str, tuple[str, str]] = {}
        self.configured: set[str] | None = None
        """Behaviors that are admitted; None = all."""
        self.held: set[str] = set()
        """Behaviors whose agents get only what the test grants."""
        self.events: list[CollectorEvent] = []
        self.rollouts: dict[int, list[Rollout]] = {}
        """By round."""
        self.delivered: dict[str, list[Rollout]] = {}
        """By behavior: a rollout of each segment, in the order of their arrival."""
        self.arenas: dict[str, Arena] = {}
        self.pool.restore(kept)
        self.endpoints = self.pool.start()
        self.heard_one = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop:
            for notice in self.pool.poll(0.05):
                with self.heard_one:
                    self._handle(notice)
                    self.events.append(notice)
                    self.heard_one.notify_all()

    def _handle(self, notice: CollectorEvent) -> None:
        match notice:
            case BehaviorAnnounced():
                self._decide(notice.spec)
            case SegmentsDelivered():
                for segment in rows_of(notice.segments):
                    rollout = gather(self.arenas[notice.behavior], columns_of([segment]))
                    self.rollouts.setdefault(segment.round, []).append(rollout)
                    self.delivered.setdefault(notice.behavior, []).append(rollout)
                self.pool.reclaim(notice.behavior, notice.segments)
            case RoundCollected() if self.lockstep and notice.behavior not in self.held:
                following = notice.round + 1
                spec = self.arenas[notice.behavior].layout.spec
                self.pool.publish(notice.behavior, following + 1, self.weights(spec))
                self.pool.grant(notice.behavior, following, self.size, self.ahead)

    def _decide(self, spec: BehaviorSpec) -> None:
        if spec.behavior in self.refusals:
            self.pool.refuse(spec.behavior, *self.refusals[spec.behavior])
            return
        if self.configured is not None and spec.behavior not in self.configured:
            self.pool.refuse(spec.behavior, "behavior_not_configured", "the run's configuration has no such behavior")
            return
        actor = self._actor(spec)
        graph = acting_graph(actor)
        arena = self.arenas[spec.behavior] = Arena.create(spec, 4 * self.size, memory_size=actor.memory_size)
        program = PolicySpec(
            self.network,
            actor.flat_size,
            self.horizon,
            self.head,
            device=self.device,
            graph=graph,
            self_play=self.assignment is not None,
            evaluated=(NetworkSpec(self.network, self.head, graph),) if self.evaluated else (),
        )
        if self.evaluated:
            self.pool.admit(spec, program, arena, [self.weights(spec)])
            return
        self.pool.admit(spec, program, arena)
        if self.assignment is not None:
            own = self.weights(spec)
            policies = self.policies or dict.fromkeys(self.assignment.keys, own)
            self.pool.assign_opponents(spec.behavior, self.assignment, policies)
        self.pool.publish(spec.behavior, 1, self.weights(spec))
        if spec.behavior not in self.held:
            self.pool.grant(spec.behavior, 0, self.size, self.ahead)

    def weights(self, spec: BehaviorSpec) -> npt.NDArray[np.float32]:
        return np.random.default_rng(3).standard_normal(self._actor(spec).flat_size, np.float32) / 4

    def _actor(self, spec: BehaviorSpec) -> Actor:
        return Actor(spec, self.network, torch.Generator(), head=self.head)

    def heard(self, kind: type[NoticeT]) -> list[NoticeT]:
        with self.heard_one:
            return [notice for notice in self.events if isinstance(notice, kind)]

    def wait_for(self, kind: type[NoticeT], such_that: Callable[[NoticeT], bool] = lambda _: True) -> NoticeT:
        """Return the first notice of a kind, past ones included, that satisfies a condition."""
        deadline = time.monotonic() + PATIENCE
        with self.heard_one:
            while True:
                for notice in self.events:
                    if isinstance(notice, kind) and such_that(notice):
                        return notice
                assert self.heard_one.wait(deadline - time.monotonic()), f"no {kind.__name__} in {self.events}"

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; looked at with every notice."""
        deadline = time.monotonic() + PATIENCE
        with self.heard_one:
            while not condition():
                assert self.heard_one.wait(deadline - time.monotonic()), f"not so, after {self.events[-3:]}"

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self.pool.close("run_finished", "the test is over", rejoin=False)
        for arena in self.arenas.values():
            arena.close()


@contextmanager
def learner(**settings: object) -> Iterator[Learner]:
    """Start a learner; keywords of `Learner` and of `CollectorSettings` both. Its simulators leave at its end."""
    keys = ("size", "horizon", "lockstep", "network", "head", "device", "assignment", "policies", "kept", "evaluated")
    own = {key: settings.pop(key) for key in (*keys, "ahead") if key in settings}
    it = Learner(CollectorSettings("run-1", 1, 7, **settings), **own)  # type: ignore[arg-type]  # by name
    older = len(_simulators)
    try:
        yield it
    finally:
        while len(_simulators) > older:
            _simulators.pop().leave()
        it.close()


class Simulator:
    """A client that sends what it is told to, right or wrong."""

    def __init__(self, address: str, session_id: str | None = None, *, ticket: str | None = None) -> None:
        """`ticket` goes into the metadata of the stream."""
        self.session_id = session_id or f"session-{next(_session_ids)}"
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        metadata = None if ticket is None else ((TICKET_METADATA, ticket),)
        outgoing = iter(self._outgoing.get, None)
        self._call = self._channel.stream_stream(METHOD)(outgoing, timeout=STREAM_SECONDS, metadata=metadata)
        self.step_id = 0
        _simulators.append(self)

    def send_bytes(self, data: bytes) -> None:
        self._outgoing.put(data)

    def send(self, message: pb.Hello | pb.Announce | pb.Step) -> None:
        field = {pb.Hello: "hello", pb.Announce: "announce", pb.Step: "step"}[type(message)]
        self.send_bytes(pb.ConnectRequest(**{field: message}).SerializeToString())  # type: ignore[arg-type]  # by name

    def receive(self) -> pb.ConnectResponse:
        """Return the next message that is no Wait."""
        while True:
            response = pb.ConnectResponse.FromString(next(self._call))
            if response.WhichOneof("message") != "wait":
                return response

    def hello(self, *specs: BehaviorSpec, ticket: str = "") -> pb.ConnectResponse:
        self.send(self.make_hello(*specs, ticket=ticket))
        return self.receive()

    def make_hello(self, *specs: BehaviorSpec, ticket: str = "") -> pb.Hello:
        return pb.Hello(
            protocol_version=1,
            session_id=self.session_id,
            ticket=ticket,
            client="tests/1",
            behaviors=[spec_to_message(spec) for spec in specs],
        )

    def step(self, agents: Sequence[int], *, ended: Sequence[int] = (), reward: float = 1.0) -> None:
        """Let agents ask for an action; the observation says which step it is."""
        self.send(self.make_step(agents, ended=ended, reward=reward))

    def make_step(self, agents: Sequence[int], *, ended: Sequence[int] = (), reward: float = 1.0) -> pb.Step:
        self.step_id += 1
        part = pb.BehaviorStep(behavior=SPEC.name)
        if len(agents):
            part.decisions.CopyFrom(
                pb.DecisionSteps(
                    agent_ids=np.array(agents, np.int32).tobytes(),
                    rewards=np.full(len(agents), reward, np.float32).tobytes(),
                    observations=[self._observations(agents)],
                )
            )
        if len(ended):
            part.terminals.CopyFrom(
                pb.TerminalSteps(
                    agent_ids=np.array(ended, np.int32).tobytes(),
                    rewards=np.full(len(ended), reward, np.float32).tobytes(),
                    observations=[self._observations(ended)],
                    truncated=bytes(len(ended)),
                )
            )
        return pb.Step(step_id=self.step_id, behaviors=[part])

    def _observations(self, agents: Sequence[int]) -> pb.Tensor:
        values = np.zeros((len(agents), 4), np.float32)
        values[:, 0], values[:, 1] = self.step_id, agents
        return array_to_tensor(values)

    def play(self, agents: Sequence[int], steps: int) -> None:
        """Exchange so many steps."""
        for _ in range(steps):
            self.step(agents)
            response = self.receive()
            assert response.HasField("actions"), response

    def closed(self, *, ends: bool = True) -> pb.Close:
        """Return the Close that ends the session. A client that is polite `ends` its side too, and need not wait."""
        while True:
            response = self.receive()
            if response.HasField("close"):
                if ends:
                    self.half_close()
                assert next(self._call, None) is None
                return response.close

    def half_close(self) -> None:
        self._outgoing.put(None)

    def vanish(self) -> None:
        """Break the connection."""
        self._call.cancel()
        self.leave()

    def leave(self) -> None:
        self._outgoing.put(None)
        self._channel.close()


def player(address: str, agents: int = 3, **options: str) -> Simulator:
    """Return a simulator that has said hello."""
    simulator = Simulator(address, **options)
    assert simulator.hello(SPEC).HasField("welcome")
    assert agents
    return simulator


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


class Places:
    """A gateway that knows one attempt: it assigns each edge collector to the attempt's edge reader."""

    def __init__(self) -> None:
        self.address = ""
        """Of the edge reader; empty: the run has no attempt."""

    def handler(self) -> "grpc.GenericRpcHandler[pb.JoinRequest, pb.JoinResponse]":
        async def join(request: pb.JoinRequest, _: object) -> pb.JoinResponse:
            if not self.address:
                return pb.JoinResponse(wait=pb.Wait(reason="the run has no attempt", retry_after_seconds=0.1))
            assignment = pb.Assignment(address=self.address, ticket="", run_id=request.run)
            return pb.JoinResponse(assignment=assignment)

        method = grpc.unary_unary_rpc_method_handler(
            join, request_deserializer=pb.JoinRequest.FromString, response_serializer=pb.JoinResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(COLLECTOR_SERVICE.strip("/"), {"Join": method})


class Edge:
    """A game machine: an edge collector, and the port that its simulators dial."""

    def __init__(self, places: Places, *, shares_memory: bool) -> None:
        self.address = ""
        self.said: list[str] = []
        self.end: RunEnd | SimulatorError | None = None
        """How its run ended, once it has."""
        self._places = places
        self._shares_memory = shares_memory
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="edge-collector")
        self._thread.start()
        assert self._listening.wait(PATIENCE), "the edge collector does not listen"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._places.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        target = Target(f"127.0.0.1:{port}", "run-1", token="")
        edge = self._collector = EdgeCollector(
            target, POLICIES, lambda _, sentence: self.said.append(sentence), shares_memory=self._shares_memory
        )
        self.address = f"127.0.0.1:{await edge.listen()}"
        self._listening.set()
        self._task = asyncio.ensure_future(edge.run())
        try:
            self.end = await self._task
        except SimulatorError as error:
            self.end = error
        except asyncio.CancelledError:
            pass
        await edge.close()
        await server.stop(0)

    def exchange(self, message: bytes, session_id: str) -> bytes:
        """Be a Unity game of this process: make one call, and return the reply."""
        call = self._collector.exchange(message, [(SESSION_ID_METADATA, session_id)])
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE)[0]

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), self.said

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.join()


def reader_of(learner: Learner) -> str:
    """Return the address of an attempt's edge reader, which is started where it was not."""
    learner.pool.open_places()
    children = learner.pool.children
    learner.until(lambda: children.reader is not None and children.reader.endpoint is not None)
    assert children.reader is not None
    assert children.reader.endpoint is not None
    return children.reader.endpoint.address


@contextmanager
def edge_collectors(learner: Learner, count: int = 1, *, shares_memory: bool = False) -> Iterator[list[Edge]]:
    """Start edge collectors that join the attempt of a learner, by streams or, if they may, in its memory."""
    places = Places()
    places.address = reader_of(learner)
    edges = [Edge(places, shares_memory=shares_memory) for _ in range(count)]
    try:
        yield edges
    finally:
        for edge in edges:
            edge.close()
