"""The training state of an algorithm, for checkpoints and for the rollback of a diverged update."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from worker.experience.state import State
from worker.learning.algorithms.numeric_check import Diverged


@runtime_checkable  # by tests, which check every annotation
class Restorable(Protocol):
    """Something that is restored in another way than from its state for checkpoints, because that is faster."""

    def snapshot(self) -> Any:
        """Return a copy to go back to."""

    def restore(self, snapshot: Any, /) -> None:
        """Go back to a snapshot."""


@runtime_checkable  # as above
class Stateful(Protocol):
    """Something that is written to checkpoints."""

    def state_dict(self) -> State:
        """Return everything. Tensors are copies."""

    def load_state_dict(self, state: State, /) -> Any:
        """Go on exactly where `state_dict` was taken."""


Stored: TypeAlias = Stateful | torch.Generator | Tensor
Changed: TypeAlias = Restorable | Stored


class TrainingState:
    """The parts of an algorithm that its next update depends on."""

    def __init__(self, stored: Mapping[str, Stored | None], changed: Iterable[Changed | None]) -> None:
        """`stored`: the content of checkpoints, by key. `changed`: restored when an update diverges. None: absent."""
        self._stored = stored
        self._changed = [
            (part.snapshot, part.restore)
            if isinstance(part, Restorable)
            else (partial(_state_of, part), partial(_load, part))
            for part in changed
            if part is not None
        ]

    @contextmanager
    def undone_if_diverged(self) -> Iterator[None]:
        """Enclose an update: take a snapshot before it, and go back to that where it raises `Diverged`."""
        snapshots = [(restore, snapshot()) for snapshot, restore in self._changed]
        try:
            yield
        except Diverged:
            for restore, snapshot in snapshots:
                restore(snapshot)
            raise

    def state_dict(self) -> State:
        """Return everything. Tensors are copies."""
        return states_of(self._stored)

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken; see `load_states`."""
        load_states(self._stored, state)


def states_of(parts: Mapping[str, Stored | None]) -> State:
    """Return the state of each part, by key. Tensors are copies."""
    return {key: None if part is None else _state_of(part) for key, part in parts.items()}


def load_states(parts: Mapping[str, Stored | None], states: State) -> None:
    """Go on exactly where `states_of` was taken. A part that is None on either side stays as it is."""
    for key, part in parts.items():
        if part is not None and states[key] is not None:
            _load(part, states[key])


def _state_of(part: Stored) -> Any:
    match part:
        case torch.Generator():
            return part.get_state()
        case Tensor():
            return part.detach().clone()
        case nn.Module():
            return {name: tensor.clone() for name, tensor in part.state_dict().items()}
        case _:
            return part.state_dict()


@torch.no_grad()
def _load(part: Stored, state: Any) -> None:
    match part:
        case torch.Generator():
            part.set_state(state.cpu())
        case Tensor():
            part.copy_(state)
        case _:
            part.load_state_dict(state)
