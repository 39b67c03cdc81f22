"""The training state of an algorithm, for checkpoints and for the rollback of a diverged update."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from worker.learning.algorithms.numeric_check import Diverged


@runtime_checkable  # by tests, which check every annotation
class Restorable(Protocol):
    """Something that an update changes and can take back."""

    def snapshot(self) -> Any:
        """Return a copy to go back to."""

    def restore(self, snapshot: Any, /) -> None:
        """Go back to a snapshot."""


@runtime_checkable  # as above
class Stateful(Protocol):
    """Something that is written to checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything. Tensors are copies."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Go on exactly where `state_dict` was taken."""


Stored: TypeAlias = Stateful | torch.Generator | Tensor | None


class Buffers:
    """Tensors that an update changes beside the optimizer's: counts, a target network."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def snapshot(self) -> list[Tensor]:
        """Return copies."""
        return [tensor.clone() for tensor in self._tensors]

    @torch.no_grad()
    def restore(self, snapshot: list[Tensor]) -> None:
        """Go back to copies."""
        for tensor, saved in zip(self._tensors, snapshot, strict=True):
            tensor.copy_(saved)


class TrainingState:
    """The parts of an algorithm that its next update depends on."""

    def __init__(self, stored: Mapping[str, Stored], restored: list[Restorable | None]) -> None:
        """`stored`: what checkpoints hold, by key. `restored`: what goes back when an update diverges. None: absent."""
        self._stored = stored
        self._restored = [part for part in restored if part is not None]

    @contextmanager
    def undone_if_diverged(self) -> Iterator[None]:
        """Enclose an update: take a snapshot before it, and go back to that where it raises `Diverged`."""
        snapshots = [part.snapshot() for part in self._restored]
        try:
            yield
        except Diverged:
            for part, snapshot in zip(self._restored, snapshots, strict=True):
                part.restore(snapshot)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return everything. Tensors are copies."""
        return {key: _state_of(part) for key, part in self._stored.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken. A part that is None there stays as it is."""
        for key, part in self._stored.items():
            if state[key] is None or part is None:
                continue
            match part:
                case torch.Generator():
                    part.set_state(state[key].cpu())
                case Tensor():
                    part.copy_(state[key])
                case _:
                    part.load_state_dict(state[key])


def _state_of(part: Stored) -> Any:
    match part:
        case None:
            return None
        case torch.Generator():
            return part.get_state()
        case Tensor():
            return part.detach().clone()
        case nn.Module():
            return {name: tensor.clone() for name, tensor in part.state_dict().items()}
        case _:
            return part.state_dict()
