"""The versions of a policy that are kept as opponents: a ring of the newest, starting with the untrained policy."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a policy."""

    number: int
    """Counted from 0 over the whole run."""
    step: int
    """Agent steps that it had learned from."""
    weights: NDArray[np.float32]
    """Flat, with the normaliser's statistics, as collectors load them."""


class SnapshotPool:
    """The newest `window` snapshots, oldest first."""

    def __init__(self, window: int) -> None:
        self._ring: deque[Snapshot] = deque(maxlen=window)
        self._saved = 0

    def save(self, step: int, weights: NDArray[np.float32]) -> Snapshot:
        """Keep a version; the oldest one goes if there are too many."""
        snapshot = Snapshot(self._saved, step, weights)
        self._ring.append(snapshot)
        self._saved += 1
        return snapshot

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that are kept."""
        return tuple(self._ring)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs."""
        kept = [{"number": one.number, "step": one.step, "weights": one.weights} for one in self._ring]
        return {"saved": self._saved, "snapshots": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; of a larger window the newest remain."""
        self._saved = state["saved"]
        self._ring.clear()
        self._ring.extend(Snapshot(**one) for one in state["snapshots"])
