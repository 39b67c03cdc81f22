"""Pictures, entities and memory on the whole way: a game with the SDK, gRPC, a collector process, the arena."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.protocol.batches import DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder, connect
from tests.ludus.collector.stack import learner
from tests.worker.learning.networks.kinds import graph_of
from worker.collectors.acting import POLICIES
from worker.collectors.behaviors import block_chunk
from worker.collectors.events import RoundCollected
from worker.experience.rollout import Rollout

AGENTS, LIFE = 3, 7
NETWORK = NetworkSettings(hidden_units=8, num_layers=1, memory=MemorySettings(memory_size=6, sequence_length=4))
MOVES, FIXED = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
SPEC = BehaviorSpec(
    "Eye",
    (
        ObservationSpec((3, 20, 24), "camera", "uint8", dimension_properties=(FIXED, MOVES, MOVES)),
        ObservationSpec((2,), "where"),
        ObservationSpec((4, 3), "others", dimension_properties=(DimensionProperty.VARIABLE_SIZE, FIXED)),
    ),
    ActionSpec(1, (2,)),
)


def seen(agent: int, step: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What an agent sees in a step of its life: a picture that no other step has, and who and when it is."""
    chance = np.random.default_rng([agent, step])
    entities = np.zeros((4, 3), np.float32)
    entities[: 1 + step % 4] = chance.random((1 + step % 4, 3))
    picture = chance.integers(0, 256, (3, 20, 24), np.uint8)
    return picture, np.array([agent, step], np.float32), entities


class Watching(Simulation):
    """Agents that live for a while and see what `seen` says; episodes begin at once where they ended."""

    behaviors = (SPEC,)

    def __init__(self, columns: bool) -> None:
        self._columns = columns
        self._steps = [0] * AGENTS

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self._steps = [3 * agent % LIFE for agent in range(AGENTS)]  # not all at the same time
        self._decide(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        if not len(actions):
            return
        self._steps = [step + 1 for step in self._steps]
        ended = [agent for agent in range(AGENTS) if self._steps[agent] == LIFE]
        if ended:
            self._end(builder, ended)
        for agent in ended:
            self._steps[agent] = 0
        self._decide(builder)

    def _stack(self, agents: Sequence[int]) -> tuple[npt.NDArray[np.generic], ...]:
        rows = [seen(agent, self._steps[agent]) for agent in agents]
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def _decide(self, builder: StepBuilder) -> None:
        agents = range(AGENTS)
        if self._columns:
            ids = np.arange(AGENTS, dtype=np.int32)
            builder.request_decisions(DecisionBatch(ids, np.ones(AGENTS, np.float32), self._stack(agents)))
            return
        for agent in agents:
            builder.request_decision(agent, seen(agent, self._steps[agent]), 1.0)

    def _end(self, builder: StepBuilder, agents: Sequence[int]) -> None:
        if self._columns:
            ids, flags = np.array(agents, np.int32), np.zeros(len(agents), np.bool_)
            builder.end_episodes(TerminalBatch(ids, np.ones(len(agents), np.float32), self._stack(agents), flags))
            return
        for agent in agents:
            builder.end_episode(agent, seen(agent, self._steps[agent]), 1.0)


@dataclass
class Collected:
    """Segments of some rounds, and the weights that acted in all of them."""

    rollouts: list[Rollout]
    weights: npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def collected() -> Collected:
    """Two games, of which one speaks in columns and the other one agent by agent, play three rounds."""
    with learner(size=50, horizon=5, network=NETWORK) as trainer:
        where = {"run": "any", "server": trainer.endpoints[0].address}
        games = [threading.Thread(target=connect, args=(Watching(way),), kwargs=where) for way in (True, False)]
        for game in games:
            game.start()
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 2)
        weights = trainer.weights(SPEC)
    for game in games:
        game.join()
    return Collected([rollout for number in range(3) for rollout in trainer.rollouts[number]], weights)


def test_what_the_games_showed_is_what_the_learner_sees(collected: Collected) -> None:
    assert sum(rollout.steps for rollout in collected.rollouts) == 150
    assert {int(rollout.simulators) for rollout in collected.rollouts} == {0, 1}
    for rollout in collected.rollouts:
        agent, first = (int(value) for value in rollout.observations[1][0])
        expected = [seen(agent, step) for step in range(first, first + rollout.steps + 1)]
        for pool, column in zip(rollout.pool(), zip(*expected, strict=True), strict=True):
            assert pool.dtype == torch.from_numpy(column[0]).dtype
            assert torch.equal(pool, torch.from_numpy(np.stack(column)))
        assert (rollout.endings[0] == SegmentEnd.TERMINATED) == (first + rollout.steps == LIFE)


def test_memory_is_what_the_policy_made_of_all_that_its_agent_saw_in_the_episode(collected: Collected) -> None:
    policy = POLICIES.policy(SPEC, NETWORK, graph=graph_of(SPEC, NETWORK))
    policy.load(collected.weights)
    behind: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}
    """(simulator, agent, episode, sequence) -> the memory with which that segment should begin."""
    for rollout in sorted(collected.rollouts, key=lambda rollout: int(rollout.ticks[0])):
        assert rollout.memories is not None
        *episode, sequence = (
            int(column) for column in (rollout.simulators, rollout.agents, rollout.episodes, rollout.sequences)
        )
        memory = behind[*episode, sequence] if sequence else np.zeros((1, 6), np.float32)
        for step in range(rollout.steps):
            assert rollout.memories[step].numpy() == pytest.approx(memory[0], abs=1e-5)
            observations = [part[step : step + 1].numpy() for part in rollout.observations]
            after = policy.act(observations, None, memory, np.random.default_rng(0)).memory
            assert after is not None
            memory = after
        behind[*episode, sequence + 1] = memory
    assert sum(key[-1] > 1 for key in behind) >= 10, "many segments go on where another one was cut"
    assert max(float(np.abs(memory).max()) for memory in behind.values()) > 0.01


class Crowd(Simulation):
    """Many agents with large observations, all in one message."""

    behaviors = (BehaviorSpec("Crowd", (ObservationSpec((20_000,)),), ActionSpec(1)),)
    agents = 100

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self._decide(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        self._decide(builder)

    def _decide(self, builder: StepBuilder) -> None:
        ids = np.arange(self.agents, dtype=np.int32)
        values = np.repeat(ids.astype(np.float32)[:, None], 20_000, 1)
        builder.request_decisions(DecisionBatch(ids, np.ones(self.agents, np.float32), (values,)))


def test_more_agents_than_blocks_are_lent_at_a_time_are_answered() -> None:
    with learner(size=200, network=NetworkSettings(hidden_units=4, num_layers=1)) as trainer:
        where = {"run": "any", "server": trainer.endpoints[0].address}
        game = threading.Thread(target=connect, args=(Crowd(),), kwargs=where)
        game.start()
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 1)
        chunk = block_chunk(trainer.arenas["Crowd"].layout)
    game.join()

    assert chunk < Crowd.agents
    rollouts = trainer.rollouts[0]
    assert sum(rollout.steps for rollout in rollouts) == 200
    for rollout in rollouts:
        assert (rollout.pool()[0] == rollout.agents).all()
