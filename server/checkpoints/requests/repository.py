"""Requests for a checkpoint now, in the database. A run has at most one pending: repeated requests return it."""

from sqlalchemy import func, select, update

from ludus.schemas.states import RunState
from server.checkpoints.errors import CheckpointRequestNotFound
from server.checkpoints.repository import CheckpointRepository
from server.checkpoints.requests.models import CheckpointRequest
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.db.texts import storable

SAVED = frozenset({RunState.PAUSED, RunState.SUCCEEDED})
"""States that a run enters with everything saved: what was asked for just before is its newest checkpoint."""


class CheckpointRequestRepository(Repository):
    """Requests of runs."""

    def get(self, run_id: str, seq: int) -> CheckpointRequest:
        """Return one request. Raises CheckpointRequestNotFound."""
        found = self._session.get(CheckpointRequest, (run_id, seq), populate_existing=True)
        if found is None:
            raise CheckpointRequestNotFound(run_id, seq)
        return found

    def pending(self, run_id: str) -> CheckpointRequest | None:
        """Return the request that waits for its answer, if there is one."""
        query = select(CheckpointRequest).where(
            CheckpointRequest.run_id == run_id, CheckpointRequest.answered_at.is_(None)
        )
        return self._session.scalars(query).one_or_none()

    def add(self, run_id: str) -> CheckpointRequest:
        """Insert the next request of a locked run."""
        newest = select(func.max(CheckpointRequest.seq)).where(CheckpointRequest.run_id == run_id)
        seq = (self._session.scalar(newest) or 0) + 1
        return self.save(CheckpointRequest(run_id=run_id, seq=seq, created_at=now()))

    def answer(self, run_id: str, seq: int, *, checkpoint_id: str | None = None, problem: str | None = None) -> None:
        """Answer a request, unless it has its answer."""
        self._session.execute(
            update(CheckpointRequest)
            .where(
                CheckpointRequest.run_id == run_id,
                CheckpointRequest.seq == seq,
                CheckpointRequest.answered_at.is_(None),
            )
            .values(answered_at=now(), checkpoint_id=checkpoint_id, problem=storable(problem) if problem else None)
        )

    def settle(self, run_id: str, state: RunState) -> None:
        """Answer what is pending when a run pauses or ends: nothing more will be learned that a checkpoint could hold.

        A run that has saved everything answers with its newest checkpoint, any other with its state.
        """
        request = self.pending(run_id)
        if request is None:
            return
        newest = CheckpointRepository(self._session).newest(run_id) if state in SAVED else None
        if newest is not None:
            self.answer(run_id, request.seq, checkpoint_id=newest.id)
        else:
            self.answer(run_id, request.seq, problem=f"The run is {state} and has no checkpoint of this moment.")
