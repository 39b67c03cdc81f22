"""Which collector serves which simulator, and who may say so.

A simulator that joins again with its session id belongs to the collector that it comes to: an older stream elsewhere
has not noticed yet that it is dead. Edge collectors are strangers, and may name any id. They cannot take over a session
that a collector of this host serves, and say nothing about one that another collector serves and they do not.
"""

from collections.abc import Callable, Iterable

import structlog

from ludus.collector import commands
from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorProblem, SimulatorStarted
from worker.collectors.processes import CollectorProcess, CollectorProcesses

log = structlog.get_logger()

COLLECTOR_DIED = "collector_died"
"""Code of simulators that were connected to a collector when it died."""
SessionMessage = SimulatorConnected | SimulatorStarted | SimulatorLeft | SimulatorProblem


class SimulatorSessions:
    """The sessions of all collectors of a pool, whose lock guards every method."""

    def __init__(self, children: CollectorProcesses, report: Callable[[SessionMessage], None]) -> None:
        self._children = children
        self._report = report
        self._away: set[str] = set()

    def restore(self, session_ids: Iterable[str]) -> None:
        """Remember simulators of an earlier attempt, of which snapshots are kept until they come back."""
        self._away = set(session_ids)

    def take(self, child: CollectorProcess, message: SessionMessage) -> None:
        """Handle what a collector says about one of its sessions."""
        session_id = message.session_id
        others = [each for each in self._children if each is not child and session_id in each.simulators]
        match message:
            case SimulatorConnected() if child.edge and any(not each.edge for each in others):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                reason = "a simulator with this session id plays elsewhere"
                self._children.send_message(child, commands.EndSession(session_id, "superseded", reason))
                return
            case SimulatorStarted() | SimulatorLeft() | SimulatorProblem() if (
                child.edge and others and session_id not in child.simulators
            ):
                log.warning("session_of_another_named", index=child.index, session_id=session_id)
                return
            case SimulatorConnected():
                for other in others:
                    reason = "a newer stream of this session id took its place"
                    self._children.send_message(other, commands.EndSession(session_id, "superseded", reason))
                child.simulators[session_id] = message
                child.first_number = max(child.first_number, message.number + child.number_step)
            case SimulatorStarted():
                if session_id in self._away:  # it is connected here now: the others forget its snapshot
                    self._away.discard(session_id)
                    for other in self._children.listening:
                        if other is not child:
                            self._children.send_message(other, commands.Forget(session_id))
            case SimulatorLeft():
                known = child.simulators.get(session_id)
                if known is not None and known.peer == message.peer:
                    del child.simulators[session_id]
            case SimulatorProblem():
                pass
        self._report(message)

    def lose(self, child: CollectorProcess) -> None:
        """End the sessions of a collector that has died."""
        reason = f"its collector ended ({child.failure})"
        for each in child.simulators.values():
            self._report(SimulatorLeft(each.session_id, each.number, COLLECTOR_DIED, reason, 0, each.peer))
        child.simulators.clear()
