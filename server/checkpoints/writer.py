"""The checkpoints that an attempt writes, and the requests for checkpoints that it answers."""

from collections.abc import Callable, Collection, Mapping

from ludus.config.run import KeepBest
from server.checkpoints.models import Checkpoint
from server.checkpoints.refs import CheckpointRef, NewCheckpoint, overall_score
from server.checkpoints.repository import CheckpointRepository, CheckpointRequestRepository, ref
from server.checkpoints.retention import RetentionRepository
from server.checkpoints.service import CheckpointService
from server.kit.db.database import Session
from server.runs.attempts import AttemptFence, CheckpointSaved
from server.runs.events.repository import Note
from server.runs.models import Attempt

Scores = dict[str, dict[str, float]]


class CheckpointWriter:
    """Writes checkpoints of one attempt. Each writing method is one transaction, and raises LeaseLost."""

    def __init__(
        self,
        fence: AttemptFence,
        keep_best: KeepBest | None,
        *,
        scores: Callable[[Session, str], Scores],
        rewind: Callable[[Session, str], None],
    ) -> None:
        """`keep_best` is the run's rule for its best checkpoints; `scores` returns the newest metrics of a run, by
        behavior and key; `rewind` sets them back to the checkpoint from which the present attempt continues.
        """
        self._fence = fence
        self._keep_best = keep_best
        self._scores = scores
        self._rewind = rewind

    def add(self, checkpoint: NewCheckpoint, request: int | None = None) -> str:
        """Enter a published checkpoint; return its id. One beyond the attempt's start refills the restart budget.

        `request` is the number of the request that it answers.
        """
        entered = self._add(checkpoint, request)
        size = sum(file.size for file in checkpoint.files)
        self._fence.notify(CheckpointSaved(checkpoint.path, checkpoint.reason, checkpoint.step, size))
        return entered

    def _add(self, checkpoint: NewCheckpoint, request: int | None) -> str:
        with self._fence.write() as (session, run):
            scores = self._scores(session, run.id)
            measured = (checkpoint.metrics.values(), [*checkpoint.scored_by.values()])
            score = overall_score(self._keep_best, scores, *measured)
            row, new = CheckpointRepository(session).add(run.id, self._fence.number, checkpoint, scores, *score)
            if request is not None:
                CheckpointRequestRepository(session).answer(run.id, request, checkpoint_id=row.id)
            if not new:
                return row.id
            attempt = session.get_one(Attempt, (run.id, self._fence.number))
            progress = {"restarts_without_progress": 0} if checkpoint.step > attempt.resume_step else {}
            data = {"checkpoint_id": row.id, "step": checkpoint.step, "reason": checkpoint.reason, "size": row.size}
            data |= {} if request is None else {"request": request}
            message = f"Saved a checkpoint at step {checkpoint.step} ({checkpoint.reason})."
            self._fence.record(session, Note("checkpoint_saved", message, data=data), **progress)
            return row.id

    def exist(self) -> bool:
        """Return whether the run has a checkpoint that retention has not deleted, damaged ones included. Not fenced."""
        with self._fence.database.read() as session:
            return CheckpointRepository(session).stored(self._fence.run_id) > 0

    def retire(self, keep: int) -> list[str]:
        """Give up all but the newest `keep` (0 keeps all) and those kept for another reason; return the ids.

        The retention job removes the files.
        """
        with self._fence.write() as (session, run):
            return RetentionRepository(session).retire_beyond(run, keep)

    def next_best(self, without: Collection[str]) -> CheckpointRef | None:
        """Return the checkpoint to resume from if those of `without` cannot be restored. Not fenced."""
        with self._fence.database.read() as session:
            row = CheckpointRepository(session).newest(self._fence.run_id, without=without)
            return ref(row) if row else None

    def resume_instead(self, damaged: Mapping[str, str]) -> None:
        """Give up on checkpoints that cannot be restored: the attempt resumes from the next best, if there is one.

        `damaged`: what is wrong with each, by its id.
        """
        with self._fence.write() as (session, run):
            checkpoints = CheckpointRepository(session)
            for checkpoint_id, damage in damaged.items():
                checkpoints.mark_damaged(checkpoints.get(run.id, checkpoint_id), damage)
            row = checkpoints.newest(run.id)
            resume = {"resumed_from": row.id if row else None, "resume_step": row.step if row else 0}
            self._fence.set(session, **resume)
            self._rewind(session, run.id)
            for checkpoint_id, damage in damaged.items():
                message = f"Checkpoint {checkpoint_id} cannot be restored: {damage}."
                note = Note("checkpoint_damaged", message, "error", {"checkpoint_id": checkpoint_id, **resume})
                self._fence.record(session, note)

    def mark_initial_damaged(self, checkpoint_id: str, why: str) -> None:
        """Mark a checkpoint that the configuration names, of any run. Not fenced: its files are what they are."""
        with self._fence.database.write() as session:
            row = session.get(Checkpoint, checkpoint_id)  # an uploaded one has no such mark
            if row is not None and row.deleted_at is None:
                CheckpointService(session).verified(row.run_id, row.id, [why])

    def requested(self) -> int | None:
        """Return the number of the request for a checkpoint that is pending; None without one. Not fenced."""
        with self._fence.database.read() as session:
            pending = CheckpointRequestRepository(session).pending(self._fence.run_id)
            return None if pending is None else pending.seq

    def decline(self, request: int, why: str) -> None:
        """Answer a request for a checkpoint that cannot be written."""
        with self._fence.write() as (session, run):
            CheckpointRequestRepository(session).answer(run.id, request, problem=why)
            message = f"No checkpoint was written on request: {why.rstrip('.')}."
            self._fence.record(session, Note("checkpoint_declined", message, "warning", {"request": request}))
