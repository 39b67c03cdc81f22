"""Games whose agents act one after another, in any order: no round of any behavior waits for ever.

Real collectors and a real pool in one process, so that an example takes milliseconds: only the processes between them
are missing. The games know rules that the collectors don't. Time passes turn by turn, so that what is silent or late
does not depend on how busy the machine is.
"""

import asyncio
import random
import selectors
import socket
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ludus.child_process import ChildProcess
from ludus.collector import messages
from ludus.collector.arena import Arena
from ludus.collector.carriers.local import LocalConnection
from ludus.collector.channel import Channel
from ludus.collector.commands import PolicySpec
from ludus.collector.messages import BehaviorAnnounced
from ludus.collector.native import NativeSession
from ludus.collector.server import CollectorServer
from ludus.collector.settings import CollectorSettings
from ludus.config.network import NetworkSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk.session import Session as Client
from tests.examples import examples
from tests.segments import rows_of
from worker.collectors.acting import POLICIES
from worker.collectors.events import RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool
from worker.collectors.processes import WarmCollector

NETWORK = NetworkSettings(hidden_units=4, num_layers=1)
NEVER = 1e9
ROUNDS = 6
HORIZON = 8
TURN_SECONDS = 0.001


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time is that of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds


def now() -> float:
    return asyncio.get_running_loop().time()


