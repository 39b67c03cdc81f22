"""Which collector serves which simulator, and who may say so.

A simulator that joins again with its session id belongs to the collector of this host that it comes to: an older stream
elsewhere has not noticed yet that it is dead. Edge collectors are strangers, and may name any id. A session that
another collector serves stays there until it ends, or the stream of that collector does; a game that really moves
waits so long. When a collector is cut off, its simulators may play elsewhere, but it may take them back: it
is known by its identity, here and in the next attempt.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from ludus.collector import commands
from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorProblem, SimulatorStarted
from ludus.protocol.codes import CloseCode
from worker.collectors.collector_process import Collector, EdgePlace
from worker.collectors.processes import CollectorProcesses

log = structlog.get_logger()

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
        others = [each for each in self._children if each is not child and session_id in each.simulators]
        match message:
            case SimulatorConnected() if isinstance(child, EdgePlace) and any(
                not self._may_take(child, each, session_id) for each in others
            ):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                code = CloseCode.SESSION_TAKEN
                self._children.send_message(child, commands.EndSession(session_id, code, code.sentence))
                return
            case SimulatorStarted() | SimulatorLeft() | SimulatorProblem() if (
                isinstance(child, EdgePlace) and others and session_id not in child.simulators
            ):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                return
            case SimulatorConnected():
                for other in others:
                    reason = "a newer stream of this session id took its place"
                    self._children.send_message(other, commands.EndSession(session_id, CloseCode.SUPERSEDED, reason))
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
                known = child.simulators.get(session_id)
                if known is not None and known.peer == message.peer:
                    del child.simulators[session_id]
            case SimulatorProblem():
                pass
        self._report(message)

    def lose(self, child: Collector) -> None:
        """End the sessions of a collector that has died."""
        reason = f"its collector ended ({child.failure})"
        now = time.monotonic()
        self._cut_off = {each: kept for each, kept in self._cut_off.items() if kept[1] > now}
        for each in child.simulators.values():
            self._report(SimulatorLeft(each.session_id, each.number, COLLECTOR_DIED, reason, 0, each.peer))
            if isinstance(child, EdgePlace):
                self._cut_off[each.session_id] = child.identity, now + GRACE_SECONDS
        child.simulators.clear()

    def _may_take(self, child: Collector, other: Collector, session_id: str) -> bool:
        """Return whether an edge collector may take over a session that another collector serves."""
        owner, until = self._cut_off.get(session_id, ("", 0.0))
        was_cut_off = owner == child.identity and time.monotonic() < until
        was_its_own = self._restored.get(session_id) == child.identity
        return isinstance(other, EdgePlace) and (other.identity == child.identity or was_cut_off or was_its_own)
