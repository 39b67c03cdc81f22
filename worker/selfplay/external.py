"""External opponents (`self_play.opponents`): policies of other runs, and scripted ones, beside the own snapshots.

An external opponent is drawn, served and rated like a snapshot, but it stays for the whole run, outside of the window;
those of a run that is followed (`run:NAME`) are exchanged for those of each newer checkpoint of it. Their weights are
part of every checkpoint, so that a run resumes against the same opponents after theirs are deleted.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ludus.config.selfplay import RANDOM, Opponent, followed_run, parse_opponent
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
    follows: Opponent | None = None
    """The name in the configuration by which a followed run brought it."""

    @property
    def name(self) -> Opponent:
        """Its name in the configuration."""
        if self.follows is not None:
            return self.follows
        if self.checkpoint is None:
            return RANDOM
        return self.checkpoint if self.snapshot is None else f"{self.checkpoint}#{self.snapshot}"


FORMER: Final = 64
"""Opponents without weights that are remembered, since matches against them may still be under way."""


class ExternalOpponents:
    """The external opponents of one behavior. Their keys count from `FIRST_KEY`, in the order in which they were
    added."""

    def __init__(self) -> None:
        self.opponents: list[ExternalOpponent] = []
        """Those that can be drawn, in the order of their keys."""
        self._former = deque[ExternalOpponent](maxlen=FORMER)
        """Those of followed runs that others have replaced, without their weights."""

    def find(self, key: int) -> ExternalOpponent | None:
        """Return the one with a key, also one that was replaced lately; None if there is none."""
        return next((opponent for opponent in (*self.opponents, *self._former) if opponent.number == key), None)

    @property
    def _next_key(self) -> int:
        """A key that none has had. Of those that are replaced the newest is never gone before the next one is here."""
        return max((opponent.number for opponent in (*self.opponents, *self._former)), default=FIRST_KEY - 1) + 1

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
            if name not in present and followed_run(name) is None:
                try:
                    opponent = _read(self._next_key, name, sources, behavior, actor)
                except InitializationError as error:
                    raise InitializationError(f"{section}.self_play.opponents[{index}]: {error}") from error
                self.opponents.append(opponent)
                added.append(opponent)
        return added

    def follow(
        self, name: Opponent, checkpoint: str, folder: Path, behavior: str, actor: Actor
    ) -> list[ExternalOpponent]:
        """Replace the policies that `name` stands for by those of a newer checkpoint; return the ones that are new.

        A snapshot that was here already stays, with its key. Raise `InitializationError`: all is then as it was.
        """
        try:
            name_there, saved = behavior_of(load(folder), behavior)
            learned = _learned(checkpoint, saved, behavior, actor)
            versions: list[tuple[int | None, int, NDArray[np.float32]]] = [(None, *learned)]
            if name.endswith("#*"):
                versions = [(taken["number"], taken["step"], taken["weights"]) for taken in _pool(saved)]
        except (CheckpointDamaged, Unreadable) as error:
            raise InitializationError(
                f"checkpoint {checkpoint} can't be an opponent of {behavior!r}: {error}"
            ) from error
        present = {opponent.number: opponent for opponent in self.opponents if opponent.follows == name}
        added: list[ExternalOpponent] = []
        gone = set(present)
        for snapshot, step, weights in versions:
            same = (key for key, one in present.items() if one.snapshot == snapshot and (one.weights == weights).all())
            if (key := next(same, None)) is not None:
                gone.remove(key)
            else:
                key = self._next_key + len(added)
                added.append(ExternalOpponent(key, step, weights, checkpoint, name_there, snapshot, name))
        self._former.extend(replace(present[key], weights=present[key].weights[:0]) for key in sorted(gone))
        self.opponents = [*(opponent for opponent in self.opponents if opponent.number not in gone), *added]
        return added

    def state_dict(self) -> list[State]:
        """Return everything that `load_state_dict` needs."""
        return [asdict(opponent) for opponent in (*self.opponents, *self._former)]

    def load_state_dict(self, state: Sequence[State]) -> None:
        """Load the result of `state_dict`."""
        opponents = [ExternalOpponent(**opponent) for opponent in state]
        self.opponents = [opponent for opponent in opponents if opponent.weights.size]
        self._former.extend(opponent for opponent in opponents if not opponent.weights.size)


def _read(key: int, name: Opponent, sources: Sources, behavior: str, actor: Actor) -> ExternalOpponent:
    """Return the policy that a name stands for. Raise `InitializationError` where it can't play the behavior."""
    if name == RANDOM:
        return ExternalOpponent(key, 0, _random(actor), None, behavior, None)
    checkpoint, number = parse_opponent(name)
    try:
        name_there, saved = behavior_of(load(sources.folder(checkpoint)), behavior)
        step, weights = _learned(name, saved, behavior, actor)
        if number is not None:
            step, weights = _snapshot(saved, name_there, number)
    except (CheckpointDamaged, Unreadable) as error:
        raise InitializationError(f"checkpoint {name} can't be an opponent of {behavior!r}: {error}") from error
    return ExternalOpponent(key, step, weights, checkpoint, name_there, number)


def _learned(name: str, saved: State, behavior: str, actor: Actor) -> tuple[int, NDArray[np.float32]]:
    """Return for how many steps the policy of a behavior's state had learned, and its weights.

    Raise `InitializationError` for one that does not fit `actor`.
    """
    problems: list[str] = []
    policy = fitting_policy(actor.state_dict(), saved["algorithm"], problems)
    if problems:
        raise InitializationError(
            f"checkpoint {name} can't play {behavior!r}: {Misfit(problems)}. Name a checkpoint of a behavior that sees "
            "and does the same, with the same network_settings and trainer_type"
        )
    twin = deepcopy(actor)
    twin.load_state_dict(policy)
    return int(saved["progress"]["step"]), twin.flatten()


def _pool(saved: State) -> list[State]:
    """Return the snapshots in a behavior's state, oldest first."""
    return list(saved["self_play"]["ghost"]["pool"]["snapshots"]) if "self_play" in saved else []


def _random(actor: Actor) -> NDArray[np.float32]:
    """Return weights of nothing but zeros: all choices are as likely, means are 0 and deviations 1."""
    twin = deepcopy(actor)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    return twin.flatten()


def _snapshot(saved: State, behavior: str, number: int) -> tuple[int, NDArray[np.float32]]:
    """Return for how many steps a snapshot in a checkpoint's pool had learned, and its weights. Raise `Unreadable`."""
    pool = _pool(saved)
    for snapshot in pool:
        if snapshot["number"] == number:
            return int(snapshot["step"]), snapshot["weights"]
    numbers = ", ".join(str(snapshot["number"]) for snapshot in pool) or "none at all"
    raise Unreadable(f"it has no snapshot {number} of {behavior!r}, but {numbers}")
