"""Which collector serves which simulator, and who may say so.

A simulator that joins again with its session id belongs to the collector of this host that it comes to: an older stream
elsewhere has not noticed yet that it is dead. Edge collectors are strangers, and may name any id. A session that
another collector serves stays there until it ends, or the stream of that collector does; a game that really moves
waits so long. When a collector is cut off, its simulators may play elsewhere, but it may take them back: it
is known by its identity, here and in the next attempt.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from ludus.collector import commands
from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorProblem, SimulatorStarted
from ludus.collector.snapshots.state import State, merged
from ludus.protocol.codes import CloseCode
from worker.collectors.processes import Collector, CollectorProcesses, EdgePlace

log = structlog.get_logger()

OWNER: Final = "owner"
"""Key of a snapshot: the identity of the edge collector that handed it over. Those of local collectors lack it."""
EMPTY: Final[State] = {"lanes": {}, "sessions": []}


class KeptSnapshots:
    """The snapshots that the collectors of a former attempt handed over. The pool's lock guards every method.

    Collectors of this host get those of all simulators that they served: simulators come back to any of them. An edge
    collector gets only what it has handed over itself, if it takes its former place: no stranger sees snapshots of
    others' simulators, or can make their collectors forget them.
    """

    def __init__(self, states: Sequence[State] = ()) -> None:
        self._states = list(states)

    def sessions(self) -> Iterator[tuple[State, str]]:
        """Yield each session, with its owner's identity; empty: a collector of this host."""
        for state in self._states:
            for session in state["sessions"]:
                yield session, state.get(OWNER, "")

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
        local = [EMPTY if OWNER in state else state for state in self._states]
        return merged(local, child.index) if local else None

    def forget_local_sessions(self) -> None:
        """Forget the sessions of local collectors: they are sent."""
        self._states = [state if OWNER in state else {**state, "sessions": []} for state in self._states]

    def advance(self, behavior: str, count: int) -> list[tuple[int, int, int]]:
        """Return (collector, round, steps) of what each of `count` collectors had answered in advance."""
        return [
            (collector, number, steps)
            for collector, state in enumerate(self._states[:count])
            for number, steps in state["lanes"].get(behavior, {}).get("advance", [])
        ]


COLLECTOR_DIED = "collector_died"
"""Code of simulators that were connected to a collector when it died."""
GRACE_SECONDS: Final = 120.0
"""How long an edge collector that was cut off may take its simulators back from another one."""
SessionMessage = SimulatorConnected | SimulatorStarted | SimulatorLeft | SimulatorProblem


class SimulatorSessions:
    """The sessions of all collectors of a pool, whose lock guards every method."""

    def __init__(self, children: CollectorProcesses, report: Callable[[SessionMessage], None]) -> None:
        self._children = children
        self._report = report
        self._restored: dict[str, str] = {}
        """Simulators of an earlier attempt that have not come back yet, with the identity of their collector."""
        self._cut_off: dict[str, tuple[str, float]] = {}
        """Simulators whose edge collector was cut off: its identity, and until when they are kept (monotonic)."""

    def restore(self, owners: Mapping[str, str]) -> None:
        """Remember simulators of an earlier attempt, of which snapshots are kept until they come back."""
        self._restored = dict(owners)

    def belongs(self, child: Collector, session_id: str) -> bool:
        """Return whether a session is that of a collector: it serves it, or did in the former attempt."""
        return session_id in child.simulators or self._restored.get(session_id) == child.identity

    def take(self, child: Collector, message: SessionMessage) -> None:
        """Handle what a collector says about one of its sessions."""
        session_id = message.session_id
        rivals = [sibling for sibling in self._children if sibling is not child and session_id in sibling.simulators]
        match message:
            case SimulatorConnected() if isinstance(child, EdgePlace) and not self._may_take(child, rivals, session_id):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                code = CloseCode.SESSION_TAKEN
                self._children.send_message(child, commands.EndSession(session_id, code, code.sentence))
                return
            case SimulatorStarted() | SimulatorLeft() | SimulatorProblem() if (
                isinstance(child, EdgePlace) and rivals and session_id not in child.simulators
            ):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                return
            case SimulatorConnected():
                for rival in rivals:
                    reason = "a newer stream of this session id took its place"
                    self._children.send_message(rival, commands.EndSession(session_id, CloseCode.SUPERSEDED, reason))
                child.simulators[session_id] = message
                child.number_after([message.number])
            case SimulatorStarted():
                if self._restored.get(session_id) == child.identity:
                    del self._restored[session_id]
                    if not isinstance(child, EdgePlace):  # the others of this host have its snapshot, too
                        for sibling in self._children.listening:
                            if sibling is not child and not isinstance(sibling, EdgePlace):
                                self._children.send_message(sibling, commands.Forget(session_id))
            case SimulatorLeft():
                simulator = child.simulators.get(session_id)
                if simulator is not None and simulator.peer == message.peer:
                    del child.simulators[session_id]
            case SimulatorProblem():
                pass
        self._report(message)

    def lose(self, child: Collector) -> None:
        """End the sessions of a collector that has died."""
        reason, now = f"its collector ended ({child.failure})", time.monotonic()
        self._cut_off = {session: owner for session, owner in self._cut_off.items() if owner[1] > now}
        for session, simulator in child.simulators.items():
            self._report(SimulatorLeft(session, simulator.number, COLLECTOR_DIED, reason, 0, simulator.peer))
            if isinstance(child, EdgePlace):
                self._cut_off[session] = child.identity, now + GRACE_SECONDS
        child.simulators.clear()

    def _may_take(self, child: Collector, rivals: Sequence[Collector], session_id: str) -> bool:
        """Return whether an edge collector may take over a session that other collectors serve."""
        owner, until = self._cut_off.get(session_id, ("", 0.0))
        was_its_own = self._restored.get(session_id) == child.identity
        takes_back = was_its_own or (owner == child.identity and time.monotonic() < until)
        return all(
            isinstance(rival, EdgePlace) and (takes_back or rival.identity == child.identity) for rival in rivals
        )
