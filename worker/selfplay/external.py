"""External opponents (`self_play.opponents`): policies of other runs, and scripted ones, beside the own snapshots.

An external opponent is drawn, served and rated like a snapshot, but it stays for the whole run, outside of the window.
Its weights are part of every checkpoint, so that a run resumes against the same opponents after theirs are deleted.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ludus.config.selfplay import RANDOM, Opponent, parse_opponent
from worker.experience.state import State
from worker.learning.networks.actor import Actor
from worker.mlagents.algorithms import Misfit
from worker.mlagents.file import Unreadable
from worker.trainer.checkpoint import CheckpointDamaged, load
from worker.trainer.initialization import InitializationError, Sources, behavior_of, fitting_policy


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

    def state_dict(self) -> State:
        """Return everything that `load_state_dict` needs."""
        snapshots = [
            {"number": snapshot.number, "step": snapshot.step, "weights": snapshot.weights} for snapshot in self._ring
        ]
        return {"saved": self._saved, "snapshots": snapshots}

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was taken; of a larger window the newest remain."""
        self._saved = state["saved"]
        self._ring.clear()
        self._ring.extend(Snapshot(**snapshot) for snapshot in state["snapshots"])


FIRST_KEY: Final = 1 << 48
"""The key of the first external opponent (`ludus.collector.opponents`): no snapshot's number is as large."""


@dataclass(frozen=True, slots=True)
class ExternalOpponent(Snapshot):
    """A policy of another run, or a scripted one. Its `number` is the key that collectors know it by."""

    checkpoint: str | None
    """Id of the checkpoint that it is from; None: it is scripted."""
    behavior: str
    """The behavior in that checkpoint."""
    snapshot: int | None
    """Number of the snapshot in that checkpoint's own pool; None: the policy that learned."""

    @property
    def name(self) -> Opponent:
        """Its name in the configuration."""
        if self.checkpoint is None:
            return RANDOM
        return self.checkpoint if self.snapshot is None else f"{self.checkpoint}#{self.snapshot}"


class ExternalOpponents:
    """The external opponents of one behavior. Their keys count from `FIRST_KEY`, in the order in which they were
    added."""

    def __init__(self) -> None:
        self.opponents: list[ExternalOpponent] = []
        """All of them, in the order of their keys."""

    def find(self, key: int) -> ExternalOpponent | None:
        """Return the one with a key; None if there is none."""
        return next((opponent for opponent in self.opponents if opponent.number == key), None)

    def add(
        self, names: Sequence[Opponent], sources: Sources, behavior: str, actor: Actor, section: str
    ) -> list[ExternalOpponent]:
        """Add those of `names` that are not here yet; return the new ones.

        `actor` is the network of the behavior, which theirs must equal; `section` is the path of its configuration.
        Raise `InitializationError`.
        """
        present = {opponent.name for opponent in self.opponents}
        added = []
        for index, name in enumerate(names):
            if name not in present:
                try:
                    opponent = _read(FIRST_KEY + len(self.opponents), name, sources, behavior, actor)
                except InitializationError as error:
                    raise InitializationError(f"{section}.self_play.opponents[{index}]: {error}") from error
                self.opponents.append(opponent)
                added.append(opponent)
        return added

    def state_dict(self) -> list[State]:
        """Return everything that `load_state_dict` needs."""
        return [asdict(opponent) for opponent in self.opponents]

    def load_state_dict(self, state: Sequence[State]) -> None:
        """Load the result of `state_dict`."""
        self.opponents = [ExternalOpponent(**opponent) for opponent in state]


def _read(key: int, name: Opponent, sources: Sources, behavior: str, actor: Actor) -> ExternalOpponent:
    """Return the policy that a name stands for. Raise `InitializationError` where it can't play the behavior."""
    if name == RANDOM:
        return ExternalOpponent(key, 0, _random(actor), None, behavior, None)
    checkpoint, number = parse_opponent(name)
    problems: list[str] = []
    try:
        name_there, saved = behavior_of(load(sources.folder(checkpoint)), behavior)
        policy = fitting_policy(actor.state_dict(), saved["algorithm"], problems)
        taken = None if number is None else _snapshot(saved, name_there, number)
    except (CheckpointDamaged, Unreadable) as error:
        raise InitializationError(f"checkpoint {name} can't be an opponent of {behavior!r}: {error}") from error
    if problems:
        raise InitializationError(
            f"checkpoint {name} can't play {behavior!r}: {Misfit(problems)}. Name a checkpoint of a behavior that sees "
            "and does the same, with the same network_settings and trainer_type"
        )
    if taken is None:
        twin = deepcopy(actor)
        twin.load_state_dict(policy)
        taken = int(saved["progress"]["step"]), twin.flatten()
    step, weights = taken
    return ExternalOpponent(key, step, weights, checkpoint, name_there, number)


def _random(actor: Actor) -> NDArray[np.float32]:
    """Return weights of nothing but zeros: all choices are as likely, means are 0 and deviations 1."""
    twin = deepcopy(actor)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    return twin.flatten()


def _snapshot(saved: State, behavior: str, number: int) -> tuple[int, NDArray[np.float32]]:
    """Return for how many steps a snapshot in a checkpoint's pool had learned, and its weights. Raise `Unreadable`."""
    pool = saved["self_play"]["ghost"]["pool"]["snapshots"] if "self_play" in saved else []
    for snapshot in pool:
        if snapshot["number"] == number:
            return int(snapshot["step"]), snapshot["weights"]
    numbers = ", ".join(str(snapshot["number"]) for snapshot in pool) or "none at all"
    raise Unreadable(f"it has no snapshot {number} of {behavior!r}, but {numbers}")
