"""Guests: policies of other runs, and scripted ones, as opponents (`self_play.opponents`), beside the own snapshots.

A guest is drawn, served and rated like a snapshot, but never grows old: it stays beside the window for the whole run.
Its weights are part of every checkpoint, so that a run goes on against the same opponents whatever became of theirs.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from server.config.selfplay import RANDOM, Opponent, parse_opponent
from worker.learning.networks.actor import Actor
from worker.mlagents.algorithms import Misfit
from worker.mlagents.file import Unreadable
from worker.selfplay.pool import Snapshot
from worker.trainer.checkpoint import CheckpointDamaged, load
from worker.trainer.initialization import InitializationError, Sources, behavior_of, fitting_policy

GUESTS: Final = 1 << 48
"""The key of the first guest (`ludus.collector.opponents`): no snapshot's number is as large."""


@dataclass(frozen=True, slots=True)
class Guest(Snapshot):
    """A policy of another run, or a scripted one. Its `number` is the key that collectors know it by."""

    checkpoint: str | None
    """Id of the checkpoint that it is from; None: it is scripted."""
    behavior: str
    """Whose policy it is there."""
    snapshot: int | None
    """Number of the snapshot in that checkpoint's own pool; None: the policy that learnt."""

    @property
    def name(self) -> Opponent:
        """What the configuration calls it."""
        if self.checkpoint is None:
            return RANDOM
        return self.checkpoint if self.snapshot is None else f"{self.checkpoint}#{self.snapshot}"


class GuestList:
    """The guests of one behavior. Their keys count on from `GUESTS`, in the order in which they came."""

    def __init__(self) -> None:
        self._guests: list[Guest] = []

    @property
    def all(self) -> tuple[Guest, ...]:
        """Everybody, in the order of their keys."""
        return tuple(self._guests)

    def find(self, key: int) -> Guest | None:
        """Return a guest by its key."""
        return next((guest for guest in self._guests if guest.number == key), None)

    def invite(
        self, names: Sequence[Opponent], sources: Sources, behavior: str, actor: Actor, section: str
    ) -> list[Guest]:
        """Let those come who are named and not here yet; return them.

        `actor` is the network of the behavior, which theirs must be like; `section` is where the configuration has it.
        Raise `InitializationError`.
        """
        known = {guest.name for guest in self._guests}
        fresh = []
        for index, name in enumerate(names):
            if name not in known:
                try:
                    guest = _read(GUESTS + len(self._guests), name, sources, behavior, actor)
                except InitializationError as error:
                    raise InitializationError(f"{section}.self_play.opponents[{index}]: {error}") from error
                self._guests.append(guest)
                fresh.append(guest)
        return fresh

    def state_dict(self) -> list[dict[str, Any]]:
        """Return everything that `load_state_dict` needs."""
        return [asdict(guest) for guest in self._guests]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Go on where `state_dict` was taken."""
        self._guests = [Guest(**one) for one in state]


def _read(key: int, name: Opponent, sources: Sources, behavior: str, actor: Actor) -> Guest:
    """Return the policy that a name stands for. Raise `InitializationError` where it can't play the behavior."""
    if name == RANDOM:
        return Guest(key, 0, _random(actor), None, behavior, None)
    checkpoint, number = parse_opponent(name)
    problems: list[str] = []
    try:
        theirs, saved = behavior_of(load(sources.folder(checkpoint)), behavior)
        policy = fitting_policy(actor.state_dict(), saved["algorithm"], problems)
        taken = None if number is None else _snapshot(saved, theirs, number)
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
    return Guest(key, step, weights, checkpoint, theirs, number)


def _random(actor: Actor) -> NDArray[np.float32]:
    """Return weights of nothing but zeros: all choices are as likely, means are 0 and deviations 1."""
    twin = deepcopy(actor)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    return twin.flatten()


def _snapshot(saved: dict[str, Any], behavior: str, number: int) -> tuple[int, NDArray[np.float32]]:
    """Return for how many steps a snapshot in a checkpoint's pool had learnt, and its weights. Raise `Unreadable`."""
    pool = saved["self_play"]["ghost"]["pool"]["snapshots"] if "self_play" in saved else []
    for one in pool:
        if one["number"] == number:
            return int(one["step"]), one["weights"]
    kept = ", ".join(str(one["number"]) for one in pool) or "none at all"
    raise Unreadable(f"it has no snapshot {number} of {behavior!r}, but {kept}")
