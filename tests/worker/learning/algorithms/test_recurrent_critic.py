"""A critic's memory runs through what each agent lived, and through nothing else."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from tests.worker.rollouts import make_rollout
from worker.experience.rollout import Rollout
from worker.experience.transitions import sequences_of
from worker.learning.algorithms.recurrent_critic import CriticMemories, unroll

CPU = torch.device("cpu")


def rollout_of(keys: list[tuple[int, int, int, int]], lengths: list[int], seed: int, *, cut: bool = True) -> Rollout:
    """Segments of (simulator, agent, episode, place); what a step sees is one random number."""
    simulators, agents, episodes, sequences = zip(*keys, strict=True)
    steps = sum(lengths)
    seen = np.random.default_rng(seed).normal(size=(steps, 1))
    return make_rollout(
        observations=[seen],
        rewards=np.zeros(steps),
        log_probs=np.zeros((steps, 1)),
        lengths=lengths,
        ending=SegmentEnd.CUT if cut else SegmentEnd.TERMINATED,
        simulators=simulators,
        agents=agents,
        episodes=episodes,
        sequences=sequences,
    )


def fold(rollout: Rollout):  # type: ignore[no-untyped-def]
    """A network that remembers the running sum `m <- m / 2 + x`, and returns it."""

    def recall(rows: Tensor, memory: Tensor, length: int) -> tuple[Tensor, Tensor]:
        seen = rollout.observations[0][rows].view(-1, length)
        outputs, state = [], memory
        for step in range(length):
            state = state / 2 + seen[:, step : step + 1]
            outputs.append(state)
        return torch.cat(outputs, 1).reshape(-1, 1), state

    return recall


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, int]], list[int], int]:
    """Some agents' episodes in some pieces, of which the first may be of an earlier round, in any order."""
    keys = []
    for simulator in range(draw(st.integers(1, 2))):
        for agent in range(draw(st.integers(1, 3))):
            for episode in range(draw(st.integers(1, 2))):
                first = draw(st.integers(0, 2))
                keys += [(simulator, agent, episode, place) for place in range(first, first + draw(st.integers(1, 3)))]
    keys = draw(st.permutations(keys))
    return (
        list(keys),
        draw(st.lists(st.integers(1, 7), min_size=len(keys), max_size=len(keys))),
        draw(st.integers(0, 99)),
    )


@given(lives(), st.integers(1, 4))
def test_memory_runs_through_each_episode_as_in_a_plain_loop(
    life: tuple[list[tuple[int, int, int, int]], list[int], int], length: int
) -> None:
    keys, lengths, seed = life
    rollout, starts = rollout_of(keys, lengths, seed), np.cumsum([0, *lengths[:-1]])
    initial = torch.randn(len(keys), 1)
    seen = rollout.observations[0][:, 0].tolist()
    before: dict[int, float] = {}
    after: dict[tuple[int, ...], float] = {}
    for key, index in sorted((key, index) for index, key in enumerate(keys)):
        memory = after.get((*key[:3], key[3] - 1), float(initial[index]))
        for row in range(starts[index], starts[index] + lengths[index]):
            before[row] = memory
            memory = memory / 2 + seen[row]
        after[key] = memory
    sequences = sequences_of(rollout.lengths, length)

    lived = unroll(rollout, sequences, initial, fold(rollout))

    torch.testing.assert_close(lived.before[:, 0], torch.tensor([before[row] for row in sequences.first.tolist()]))
    torch.testing.assert_close(lived.after[:, 0], torch.tensor([after[key] for key in keys]))
    torch.testing.assert_close(
        lived.features[:, 0], torch.tensor([before[row] / 2 + seen[row] for row in range(rollout.steps)])
    )


def test_memory_goes_on_in_the_next_round() -> None:
    memories = CriticMemories(1, CPU)
    first = rollout_of([(0, 1, 0, 0), (0, 2, 5, 3)], [2, 3], 1)
    memories.keep(first, torch.tensor([[1.0], [2.0]]))

    following = rollout_of([(0, 2, 5, 4), (0, 1, 0, 1), (0, 1, 1, 0), (0, 2, 5, 5), (1, 1, 0, 1)], [1] * 5, 2)

    # The same episode's next piece goes on; a new episode, a later piece and another simulator's agent begin again.
    assert memories.before(following)[:, 0].tolist() == [2.0, 1.0, 0.0, 0.0, 0.0]


def test_episodes_that_ended_or_were_left_are_forgotten() -> None:
    memories = CriticMemories(1, CPU)
    memories.keep(rollout_of([(0, 1, 0, 0)], [2], 1, cut=False), torch.tensor([[1.0]]))
    assert memories.before(rollout_of([(0, 1, 0, 1)], [1], 2)).tolist() == [[0.0]]

    memories.keep(rollout_of([(0, 1, 0, 0)], [2], 1), torch.tensor([[1.0]]))
    memories.keep(rollout_of([(0, 1, 1, 0)], [2], 1), torch.tensor([[2.0]]))
    assert memories.before(rollout_of([(0, 1, 0, 1), (0, 1, 1, 1)], [1, 1], 2)).tolist() == [[0.0], [2.0]]


def test_an_agent_without_a_step_in_a_round_remembers_still() -> None:
    memories = CriticMemories(1, CPU)
    memories.keep(rollout_of([(0, 1, 0, 0), (0, 3, 0, 0)], [2, 2], 1), torch.tensor([[1.0], [3.0]]))
    memories.keep(rollout_of([(0, 2, 0, 0), (0, 3, 0, 1)], [2, 2], 1), torch.tensor([[2.0], [4.0]]))

    following = rollout_of([(0, 1, 0, 1), (0, 2, 0, 1), (0, 3, 0, 2)], [1, 1, 1], 2)

    assert memories.before(following)[:, 0].tolist() == [1.0, 2.0, 4.0]
