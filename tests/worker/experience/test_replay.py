"""The replay buffer against a plain list, its size in bytes, and what is drawn from it."""

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.examples import examples
from tests.worker.rollouts import make_rollout, make_spec, random_rollout
from worker.experience.replay import MOST_STREAMS, ReplayBuffer
from worker.experience.rollout import Rollout
from worker.trainer import checkpoint

LABELLED = make_spec(observations=(1,), continuous=1)
"""Observations and actions are numbers that never repeat."""


def drawn(buffer: ReplayBuffer, count: int = 64, seed: int = 1) -> Any:
    return buffer.sample(count, torch.Generator().manual_seed(seed))


def drawn_sequences(buffer: ReplayBuffer, count: int, length: int, seed: int = 1) -> Any:
    starts = torch.randint(len(buffer), (count,), generator=torch.Generator().manual_seed(seed))
    return buffer.sequences(starts, length)


def followers(buffer: ReplayBuffer) -> list[int]:
    """The row of what followed each transition."""
    return buffer.state_dict()["steps"][-1][:, 0].tolist()


def labelled_rollout(
    first: list[int], lengths: list[int], endings: list[SegmentEnd], *, remember: bool = False, **segments: list[int]
) -> Rollout:
    """Segment `b` has the observations `first[b]`, `first[b] + 1`, ..., the one behind its end, too."""
    seen = [
        np.arange(start, start + length + 1, dtype=np.float32) for start, length in zip(first, lengths, strict=True)
    ]
    steps = np.concatenate([part[:-1] for part in seen])
    return make_rollout(
        observations=[steps[:, None]],
        next_observations=[np.array([part[-1] for part in seen], np.float32)[:, None]],
        rewards=steps * 10,
        group_rewards=steps * 100,
        continuous=steps[:, None] * 1000,
        log_probs=np.zeros((len(steps), 1)),
        memories=np.repeat(steps[:, None], 2, 1) if remember else None,
        lengths=lengths,
        ending=endings,
        **segments,
    )


@dataclass
class Stream:
    """An agent in the model."""

    episode: int = 0
    sequence: int = 0
    seen: int | None = None
    """The observation that it acts on next; None at an episode's start."""
    newest: int | None = None
    """Index of its newest transition among all, if its episode goes on."""


@dataclass
class Model:
    """Every transition ever stored, as (observation, next observation, ending)."""

    transitions: list[tuple[int, int, SegmentEnd]] = field(default_factory=list)
    successor: dict[int, int] = field(default_factory=dict)
    """Index of the transition that goes on where another one ended."""
    streams: dict[tuple[int, int], Stream] = field(default_factory=dict)


