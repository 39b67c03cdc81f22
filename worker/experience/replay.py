"""Replay buffer: the newest transitions of a run, in a ring of columns in ordinary memory.

Each observation is stored once. A step is followed by the next step of the same agent, so a transition holds no second
observation but the *row* of the one that followed:

    rows 0 .. capacity - 1           a ring of steps: observation, action, rewards, how it ended, row of what followed
    rows capacity .. 2 capacity - 1  observations that no step was taken on: the final ones of episodes, and the pending
                                     ones of agents that have not gone on yet

A segment that goes on where its agent's last one was cut (same simulator, agent and episode, next in sequence) begins
on the pending observation: the last step of the one before is pointed to its first step, and the row of the pending one
is free again. So a buffer of long episodes costs one observation and a few numbers per transition. The address
space of all rows is reserved at once, but only rows that were written become memory.

At `capacity` the oldest transitions are overwritten. Along an episode rows only get newer, so what a transition points
to is never gone before the transition is.

Pictures stay uint8 here; they become floats in the networks. Needs no algorithm, and knows nothing of rewards beside
those of the environment: reward signals are evaluated on what was sampled, with the networks of that moment.

Dimensions: `R` sampled steps, `Q` sequences of `L` steps, `P` observations of a sample.
"""

import mmap
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout
from worker.experience.state import State

NO_RESERVE = 0x4000
"""`MAP_NORESERVE` of Linux, which Python names from 3.13 on: rows that are never written count for nothing."""
MOST_STREAMS = 1024
"""Streams that are remembered before those whose last step is gone are first looked for and forgotten."""


class Replayed(NamedTuple):
    """Steps drawn from a buffer, in ordinary memory.

    Single steps: `length` is 1 and `real` None. Sequences: `R = Q * length` rows, sequence after sequence; one that is
    shorter is padded at its end by repetitions of its last step, for which `real` is false.
    """

    observations: list[Tensor]
    """One per ObservationSpec: `(P, *shape)`, as recorded. `index` and `next_index` point into it.

    Single steps: those of all steps, then those that followed. Sequences: the `length + 1` of the first, and so on."""
    index: Int[Tensor, " R"]  # type: ignore[assignment]  # hides tuple.index, which is not used
    next_index: Int[Tensor, " R"]
    continuous: Float[Tensor, "R C"]
    """As recorded: of a squashed policy (SAC) what the environment got."""
    discrete: Int[Tensor, "R D"]
    masks: Bool[Tensor, "R M"] | None
    """None where every choice was allowed at every step that this buffer has seen."""
    rewards: Float[Tensor, " R"]
    group_rewards: Float[Tensor, " R"]
    terminated: Bool[Tensor, " R"]
    ended: Bool[Tensor, " R"]
    """Terminated or truncated."""
    memories: Float[Tensor, "Q memory"] | None
    """The actor's memory before the first step of each sequence; None if it has none."""
    real: Bool[Tensor, " R"] | None
    length: int
    rows: Int[Tensor, " R"]
    """Where each step lies in the buffer."""
    following_masks: Bool[Tensor, "Q M"] | None = None
    """Sequences: what was allowed at the observation behind each; all where no step was taken on it. As `masks`."""


class _Stream(NamedTuple):
    """Where an agent's unfinished episode was left."""

    episode: int
    sequence: int
    """Of its newest segment."""
    serial: int
    """Of its newest step."""


