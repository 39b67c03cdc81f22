"""The snapshots that the collectors of a former attempt handed over, and who gets which of them.

Collectors of this host get those of all simulators that they served: simulators come back to any of them. An edge
collector gets only what it has handed over itself, if it takes its former place: no stranger sees snapshots of others'
simulators, or can make their collectors forget them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ludus.collector.snapshots.state import State, merged
from worker.collectors.collector_process import Collector, EdgePlace

OWNER: Final = "owner"
"""Key of a snapshot: the identity of the edge collector that handed it over. Those of local collectors lack it."""
EMPTY: Final[State] = {"lanes": {}, "sessions": []}


class KeptSnapshots:
    """The snapshots of one attempt's beginning, by collector. The pool's lock guards every method."""

    def __init__(self, states: Sequence[State] = ()) -> None:
        self._states = list(states)

    def sessions(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield each session, with its owner's identity; empty: a collector of this host."""
        for each in self._states:
            for session in each["sessions"]:
                yield session, each.get(OWNER, "")

    def owner(self, index: int) -> str:
        """Return the identity of the edge collector that handed over the snapshot of a place; empty: none did."""
        return self._states[index].get(OWNER, "") if index < len(self._states) else ""

    def take(self, child: Collector) -> State | None:
        """Return the part that a collector needs, None if there is none. Sessions are large: a place's go with it."""
        if isinstance(child, EdgePlace):
            index = child.index
            if not child.identity or self.owner(index) != child.identity:
                return None
            state = self._states[index]
            self._states[index] = {**state, "sessions": []}
            return {"lanes": state["lanes"], "sessions": state["sessions"]}
        own = [each if OWNER not in each else EMPTY for each in self._states]
        return merged(own, child.index) if own else None

    def forget_local_sessions(self) -> None:
        """Forget the sessions of local collectors: they are sent."""
        self._states = [each if OWNER in each else {**each, "sessions": []} for each in self._states]

    def advance(self, behavior: str, count: int) -> list[tuple[int, int, int]]:
        """Return (collector, round, steps) of what each of `count` collectors had answered in advance."""
        return [
            (collector, number, steps)
            for collector, each in enumerate(self._states[:count])
            for number, steps in each["lanes"].get(behavior, {}).get("advance", [])
        ]