def run(play: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(play)


def spec_of(name: str) -> BehaviorSpec:
    return BehaviorSpec(name, (ObservationSpec((1,)),), ActionSpec(0, (2,)))


Agent = tuple[str, int]
"""Announced behavior, with its team; id."""


@dataclass
class Table:
    """One game of a simulator: its players move in groups, and the next group moves when the last one has its actions.

    So a player's step comes back only when it is its group's turn again, after all others of the table have acted.
    """

    agents: list[Agent]
    rng: random.Random
    forgets: bool = False
    """Whether agents vanish now and then without a word, and others come in their place."""
    waiting: set[Agent] = field(default_factory=set)
    playing: set[Agent] = field(default_factory=set)
    """Those in an episode."""
    groups: list[list[Agent]] = field(default_factory=list)
    """Those that have yet to move in this cycle."""

    def move(self) -> tuple[list[Agent], list[Agent]]:
        """Return whose episode ends, and who asks for an action."""
        if not self.groups:
            if self.forgets and self.rng.random() < 0.3:
                name, agent = self.agents.pop(0)
                self.agents.append((name, agent + 100))
            order = self.rng.sample(self.agents, len(self.agents))
            while order:
                cut = self.rng.randint(1, len(order))
                self.groups.append(order[:cut])
                order = order[cut:]
        movers = self.groups.pop()
        ended = [agent for agent in movers if agent in self.playing and self.rng.random() < 0.2]
        asking = [agent for agent in movers if agent not in ended or self.rng.random() < 0.5]
        self.playing.difference_update(ended)
        self.playing.update(asking)
        self.waiting.update(asking)
        return ended, asking


class Simulator:
    """Several tables in one session."""

    def __init__(
        self,
        hub: CollectorServer,
        number: int,
        names: Sequence[str],
        tables: int,
        rng: random.Random,
        *,
        seconds: float = 0.0,
        forgets: bool = False,
    ) -> None:
        """Moves come so many seconds after the actions."""
        self._seconds = seconds
        self._ready_at: float | None = None
        self._inbox: list[bytes] = []
        self._client = Client([spec_of(name) for name in names])
        self._tables = [
            Table([(name, 10 * table + agent) for name in names for agent in range(2)], rng, forgets)
            for table in range(tables)
        ]
        self.session = NativeSession(hub.host, f"ipv4:127.0.0.1:{number}", self._inbox.append)
        self._send(self._client.hello("", f"sim-{number}", "tests/1"))

    def _send(self, request: pb.ConnectRequest) -> None:
        self.session.receive(request.SerializeToString())

    def play(self) -> None:
        """Read what has come, and let every table move whose players all have their actions."""
        if not self._inbox and all(table.waiting for table in self._tables):
            return
        if self._ready_at is None:
            self._ready_at = now() + self._seconds
        if now() < self._ready_at:
            return
        self._ready_at = None
        for data in self._inbox:
            response = pb.ConnectResponse.FromString(data)
            assert not response.HasField("close"), response
            if response.HasField("actions"):
                for action in self._client.actions(response.actions):
                    for table in self._tables:
                        table.waiting.discard((action.behavior, action.agent))
        self._inbox.clear()
        builder = self._client.new_step()
        for table in self._tables:
            if table.waiting:
                continue
            ended, asking = table.move()
            for name, agent in ended:
                builder.end_episode(agent, [0.5], behavior=name)
            for name, agent in asking:
                builder.request_decision(agent, [1.0], behavior=name)
        for request in self._client.requests(builder):
            self._send(request)


class Desk:
    """A pool, its collectors in this process, and a learner that grants rounds of a size to each behavior."""

    def __init__(self, count: int, sizes: dict[str, int], grace: float, ahead: int | None = None) -> None:
        self._sizes, self._ahead = sizes, ahead
        self._arenas: dict[str, Arena] = {}
        self._processes = [ChildProcess(["true"]) for _ in range(count)]
        pairs = [socket.socketpair() for _ in range(count)]
        warm = [
            WarmCollector(process, Channel(ours)) for process, (ours, _) in zip(self._processes, pairs, strict=True)
        ]
        self._pool = CollectorPool(CollectorSettings("run-1", 1, 7, count=count, late_agents_grace=grace), warm)
        self._theirs = [Channel(theirs) for _, theirs in pairs]
        self.links: list[LocalConnection] = []
        self.hubs: list[CollectorServer] = []
        for child, channel in zip(self._pool.children, self._theirs, strict=True):
            with self._pool.lock:
                self._pool.children.launch(child)
            (frame,) = channel.receive()
            self.links.append(LocalConnection(channel))
            self.hubs.append(CollectorServer(self.links[-1], POLICIES, messages.read(frame)))
            self.hubs[-1].listen()
            self.hubs[-1].link.tell(messages.Listening(1))
        self.delivered: Counter[tuple[str, int]] = Counter()
        self.rounds: dict[str, int] = {}
        """Complete rounds of each behavior."""

    async def turn(self) -> None:
        """Let everybody handle what has come, and time pass."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        loop.seconds += TURN_SECONDS
        with self._pool.lock:
            for child in self._pool.children:
                self._pool.children._attend(child, selectors.EVENT_READ)
        for notice in self._pool.poll(0.0):
            match notice:
                case BehaviorAnnounced():
                    self._admit(notice.spec)
                case SegmentsDelivered():
                    for segment in rows_of(notice.segments):
                        self.delivered[notice.behavior, segment.round] += segment.length
                    self._pool.reclaim(notice.behavior, notice.segments)
                case RoundCollected():
                    self.rounds[notice.behavior] = notice.round + 1
                    self._pool.grant(notice.behavior, notice.round + 1, self._sizes[notice.behavior], self._ahead)
        for link, hub in zip(self.links, self.hubs, strict=True):
            link.receive()
            hub.tick()
        await asyncio.sleep(0)  # turns that are due run
        await asyncio.sleep(0)  # as do those that they have asked for
        for hub in self.hubs:
            assert not hub.done.done(), hub.done

    def _admit(self, spec: BehaviorSpec) -> None:
        size = POLICIES.policy(spec, NETWORK).flat_size
        arena = self._arenas[spec.behavior] = Arena.create(spec, 2_000)
        self._pool.admit(spec, PolicySpec(NETWORK, size, HORIZON), arena)
        self._pool.publish(spec.behavior, 1, np.zeros(size, np.float32))
        self._pool.grant(spec.behavior, 0, self._sizes[spec.behavior], self._ahead)
        self.rounds[spec.behavior] = 0

    def check_sizes(self, behavior: str, rounds: int) -> None:
        """Rounds have their size: exactly with one collector, else with at most the last segment too much, unless late
        steps are waited for.
        """
        size, most = self._sizes[behavior], 0 if len(self.hubs) == 1 else HORIZON - 1
        most = most if self._ahead is None else self.delivered.total()
        for number in range(rounds):
            assert size <= self.delivered[behavior, number] <= size + most, f"round {number}"

    async def close(self) -> None:
        self._pool.close("run_finished", "the test is over", rejoin=False)
        await asyncio.sleep(0)  # turns that are due find the learner gone
        for channel in self._theirs:
            channel.close()
        for process in self._processes:
            process.end(10.0)
        for arena in self._arenas.values():
            arena.close()


@asynccontextmanager
async def trainer(count: int, sizes: dict[str, int], grace: float, ahead: int | None = None) -> AsyncIterator[Desk]:
    it = Desk(count, sizes, grace, ahead)
    try:
        yield it
    finally:
        await it.close()


NAMES = ("Red?team=0", "Red?team=1", "Blue")


@pytest.mark.long
@given(
    collectors=st.integers(1, 3),
    simulators=st.integers(1, 4),
    tables=st.integers(1, 2),
    names=st.sampled_from([NAMES[:1], NAMES[:2], NAMES[1:], NAMES]),
    sizes=st.fixed_dictionaries({"Red": st.integers(1, 40), "Blue": st.integers(1, 40)}),
    seed=st.integers(0, 2**16),
    ahead=st.sampled_from([None, 1, 2]),
)
@example(  # each collector owes a step of the behavior whose round is complete at the other one
    collectors=2, simulators=3, tables=2, names=NAMES[1:], sizes={"Red": 39, "Blue": 5}, seed=15475, ahead=1
)
@pytest.mark.timeout(600)  # of all examples together, on a busy machine
@settings(max_examples=examples(40), deadline=None)
def test_whoever_acts_after_whom_every_round_is_completed_without_anybody_being_given_up(
    collectors: int,
    simulators: int,
    tables: int,
    names: tuple[str, ...],
    sizes: dict[str, int],
    seed: int,
    ahead: int | None,
) -> None:
    async def play() -> None:
        rng = random.Random(seed)
        async with trainer(collectors, sizes, NEVER, ahead) as it:
            players = [
                Simulator(it.hubs[number % collectors], number, names, tables, rng) for number in range(simulators)
            ]
            for _ in range(4_000):
                await it.turn()
                for player in rng.sample(players, rng.randint(1, len(players))):
                    player.play()
                if it.rounds and min(it.rounds.values()) >= ROUNDS:
                    break
            behaviors = {name.partition("?")[0] for name in names}
            assert it.rounds.keys() == behaviors
            assert min(it.rounds.values()) >= ROUNDS, f"stuck after {it.rounds} rounds"
            for behavior in behaviors:
                it.check_sizes(behavior, ROUNDS)

    run(play())


@pytest.mark.long
@given(
    collectors=st.integers(1, 3),
    simulators=st.integers(2, 4),
    tables=st.integers(1, 2),
    names=st.sampled_from([NAMES[:1], NAMES[:2], NAMES]),
    sizes=st.fixed_dictionaries({"Red": st.integers(1, 40), "Blue": st.integers(1, 40)}),
    seed=st.integers(0, 2**16),
)
@pytest.mark.timeout(600)  # of all examples together, on a busy machine
@settings(max_examples=examples(20), deadline=None)
def test_a_simulator_that_falls_silent_at_any_moment_holds_no_round_for_long(
    collectors: int, simulators: int, tables: int, names: tuple[str, ...], sizes: dict[str, int], seed: int
) -> None:
    async def play() -> None:
        rng = random.Random(seed)
        async with trainer(collectors, sizes, grace=0.005) as it:
            players = [
                Simulator(it.hubs[number % collectors], number, names, tables, rng) for number in range(simulators)
            ]
            for _ in range(rng.randint(5, 200)):
                await it.turn()
                for player in rng.sample(players, rng.randint(1, len(players))):
                    player.play()
            players.pop(0)
            goals = {behavior: number + 3 for behavior, number in it.rounds.items()}
            deadline = now() + 30.0
            while any(it.rounds[behavior] < goal for behavior, goal in goals.items()):
                assert now() < deadline, f"stuck after {it.rounds} rounds, {goals} were to be reached"
                await it.turn()
                for player in players:
                    player.play()
            for behavior, rounds in it.rounds.items():
                it.check_sizes(behavior, rounds)

    run(play())


async def play_to(goal: int, size: int, players: Sequence[Simulator], it: Desk) -> None:
    """Let everybody play until there are so many rounds of exactly this size."""
    deadline = now() + 20.0
    while not it.rounds or min(it.rounds.values()) < goal:
        assert now() < deadline, f"stuck after {it.rounds} rounds"
        await it.turn()
        for player in players:
            player.play()
    it.check_sizes("Red", goal)


def test_simulators_that_are_all_slower_than_our_patience_do_not_pass_permits_around_for_ever() -> None:
    async def play() -> None:
        rng = random.Random(1)
        async with trainer(1, {"Red": 1}, grace=0.01) as it:
            players = [Simulator(it.hubs[0], number, NAMES[:1], 1, rng, seconds=0.05) for number in range(4)]
            await play_to(4, 1, players, it)

    run(play())


@pytest.mark.parametrize("ahead", [None, 1])
def test_a_game_that_keeps_forgetting_agents_holds_no_round_for_ever(ahead: int | None) -> None:
    async def play() -> None:
        rng = random.Random(1)
        async with trainer(1, {"Red": 7}, 0.005, ahead) as it:
            await play_to(8, 7, [Simulator(it.hubs[0], 0, NAMES[:2], 1, rng, forgets=True)], it)

    run(play())