class ReplayBuffer:
    """The newest `capacity` transitions of one behavior."""

    def __init__(self, spec: BehaviorSpec, capacity: int, *, memory_size: int = 0) -> None:
        actions = spec.actions
        self.capacity = capacity
        self._observations = [_reserve(2 * capacity, item.shape, np.dtype(item.dtype)) for item in spec.observations]
        self._columns_of_actions = actions.continuous_size
        # Numbers of a step side by side, so that drawing them is one read: action, reward, group's reward.
        self._numbers = _reserve(capacity, (actions.continuous_size + 2,), np.dtype(np.float32))
        self._discrete = _reserve(capacity, (len(actions.discrete_branches),), np.dtype(np.int32))
        self._masks = _reserve(capacity, (actions.mask_size,), np.dtype(np.bool_))
        self._memories = _reserve(capacity, (memory_size,), np.dtype(np.float32))
        # For the same reason: the row of what followed, and how the step ended.
        self._links = _reserve(capacity, (2,), np.dtype(np.int64))
        # Writing goes through arrays of the same memory: for a few rows numpy takes a quarter of torch's time.
        self._observation_rows = [column.numpy() for column in self._observations]
        numbers = self._numbers.numpy()
        columns = self._columns_of_actions
        self._actions, self._rewards = numbers[:, :columns], numbers[:, columns]
        self._group_rewards = numbers[:, columns + 1]
        links: NDArray[np.int64] = self._links.numpy()
        self._next, self._endings = links[:, 0], links[:, 1]
        self._stored = 0
        """Transitions ever stored. The one with serial number `k` lies in row `k % capacity`."""
        self._spare: list[int] = []
        """Rows behind the ring that were used and are free again."""
        self._used = capacity
        """The first row behind the ring that was never used."""
        self._streams: dict[tuple[int, int], _Stream] = {}
        """By simulator and agent."""
        self._most_streams = MOST_STREAMS
        self._any_forbidden = False

    def __len__(self) -> int:
        return min(self._stored, self.capacity)

    @torch.no_grad()
    def store(self, rollout: Rollout) -> NDArray[np.int64]:
        """Add all steps of a rollout, of which only the newest count if they are more than the capacity.

        Return the rows that hold them now.
        """
        skipped = max(rollout.steps - self.capacity, 0)
        count = rollout.steps - skipped
        # (B,) steps of each segment, counted from the first that is stored; below 0 where they are skipped
        starts, ends = rollout.firsts.numpy() - skipped, rollout.lasts.numpy() - skipped
        stored = np.flatnonzero(ends >= 0)  # the segments of which some steps count
        first = self._stored
        # Free the rows that overwritten transitions point to.
        overwritten = np.arange(max(first - self.capacity, 0), max(first + count - self.capacity, 0)) % self.capacity
        followed = self._next[overwritten]
        self._spare.extend(followed[followed >= self.capacity].tolist())
        # Two pieces where the end of the ring lies between.
        row = first % self.capacity
        head = min(count, self.capacity - row)
        spans = [(slice(row, row + head), slice(skipped, skipped + head))]
        if head < count:
            spans.append((slice(0, count - head), slice(skipped + head, skipped + count)))
        for column, values in zip(self._observation_rows, rollout.observations, strict=True):
            _write(column, spans, values)
        self._write_steps(spans, rollout)

        rows = (first + np.arange(count)) % self.capacity
        # Rows behind the ring: those that were used before, the latest first, then new ones.
        reused = min(len(stored), len(self._spare))
        free = self._spare[len(self._spare) - reused :]
        del self._spare[len(self._spare) - reused :]
        successors = np.array([*free, *range(self._used, self._used + len(stored) - reused)], np.int64)
        self._used += len(stored) - reused
        for column, values in zip(self._observation_rows, rollout.next_observations, strict=True):
            column[successors] = values.numpy()[stored]
        last_rows = rows[ends[stored]]
        self._next[rows] = (rows + 1) % self.capacity
        self._next[last_rows] = successors
        self._endings[rows] = int(SegmentEnd.CUT)
        self._endings[last_rows] = rollout.endings.numpy()[stored]
        self._stored += count
        self._link(rollout, stored, first + starts, first + ends)
        return rows

    def sample(self, count: int, generator: torch.Generator) -> Replayed:
        """Draw transitions, each one with the same probability, with replacement. The buffer must not be empty."""
        rows = torch.randint(len(self), (count,), generator=generator)
        links = self._links.index_select(0, rows)
        both = torch.cat((rows, links[:, 0]))
        index = torch.arange(2 * count)
        observations = [column.index_select(0, both) for column in self._observations]
        return self._replayed(observations, index[:count], index[count:], rows, links[:, 1], None, 1)

    def next_actions(self, rows: Int[Tensor, " R"]) -> tuple[Float[Tensor, "R C"], Bool[Tensor, " R"]]:
        """Return the continuous action that was taken at the observation behind each row, and whether any was."""
        following = self._links[rows, 0]
        known = following < self.capacity
        return self._numbers[torch.where(known, following, 0), : self._columns_of_actions], known

    def sequences(self, starts: Int[Tensor, " Q"], length: int) -> Replayed:
        """Return the sequences that begin at given rows and follow their episodes.

        They have `length` steps, or fewer where the episode or what is known of it ends.
        """
        count = len(starts)
        chain = starts.new_empty((count, length + 1))
        chain[:, 0] = starts
        real = torch.empty((count, length), dtype=torch.bool)
        for step in range(length):
            rows = chain[:, step]
            in_ring = rows < self.capacity
            real[:, step] = in_ring
            # What has no step on it is the end of the sequence, and stays so for the rest of it.
            followed = self._links[rows.clamp(max=self.capacity - 1), 0]
            chain[:, step + 1] = torch.where(in_ring, followed, rows)
        last = real.sum(1, keepdim=True) - 1  # (Q, 1) the last real step of each sequence
        steps = torch.minimum(torch.arange(length).expand(count, length), last)  # padding repeats the last real one
        index = torch.arange(count).unsqueeze(1) * (length + 1) + steps
        rows = chain.gather(1, steps).view(-1)
        observations = [column.index_select(0, chain.view(-1)) for column in self._observations]
        index = index.view(-1)
        endings = self._links[rows, 1]
        replayed = self._replayed(observations, index, index + 1, rows, endings, real.view(-1), length)
        if not self._any_forbidden:
            return replayed
        following = chain[:, -1]  # stays where a sequence ends, so this is the row behind each
        masks = self._masks.index_select(0, following.clamp(max=self.capacity - 1))
        return replayed._replace(following_masks=masks | (following >= self.capacity).unsqueeze(1))

    def state_dict(self) -> State:
        """Return everything. The tensors are *views* of the buffer: write them before anything else is stored."""
        streams = [[*key, *stream] for key, stream in self._streams.items()]
        return {
            "capacity": self.capacity,
            "stored": self._stored,
            "used": self._used,
            "spare": torch.tensor(self._spare, dtype=torch.int64),
            "streams": torch.tensor(streams, dtype=torch.int64).view(-1, 5),
            "any_forbidden": self._any_forbidden,
            "steps": [column[: len(self)] for column in self._step_columns()],
            "observations": [column[: len(self)] for column in self._observations],
            "successors": [column[self.capacity : self._used] for column in self._observations],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken. From one of another capacity take the newest that fit."""
        if state["capacity"] != self.capacity:
            state = _resized(state, self.capacity)
        self._stored, self._used = state["stored"], state["used"]
        self._spare = state["spare"].tolist()
        self._streams = {
            (simulator, agent): _Stream(*stream) for simulator, agent, *stream in state["streams"].tolist()
        }
        self._any_forbidden = state["any_forbidden"]
        for column, saved in zip(self._step_columns(), state["steps"], strict=True):
            column[: len(self)] = saved
        saved_rows = zip(self._observations, state["observations"], state["successors"], strict=True)
        for column, steps, successors in saved_rows:
            column[: len(self)] = steps
            column[self.capacity : self._used] = successors

    def _step_columns(self) -> list[Tensor]:
        return [self._numbers, self._discrete, self._masks, self._memories, self._links]

    def _write_steps(self, spans: "list[_Span]", rollout: Rollout) -> None:
        """Write all columns of steps but how they end."""
        _write(self._actions, spans, rollout.continuous)
        _write(self._rewards, spans, rollout.rewards)
        _write(self._group_rewards, spans, rollout.group_rewards)
        if self._discrete.shape[1]:
            _write(self._discrete.numpy(), spans, rollout.discrete)
            masks = rollout.action_masks
            for rows, source in spans:
                self._masks[rows] = True if masks is None else masks[source]
            self._any_forbidden = self._any_forbidden or not (masks is None or bool(masks.all()))
        if rollout.memories is not None:
            _write(self._memories.numpy(), spans, rollout.memories)

    def _link(
        self, rollout: Rollout, stored: NDArray[np.intp], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Point the last step of what a segment goes on from to its first step; `starts`, `ends` are serial numbers."""
        oldest = self._stored - len(self)
        keys = rollout.keys.tolist()
        endings = rollout.endings.tolist()
        for segment in stored.tolist():
            simulator, agent, episode, sequence = keys[segment]
            before = self._streams.pop((simulator, agent), None)
            if (
                before is not None
                and (before.episode, before.sequence) == (episode, sequence - 1)
                and before.serial >= oldest
                and starts[segment] >= oldest
            ):
                row = before.serial % self.capacity
                self._spare.append(int(self._next[row]))
                self._next[row] = starts[segment] % self.capacity
            if endings[segment] == SegmentEnd.CUT:
                self._streams[simulator, agent] = _Stream(episode, sequence, int(ends[segment]))
        if len(self._streams) > self._most_streams:
            self._forget()

    def _forget(self) -> None:
        """Forget streams that can't go on any more, as their last step is gone."""
        oldest = self._stored - len(self)
        self._streams = {key: stream for key, stream in self._streams.items() if stream.serial >= oldest}
        self._most_streams = max(MOST_STREAMS, 2 * len(self._streams))

    def _replayed(
        self,
        observations: list[Tensor],
        index: Tensor,
        next_index: Tensor,
        rows: Tensor,
        endings: Tensor,
        real: Tensor | None,
        length: int,
    ) -> Replayed:
        numbers = self._numbers.index_select(0, rows)
        columns = self._columns_of_actions
        return Replayed(
            observations=observations,
            index=index,
            next_index=next_index,
            continuous=numbers[:, :columns],
            discrete=self._discrete.index_select(0, rows).long()
            if self._discrete.shape[1]
            else rows.new_empty(len(rows), 0),
            masks=self._masks.index_select(0, rows) if self._any_forbidden else None,
            rewards=numbers[:, columns],
            group_rewards=numbers[:, columns + 1],
            terminated=endings == int(SegmentEnd.TERMINATED),
            ended=endings != int(SegmentEnd.CUT),
            memories=self._memories.index_select(0, rows[::length]) if self._memories.shape[1] else None,
            real=real,
            length=length,
            rows=rows,
        )


def _resized(state: State, capacity: int) -> State:
    """Return the state of a buffer of another capacity with the newest transitions that it holds."""
    former, stored = state["capacity"], state["stored"]
    count = min(stored, former, capacity)
    first = stored - count  # serial number of the oldest that is kept; it becomes 0
    rows = torch.arange(first, stored) % former
    *columns, links = [column[rows] for column in state["steps"]]
    following = links[:, 0].clone()
    outside = following >= former  # of the ring
    serials = first + (following - first) % former  # of what lies in the ring: within `former` of the oldest
    successors = int(outside.sum())
    links[:, 0] = torch.where(outside, capacity + outside.cumsum(0) - 1, serials - first)
    streams = state["streams"][state["streams"][:, 4] >= first].clone()
    streams[:, 4] -= first
    return {
        **state,
        "capacity": capacity,
        "stored": count,
        "used": capacity + successors,
        "spare": torch.empty(0, dtype=torch.int64),
        "streams": streams,
        "steps": [*columns, links],
        "observations": [column[rows] for column in state["observations"]],
        "successors": [column[following[outside] - former] for column in state["successors"]],
    }


_Span = tuple[slice, slice]
"""Rows of the ring, and the rows of a rollout that they take."""


def _reserve(rows: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Tensor:
    """Return a column whose pages become memory when they are first written."""
    size = rows * prod(shape) * dtype.itemsize
    if not size:
        return torch.from_numpy(np.empty((rows, *shape), dtype))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(rows, *shape))


def _write(column: NDArray[Any], spans: list[_Span], values: Tensor) -> None:
    source = values.numpy()
    for rows, taken in spans:
        column[rows] = source[taken]
