"""The edge collectors that an attempt writes, and the wish for places that it reads."""

from collections.abc import Sequence
from dataclasses import asdict

from server.kit.db.texts import storable, storable_json
from server.runs.attempts.repository import AttemptFence
from server.runs.events.repository import Note
from server.runs.models import Attempt
from server.simulators.collectors.refs import EdgeCollectorRef


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
            self._fence.set(session, edge_collectors=[storable_json(asdict(each)) for each in collectors])

    def unavailable(self, detail: str) -> None:
        """Record that the places can't be opened in this attempt, and why; edge collectors that ask are told."""
        message = f"The run goes on without edge collectors, its worker can't take them: {detail}."
        with self._fence.write() as (session, _):
            self._fence.set(session, places_problem=storable(detail))
            self._fence.record(session, Note("places_unavailable", message, "warning", {"detail": detail}))