class ReplayMachine(RuleBasedStateMachine):
    """Random agents, lengths, endings and gaps; a capacity that few steps exceed."""

    CAPACITY = 9

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(LABELLED, self.CAPACITY, memory_size=2)
        self.model = Model()
        self.label = 0

    @rule(
        segments=st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 5), st.sampled_from(SegmentEnd), st.booleans()),
            min_size=1,
            max_size=4,
        )
    )
    def store(self, segments: list[tuple[int, int, SegmentEnd, bool]]) -> None:
        first, lengths, endings = [], [], []
        agents, episodes, sequences = [], [], []
        for agent, length, ending, lost in segments:
            stream = self.model.streams.setdefault((0, agent), Stream())
            if lost:  # a segment of the episode never came, or another episode began
                stream.sequence += 1
                stream.seen = stream.newest = None
            if stream.seen is None:
                self.label += 1000  # more than an episode has steps here
            start = self.label if stream.seen is None else stream.seen
            first.append(start)
            lengths.append(length)
            endings.append(ending)
            agents.append(agent)
            episodes.append(stream.episode)
            sequences.append(stream.sequence)
            self._remember(stream, start, length, ending)
        rollout = labelled_rollout(
            first,
            lengths,
            endings,
            agents=agents,
            episodes=episodes,
            sequences=sequences,
            simulators=[0] * len(first),
            remember=True,
        )
        self.buffer.store(rollout)

    def _remember(self, stream: Stream, start: int, length: int, ending: SegmentEnd) -> None:
        for step in range(length):
            last = step == length - 1
            index = len(self.model.transitions)
            self.model.transitions.append((start + step, start + step + 1, ending if last else SegmentEnd.CUT))
            if stream.newest is not None:
                self.model.successor[stream.newest] = index
            stream.newest = index
        if ending is SegmentEnd.CUT:
            stream.seen, stream.sequence = start + length, stream.sequence + 1
        else:
            stream.seen, stream.newest = None, None
            stream.episode, stream.sequence = stream.episode + 1, 0

    @rule()
    def resume(self) -> None:
        state = self.buffer.state_dict()
        self.buffer = ReplayBuffer(LABELLED, self.CAPACITY, memory_size=2)
        self.buffer.load_state_dict(state)

    @invariant()
    def holds_the_newest_transitions(self) -> None:
        newest = self.model.transitions[-self.CAPACITY :]
        assert len(self.buffer) == len(newest)
        if not newest:
            return
        sample = drawn(self.buffer, 200)
        found = zip(
            sample.observations[0][sample.index, 0].tolist(),
            sample.observations[0][sample.next_index, 0].tolist(),
            sample.terminated.tolist(),
            sample.ended.tolist(),
            strict=True,
        )
        expected = {
            (float(here), float(there), ending is SegmentEnd.TERMINATED, ending is not SegmentEnd.CUT)
            for here, there, ending in newest
        }
        assert set(found) == expected  # 200 draws of at most 9 miss one with a probability of 1e-9
        here = sample.observations[0][sample.index, 0]
        assert torch.equal(sample.rewards, here * 10)
        assert torch.equal(sample.group_rewards, here * 100)
        assert torch.equal(sample.continuous[:, 0], here * 1000)

    @precondition(lambda self: self.model.transitions)
    @rule(length=st.integers(2, 7))
    def draw_sequences(self, length: int) -> None:
        sample = drawn_sequences(self.buffer, 40, length, 2)
        seen, real = sample.observations[0][:, 0], sample.real.view(40, length)
        starts = {here: index for index, (here, _, _) in enumerate(self.model.transitions)}
        for sequence in range(40):
            index = starts[int(seen[sample.index.view(40, length)[sequence, 0]])]
            assert torch.equal(sample.memories[sequence], torch.full((2,), float(self.model.transitions[index][0])))
            chain = [index]
            while len(chain) < length and chain[-1] in self.model.successor:
                chain.append(self.model.successor[chain[-1]])
            assert real[sequence].tolist() == [step < len(chain) for step in range(length)]
            padded = chain + [chain[-1]] * (length - len(chain))
            rows = slice(sequence * length, (sequence + 1) * length)
            assert seen[sample.index[rows]].tolist() == [self.model.transitions[k][0] for k in padded]
            assert seen[sample.next_index[rows]].tolist() == [self.model.transitions[k][1] for k in padded]

    @invariant()
    def stores_each_observation_once(self) -> None:
        # Beside the transitions' own: one for each whose episode ended, was cut and did not go on (yet), or whose
        # successor came back in a segment that did not follow.
        oldest = max(len(self.model.transitions) - self.CAPACITY, 0)
        alone = [index for index in range(oldest, len(self.model.transitions)) if index not in self.model.successor]
        state = self.buffer.state_dict()
        assert state["used"] - self.CAPACITY - len(state["spare"]) == len(alone)


TestReplayAgainstAList = ReplayMachine.TestCase
TestReplayAgainstAList.settings = settings(
    deadline=None,
    max_examples=examples(40),
    stateful_step_count=20,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a failure of this machine takes minutes
)


def test_simulators_with_equal_agents_are_told_apart() -> None:
    buffer = ReplayBuffer(LABELLED, 10)
    buffer.store(labelled_rollout([0, 10], [1, 1], [SegmentEnd.CUT] * 2, simulators=[1, 2], agents=[0, 0]))
    buffer.store(labelled_rollout([11], [1], [SegmentEnd.CUT], simulators=[2], agents=[0], sequences=[1]))

    assert followers(buffer)[:2] == [10, 2]


def test_every_transition_is_drawn_as_often() -> None:
    buffer = ReplayBuffer(LABELLED, 50)
    for start in range(0, 80, 4):
        buffer.store(labelled_rollout([start], [4], [SegmentEnd.TERMINATED]))

    counts = torch.bincount(drawn(buffer, 50_000).rows, minlength=50).double()

    # 1,000 draws each; chi-squared of 49 degrees of freedom is below 94.6 with a probability of 0.9999.
    assert len(counts) == 50
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 94.6


