"""Sentences about the reason of a waiting run, and the rule for when a person has to act. No database, no clock.

A run needs a person when it will not go on by itself:

- it is PAUSED. One that a simulator wakes (`simulators.auto_resume`) counts after `SETTLE_SECONDS`: simulators that
  have received the pause ask again at once, and may wake it in the same second.
- a worker holds it, but it has no simulator, its configuration sets no limit to that (`startup_grace_seconds: null`),
  and `FAIR_CHANCE_SECONDS` have passed. A run with a limit pauses by itself, and counts then.
- it is queued, and for `FAIR_CHANCE_SECONDS` neither a live worker nor a declared pool could serve it: hosts that are
  started on demand take minutes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ludus.config.run import SimulatorsConfig
from ludus.schemas.states import RunKind, RunState, StopReason

SETTLE_SECONDS: Final = 5.0
FAIR_CHANCE_SECONDS: Final = 600.0
NAMED: Final = 5
"""Most runs that a sentence names."""


@dataclass(frozen=True)
class Absence:
    """A run that a worker holds has no simulator."""

    seconds: float
    """For how long."""
    joined: bool
    """Whether the present attempt has had one."""

    @property
    def overdue(self) -> bool:
        """Whether the run needs a person if its configuration sets no limit to the wait for the first one."""
        return not self.joined and self.seconds >= FAIR_CHANCE_SECONDS

    def __str__(self) -> str:
        what = "all simulators have been gone" if self.joined else "no simulator has joined"
        return f"{what} for {span(self.seconds)}"


@dataclass(frozen=True)
class Holder:
    """A run that holds a slot."""

    name: str | None
    """None: it is of a project that the reader does not see."""
    state: RunState
    absence: Absence | None
    project: str | None = None
    """The run's project, where it is not that of the run that waits; said only with the name."""

    def __str__(self) -> str:
        who = "a run of another project" if self.name is None else f"run {self.name}"
        if self.name is not None and self.project is not None:
            who = f"{who} of project {self.project}"
        return f"{who} ({self.state}{f', {self.absence}' if self.absence else ''})"


def held_by(holders: Iterable[Holder]) -> str:
    """Name the runs that hold slots, those without a simulator first: to end one of them costs nothing."""
    ordered = sorted(holders, key=lambda one: (one.absence is None, one.name is None, one.name or ""))
    named = [str(one) for one in ordered[:NAMED]]
    if len(ordered) > NAMED:
        named.append(f"{len(ordered) - NAMED} more")
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def waits_for_a_slot(holders: list[Holder], *, keeps_last_gpu: bool = False) -> str:
    """Return the sentence that all slots that could train a run are taken, with their holders.

    `keeps_last_gpu`: one more is idle, and is kept for a run that demands a GPU.
    """
    if keeps_last_gpu:
        kept = "the last idle one with GPUs is kept for a while for a run that demands one; the others are"
        return f"A free slot: {kept} held by {held_by(holders)}."
    slots = "the only slot that can train it is" if len(holders) == 1 else f"all {len(holders)} slots are"
    return f"A free slot: {slots} held by {held_by(holders)}."


def repair(last_words: str | None) -> str:
    """Return the rest of the sentence that a run waits: why its last simulator is gone, if that comes again."""
    return "" if last_words is None else f"; mend this before you start it again: {last_words}"


def waits_for_simulators(absence: Absence, limits: SimulatorsConfig | None, last_words: str | None = None) -> str:
    """Return the sentence that a run waits for simulators; with its `limits`, for how long."""
    sentence = f"Simulators: {absence}{repair(last_words)}."
    if limits is None:
        return sentence
    key = "grace_seconds" if absence.joined else "startup_grace_seconds"
    grace = limits.grace_seconds if absence.joined else limits.startup_grace_seconds
    if grace is None:
        return f"{sentence} It waits without limit (simulators.{key})."
    return f"{sentence} It pauses after {span(grace)} without one (simulators.{key})."


def stays_paused(reason: str | None, paused_seconds: float) -> bool:
    """Return whether a PAUSED run needs a person whatever its configuration says."""
    return reason != StopReason.SIMULATORS_LOST or paused_seconds >= SETTLE_SECONDS


def needs_simulators(kind: str) -> bool:
    """Return whether runs of a kind need simulators."""
    return kind != RunKind.CLONE


def span(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
