"""The memory of a recurrent critic: one per agent, through its segments and from round to round.

The actor's memory is kept where it acts; the critic never acts, so the learner replays what each agent lived through.
Segments of one episode that follow each other in a rollout are a chain; the memory runs through it, piece by piece, all
chains at once. At a round's end the memories of episodes that go on are kept for the next one.

Deviation from ML-Agents, on purpose: there all agents share one memory (its key is always empty), so that each agent's
values start from what another one saw.

Dimensions: `N` steps, `B` segments, `Q` sequences, `W` width of a memory, `U` features.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.experience.transitions import Sequences

CriticPass: TypeAlias = Callable[[Int[Tensor, " R"], Float[Tensor, "Q W"], int], tuple[Tensor, Tensor]]
"""(rows, memory before each sequence of them, their length) -> features (R, U), memory after each sequence (Q, W)."""
MOST_AGENTS = 1 << 16
"""Memories that are kept."""


class RecurrentUnroll(NamedTuple):
    """The outputs of a critic with a memory for a rollout."""

    features: Float[Tensor, "N U"]
    before: Float[Tensor, "Q W"]
    """The memory before each sequence."""
    after: Float[Tensor, "B W"]
    """The memory after each segment."""


def unroll(
    rollout: Rollout, sequences: Sequences, initial: Float[Tensor, "B W"], forward: CriticPass
) -> RecurrentUnroll:
    """Run a critic with a memory over a rollout, in order.

    `initial` is the memory before each segment that follows no other one of the rollout.

    As many calls of `forward` as the longest chain has sequences, times the different lengths among them.
    """
    device, segments = initial.device, sequences.segments.numpy()
    before, after = (initial.new_zeros(len(segments), initial.shape[1]) for _ in range(2))
    previous, depth = _order(rollout, segments)
    lengths = sequences.mask.sum(1).numpy()
    features: Tensor | None = None
    for level in range(int(depth.max()) + 1):
        for length in np.unique(lengths[depth == level]).tolist():
            batch = np.flatnonzero((depth == level) & (lengths == length))
            goes_on = torch.from_numpy(previous[batch] >= 0).to(device).unsqueeze(1)
            before[batch] = torch.where(goes_on, after[previous[batch]], initial[segments[batch]])
            rows = sequences.rows[batch, :length].reshape(-1).to(device)
            features_of_rows, after[batch] = forward(rows, before[batch], length)
            if features is None:
                features = features_of_rows.new_empty(rollout.steps, features_of_rows.shape[1])
            features[rows] = features_of_rows
    assert features is not None, "a rollout has steps"
    last = np.flatnonzero(np.append(segments[1:] != segments[:-1], True))
    return RecurrentUnroll(features, before, after[last])


def _order(rollout: Rollout, segments: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return for each sequence the one before it in its chain (-1 for none), and how many there are before it."""
    keys = rollout.keys.numpy()
    order = np.lexsort(keys.T[::-1])
    follows = np.zeros(len(keys), bool)
    follows[1:] = (keys[order[1:]] == keys[order[:-1]] + [0, 0, 0, 1]).all(1)
    pieces = np.bincount(segments, minlength=len(keys))
    stops = np.cumsum(pieces)  # the sequence after each segment
    ahead = np.cumsum(pieces[order]) - pieces[order]
    start = np.maximum.accumulate(np.where(follows, 0, ahead))  # `ahead` of the chain's first segment
    depth, previous = np.empty(len(keys), np.int64), np.full(len(keys), -1)
    depth[order] = ahead - start
    previous[order[1:][follows[1:]]] = stops[order[:-1][follows[1:]]] - 1
    place = np.arange(len(segments)) - (stops - pieces)[segments]
    return np.where(place > 0, np.arange(len(segments)) - 1, previous[segments]), depth[segments] + place


class CriticMemories:
    """The critic's memory of agents whose episodes continue."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._values = torch.zeros(0, width, device=device)

    def before(self, rollout: Rollout) -> Float[Tensor, "B W"]:
        """Return the memory before each segment: zeros, unless the segment before it was in an earlier round."""
        keys = rollout.keys.numpy() - [0, 0, 0, 1]
        places = torch.tensor([self._places.get(tuple(key), len(self._places)) for key in keys.tolist()])
        nothing = self._values.new_zeros(1, self._values.shape[1])
        return torch.cat([self._values, nothing])[places.to(self._values.device)]

    def keep(self, rollout: Rollout, after: Float[Tensor, "B W"]) -> None:
        """Keep the memories after the segments whose episodes go on, and those of agents that had no step in a rollout.

        Of too many agents the ones not heard of for longest are forgotten.
        """
        keys = rollout.keys.numpy()
        present = {tuple(key) for key in keys.tolist()}
        has_next = torch.tensor([(*key, place + 1) in present for *key, place in keys.tolist()])
        cut = ((rollout.endings == SegmentEnd.CUT) & ~has_next).nonzero().squeeze(1)
        heard = {tuple(key) for key in keys[:, :2].tolist()}
        silent = {key: index for key, index in self._places.items() if key[:2] not in heard}
        agents = [*silent, *(tuple(key) for key in keys[cut.numpy()].tolist())][-MOST_AGENTS:]
        waiting = torch.tensor([*silent.values()], dtype=torch.int64, device=after.device)
        self._values = torch.cat([self._values[waiting], after[cut.to(after.device)]])[-MOST_AGENTS:]
        self._places = {key: index for index, key in enumerate(agents)}

    def state_dict(self) -> State:
        """Return everything. The tensors are copies."""
        return {"agents": torch.tensor(list(self._places)).view(-1, 4), "values": self._values.clone()}

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        self._places = {tuple(key): index for index, key in enumerate(state["agents"].tolist())}
        self._values = state["values"].to(self._values.device).clone()