def test_branches_masks_and_several_observations_come_back_as_they_were() -> None:
    spec = make_spec(observations=(3, (2, 8, 8), (4, 5)), continuous=2, branches=(3, 2))
    rollout = random_rollout(spec, [7, 1, 5], np.random.default_rng(1), masked=True, memory_size=6)
    buffer = ReplayBuffer(spec, 100, memory_size=6)
    buffer.store(rollout)

    sample = drawn_sequences(buffer, 40, 1)

    for column, stored in zip(sample.observations, rollout.observations, strict=True):
        assert column.dtype == stored.dtype
        assert torch.equal(column[sample.index], stored[sample.rows])
    assert torch.equal(sample.continuous, rollout.continuous[sample.rows])
    assert torch.equal(sample.discrete, rollout.discrete[sample.rows])
    assert torch.equal(sample.masks, rollout.action_masks[sample.rows])
    assert torch.equal(sample.memories, rollout.memories[sample.rows])


def test_masks_that_never_forbade_anything_cost_nothing() -> None:
    spec = make_spec(branches=(3,))
    buffer = ReplayBuffer(spec, 100)
    buffer.store(random_rollout(spec, [4], np.random.default_rng(1)))
    assert drawn(buffer).masks is None

    forbidding = random_rollout(spec, [4], np.random.default_rng(1), masks=np.array([[True, False, True]] * 4))
    buffer.store(forbidding)

    assert drawn(buffer).masks is not None


