"""The simulators and edge collectors that an attempt writes: who is connected, and why sessions ended."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from server.kit.db.texts import JsonObject, storable, storable_json
from server.runs.attempts import AttemptFence, SimulatorChanged
from server.runs.events.repository import Note
from server.runs.models import Attempt
from server.runs.refs import EdgeCollectorRef
from server.simulators.models import Simulator
from server.simulators.repository import DISCONNECTED, ENDS_OF_GAMES, LEFT, SimulatorRepository

ORDERLY: Final = frozenset({"left", "run_finished", "run_cancelled", "run_failed", "run_paused", "run_moved"})
"""Codes of sessions that the simulator or the run ended; all others are a warning."""


class SimulatorWriter:
    """Writes simulators of one attempt. Each method is one transaction, and raises LeaseLost."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def connected(
        self,
        session_id: str,
        *,
        number: int,
        collector: int,
        behaviors: Sequence[str] = (),
        peer: str = "",
        label: str = "",
        client: str = "",
    ) -> None:
        """Record that a collector serves a simulator."""
        columns: JsonObject = {"number": number, "collector": collector, "behaviors": list(behaviors), "agents": 0}
        texts = {"peer": storable(peer, 200), "label": storable(label, 200), "client": storable(client, 100)}
        columns |= {name: text for name, text in texts.items() if text}
        data = {"session_id": session_id, "number": number, "collector": collector, "peer": peer}
        data["behaviors"] = list(behaviors)
        message = f"Simulator {number} connected from {peer or 'an unknown address'}."
        with self._fence.tell(Note("simulator_connected", message, data=data)) as session:
            SimulatorRepository(session).connected(self._fence.run_id, self._fence.number, session_id, **columns)
        self._fence.notify(SimulatorChanged(session_id, "connected"))

    def plays(self, session_id: str, behaviors: Sequence[str], agents: int) -> None:
        """Record the facts of a simulator's first step: all its behaviors, and the number of its agents."""
        with self._fence.write() as (session, run):
            SimulatorRepository(session).plays(run.id, self._fence.number, session_id, behaviors, agents)
        self._fence.notify(SimulatorChanged(session_id, "plays"))

    def left(self, session_id: str, *, code: str, reason: str, steps: int, peer: str = "") -> None:
        """Record that a simulator's session ended, or was refused before it began (its `session_id` is unknown then).

        Noting the same end twice leaves one event.
        """
        self._leave(session_id, code, reason, steps, peer)
        self._fence.notify(SimulatorChanged(session_id, code))

    def _leave(self, session_id: str, code: str, reason: str, steps: int, peer: str) -> None:
        data: JsonObject = {"session_id": session_id, "code": code, **({"peer": peer} if peer else {})}
        with self._fence.write() as (session, run):
            simulator = session.get(Simulator, (run.id, session_id), populate_existing=True)
            if simulator is None:
                note = Note("simulator_refused", f"Refused a simulator: {reason}", "warning", data)
                self._fence.record(session, note)
                return
            if code == DISCONNECTED and simulator.leave_code in ENDS_OF_GAMES:
                code, reason = simulator.leave_code, simulator.leave_reason or reason
            if simulator.state == LEFT and (simulator.leave_code, simulator.steps) == (storable(code, 64), steps):
                return
            ended = simulator.state != LEFT
            simulators = SimulatorRepository(session)
            simulators.left(run.id, self._fence.number, session_id, code=code, reason=reason, steps=steps)
            data |= {"code": code, "number": simulator.number, "steps": steps}
            level = "info" if code in ORDERLY else "warning"
            type_, verb = ("simulator_left", "left") if ended else ("simulator_refused", "was refused")
            self._fence.record(session, Note(type_, f"Simulator {simulator.number} {verb}: {reason}", level, data))


class CollectorWriter:
    """Writes the edge collectors of one attempt. Each method but the first is one transaction; they raise LeaseLost."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def places_asked(self) -> bool:
        """Return whether an edge collector waits for the places to be opened. Not fenced."""
        with self._fence.database.read() as session:
            attempt = session.get(Attempt, (self._fence.run_id, self._fence.number))
            return attempt is not None and bool(attempt.places_asked)

    def publish(self, collectors: Sequence[EdgeCollectorRef]) -> None:
        """Record which edge collectors collect now."""
        with self._fence.write() as (session, _):
            self._fence.set(session, edge_collectors=[storable_json(asdict(collector)) for collector in collectors])

    def unavailable(self, detail: str) -> None:
        """Record that the places can't be opened in this attempt, and why; edge collectors that ask are told."""
        message = f"The run goes on without edge collectors, its worker can't take them: {detail}."
        with self._fence.write() as (session, _):
            self._fence.set(session, places_problem=storable(detail))
            self._fence.record(session, Note("places_unavailable", message, "warning", {"detail": detail}))
