"""Demonstrations on the device: for GAIL's discriminator, and for behavioral cloning.

Several demonstrations are one; the boundaries between them are boundaries between pieces. All observations lie in one
pool, first the rows, then the final observations of the pieces, as in `worker.experience.transitions`.

Dimensions: `N` demonstrated steps, `E` pieces, `P = N + E` rows of the pool, `Q` sequences, `L` steps of a sequence.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.demonstrations import Demonstration, DemonstrationError, check_fit, load
from ludus.protocol.batches import Array
from ludus.protocol.spec import BehaviorSpec, ObservationSpec
from worker.experience.transitions import Sequences, Transitions, sequences_of
from worker.learning.functional.distributions import branch_bounds


class DemonstrationBuffer:
    """All demonstrated steps of one behavior."""

    transitions: Transitions
    """All steps in their order. Do not change."""
    masks: Tensor | None
    """(N, M) bool, true = the choice was allowed; a choice that was taken counts as allowed. None: all were."""
    lengths: Tensor
    """(E,) int64: steps of each piece."""

    def __init__(
        self, demonstrations: Sequence[Demonstration], spec: BehaviorSpec, device: torch.device | str = "cpu"
    ) -> None:
        """Raise `DemonstrationError`, with both shapes, if one does not fit the behavior, or if there is none."""
        if not demonstrations:
            raise DemonstrationError(f"behavior {spec.name!r} has no demonstration to learn from; name at least one")
        for demonstration in demonstrations:
            check_fit(demonstration.spec, spec)
        self.lengths = _joined([demonstration.lengths for demonstration in demonstrations], device)
        self.transitions = _transitions(demonstrations, spec, self.lengths.cpu(), device)
        self.steps = self.transitions.steps
        """`N`."""
        self.masks = _masks(demonstrations, spec, self.transitions.discrete, device)

    def sample(self, count: int, generator: torch.Generator) -> Transitions:
        """Draw steps uniformly, with replacement. `generator` lives on the CPU."""
        rows = torch.randint(self.steps, (count,), generator=generator)
        return self.transitions.select(rows.to(self.transitions.index.device))

    def sequences(self, length: int) -> Sequences:
        """Cut the pieces into sequences of `length` steps; the rows are those of `transitions`."""
        return sequences_of(self.lengths, length)

    def observations(self, rows: Tensor) -> list[Tensor]:
        """Return the observations of these steps: one per ObservationSpec, (len(rows), *shape), raw."""
        return [values[rows] for values in self.transitions.observations]


def load_demonstrations(paths: Sequence[str | Path], *, legacy_pairing: bool = False) -> list[Demonstration]:
    """Read files, or all files of folders. Raises `DemonstrationError` for the first that cannot be used."""
    return [demonstration for path in paths for demonstration in load(path, legacy_pairing=legacy_pairing)]


def _transitions(
    demonstrations: Sequence[Demonstration], spec: BehaviorSpec, lengths: Tensor, device: torch.device | str
) -> Transitions:
    steps = int(lengths.sum())
    ends = lengths.cumsum(0) - 1
    next_index = torch.arange(1, steps + 1)
    next_index[ends] = torch.arange(steps, steps + len(ends))
    pool = []
    for index, expected in enumerate(spec.observations):
        rows = [_as_seen(demonstration.observations[index], expected) for demonstration in demonstrations]
        finals = [_as_seen(demonstration.final_observations[index], expected) for demonstration in demonstrations]
        pool.append(_joined([*rows, *finals], device))
    terminated = [demonstration.terminated for demonstration in demonstrations]
    ended = [demonstration.terminated | demonstration.truncated for demonstration in demonstrations]
    return Transitions(
        observations=pool,
        index=torch.arange(steps, device=device),
        next_index=next_index.to(device),
        continuous=_joined([demonstration.continuous for demonstration in demonstrations], device),
        discrete=_joined([demonstration.discrete for demonstration in demonstrations], device).long(),
        rewards=_joined([demonstration.rewards for demonstration in demonstrations], device),
        group_rewards=_joined([_group_rewards(demonstration) for demonstration in demonstrations], device),
        terminated=_joined(terminated, device),
        ended=_joined(ended, device),
    )


def _masks(
    demonstrations: Sequence[Demonstration], spec: BehaviorSpec, discrete: Tensor, device: torch.device | str
) -> Tensor | None:
    """Return all masks. People are not held to them as policies are, so their choices count as allowed."""
    if all(demonstration.action_masks is None for demonstration in demonstrations):
        return None
    width = spec.actions.mask_size
    parts = [
        np.ones((demonstration.steps, width), np.uint8)
        if demonstration.action_masks is None
        else demonstration.action_masks
        for demonstration in demonstrations
    ]
    masks = _joined(parts, device).bool()
    starts = [start for start, _ in branch_bounds(spec.actions.discrete_branches)]
    masks.scatter_(1, discrete + torch.tensor(starts, device=device), value=True)
    return masks


def _as_seen(values: Array, expected: ObservationSpec) -> Array:
    """Turn an observation into the behavior's dtype: pictures are 0 to 255 in uint8, 0 to 1 in float32."""
    if values.dtype == np.dtype(expected.dtype):
        return values
    if expected.dtype == "uint8":
        scaled: Array = np.rint(values.clip(0.0, 1.0) * 255.0).astype(np.uint8)
        return scaled
    as_float: Array = values.astype(np.float32)
    return as_float / np.float32(255.0)


def _group_rewards(demonstration: Demonstration) -> Array:
    if demonstration.group_rewards is None:
        return np.zeros(demonstration.steps, np.float32)
    return demonstration.group_rewards


def _joined(parts: Sequence[Array], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)
