"""Commands on requests for a checkpoint.

The request is a row first. The run's supervisor finds it with its next heartbeat, the trainer writes the checkpoint
between two updates, and the row is answered in the transaction that enters the checkpoint. A request outlives the
worker: the next attempt answers it. A run that pauses or ends answers it with its last checkpoint.
"""

from ludus.schemas.states import RunState
from server.checkpoints.repository import CheckpointRepository
from server.checkpoints.requests.models import CheckpointRequest
from server.checkpoints.requests.repository import CheckpointRequestRepository
from server.kit.db.database import Session
from server.runs.errors import RunNotRunning
from server.runs.events.repository import Note, ask
from server.runs.repository import RunRepository


class CheckpointRequestService:
    """Commands on requests. The session's owner commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._requests = CheckpointRequestRepository(session)

    def ask(self, run: str) -> CheckpointRequest:
        """Ask for a checkpoint; while a request is pending, asking again returns that one.

        Raises RunNotFound, RunEnded, RunNotRunning.
        """
        found = RunRepository(self._session).lock_live(run)
        if found.state != RunState.RUNNING:
            newest = CheckpointRepository(self._session).newest(found.id)
            hint = "" if newest is None else f", or take its newest checkpoint, {newest.id}"
            raise RunNotRunning(found.id, found.state, "write a checkpoint", hint)
        pending = self._requests.pending(found.id)
        if pending is not None:
            return pending
        request = self._requests.add(found.id)
        note = Note("checkpoint_requested", "A user asked for a checkpoint now.", data={"request": request.seq})
        ask(self._session, found.id, note, attempt=found.attempt)
        return request