def test_choices_without_masks_were_all_allowed() -> None:
    spec = make_spec(branches=(3,))
    buffer = ReplayBuffer(spec, 8)
    buffer.store(random_rollout(spec, [8], np.random.default_rng(1), masks=np.array([[True, False, True]] * 8)))
    unmasked = random_rollout(spec, [4], np.random.default_rng(2), masks=None)
    buffer.store(unmasked)

    sample = drawn(buffer)

    new = sample.rows < 4
    assert torch.equal(sample.discrete[new], unmasked.discrete[sample.rows[new]])
    assert bool(sample.masks[new].all())
    assert not bool(sample.masks[~new].all())


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.long
def test_a_transition_with_a_picture_takes_at_most_a_tenth_more_than_the_picture() -> None:
    picture = 84 * 84 * 3
    spec = BehaviorSpec("Seeing", (ObservationSpec((3, 84, 84), dtype="uint8"),), ActionSpec(2, (3, 3)))
    steps, segment = 3000, 60
    rollout = random_rollout(spec, [segment], np.random.default_rng(1))
    buffer = ReplayBuffer(spec, 1_000_000)  # 21 GB and more, if it were filled
    before = resident_bytes()

    for number in range(steps // segment):  # episodes of 600 steps, in segments of 60
        sequence = number % 10
        ending = SegmentEnd.TERMINATED if sequence == 9 else SegmentEnd.CUT
        buffer.store(_again(rollout, episode=number // 10, sequence=sequence, ending=ending))

    assert len(buffer) == steps
    assert bytes_used(buffer) / steps <= 1.1 * picture
    assert (resident_bytes() - before) / steps <= 1.1 * picture


def bytes_used(buffer: ReplayBuffer) -> int:
    """Bytes of all rows that were ever written."""
    state = buffer.state_dict()
    return sum(column.nbytes for part in ("steps", "observations", "successors") for column in state[part])


def _again(rollout: Rollout, *, episode: int, sequence: int, ending: SegmentEnd) -> Rollout:
    """The same steps of one segment elsewhere in an agent's life."""
    columns = {name: getattr(rollout, name) for name in Rollout.__slots__}
    columns["episodes"], columns["sequences"] = torch.tensor([episode]), torch.tensor([sequence])
    columns["endings"] = torch.tensor([int(ending)], dtype=torch.uint8)
    return Rollout(**columns)


def test_agents_that_never_come_back_are_forgotten() -> None:
    buffer = ReplayBuffer(LABELLED, 16)

    for number in range(MOST_STREAMS + 200):
        buffer.store(labelled_rollout([0], [1], [SegmentEnd.CUT], agents=[number]))

    assert len(buffer.state_dict()["streams"]) < 16 + 200


def test_a_resumed_buffer_is_as_long_and_goes_on_alike(tmp_path: Path) -> None:
    spec = make_spec(observations=(3, (1, 8, 8)), continuous=1, branches=(2,))
    rng = np.random.default_rng(3)
    buffer = ReplayBuffer(spec, 50)
    for sequence in range(4):
        open_ends = {"ending": [SegmentEnd.CUT] * 3, "sequences": [sequence] * 3}
        buffer.store(random_rollout(spec, [9, 4, 6], rng, masked=True, **open_ends))

    checkpoint.save(tmp_path, {"replay": buffer.state_dict()})
    resumed = ReplayBuffer(spec, 50)
    resumed.load_state_dict(checkpoint.load(tmp_path)["replay"])
    more = random_rollout(spec, [2, 5, 1], rng, masked=True, ending=[SegmentEnd.CUT] * 3, sequences=[4] * 3)
    samples = []
    for one in (buffer, resumed):
        assert len(one) == 50
        one.store(more)
        samples.append(drawn_sequences(one, 64, 5, 4))

    for mine, theirs in zip(*samples, strict=True):
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]
        for one, other in pairs:
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("capacity", [3, 20, 50])
def test_a_buffer_of_another_capacity_takes_over_the_newest(capacity: int) -> None:
    lengths, endings = [4, 3, 2], [SegmentEnd.CUT, SegmentEnd.TERMINATED, SegmentEnd.CUT]
    buffers = [ReplayBuffer(LABELLED, 20, memory_size=2), ReplayBuffer(LABELLED, capacity, memory_size=2)]
    for number in range(3):  # 27 steps; each agent goes on where it was
        first = [1000 + 4 * number, 2000 + 100 * number, 3000 + 2 * number]
        place = {"episodes": [0, number, 0], "sequences": [number, 0, number]}
        buffers[0].store(labelled_rollout(first, lengths, endings, remember=True, **place))

    buffers[1].load_state_dict(buffers[0].state_dict())
    assert len(buffers[1]) == min(20, capacity)
    place = {"episodes": [0, 3, 0], "sequences": [3, 0, 3]}
    for buffer in buffers:
        buffer.store(labelled_rollout([1012, 2300, 3006], lengths, endings, remember=True, **place))

    held = []
    for buffer in buffers:
        sample = drawn_sequences(buffer, 2000, 3)
        seen = sample.observations[0][:, 0]
        rows = torch.stack((seen[sample.index], seen[sample.next_index], sample.rewards, sample.real.float()), 1)
        chains = {tuple(chain) for chain in rows.view(-1, 12).tolist()}
        held.append({chain for chain in chains if chain[0] in _newest(buffer, min(20, capacity))})
    assert held[0] == held[1]


def _newest(buffer: ReplayBuffer, count: int) -> set[float]:
    """The observations of the newest transitions."""
    state = buffer.state_dict()
    rows = torch.arange(state["stored"] - min(count, len(buffer)), state["stored"]) % buffer.capacity
    return set(state["observations"][0][rows, 0].tolist())


def test_sequences_begin_at_the_rows_that_are_named_and_say_what_was_allowed_behind_them() -> None:
    spec = make_spec(observations=(1,), branches=(3,))
    buffer = ReplayBuffer(spec, 8)
    masks = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]], bool)
    rows = buffer.store(
        make_rollout(
            observations=[np.arange(5.0)[:, None]],
            next_observations=[np.array([[30.0], [50.0]])],
            rewards=np.arange(5.0),
            discrete=np.zeros((5, 1)),
            log_probs=np.zeros((5, 1)),
            masks=masks,
            lengths=[3, 2],
            ending=[SegmentEnd.TRUNCATED, SegmentEnd.CUT],
        )
    )

    drawn = buffer.sequences(torch.tensor([0, 1, 3]), 2)

    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert drawn.rows.tolist() == [0, 1, 1, 2, 3, 4]
    assert drawn.observations[0].view(3, 3)[:, -1].tolist() == [2.0, 30.0, 50.0]
    assert drawn.following_masks is not None
    # behind the first lies step 2; behind the others an observation that no step was taken on
    assert drawn.following_masks.int().tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 1]]
