"""Reads and keeps the rows of checkpoints."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Select, delete, exists, func, select

from ludus.schemas import ScoredBy
from ludus.schemas.states import RunKind
from server.checkpoints.models import Checkpoint, RunInitialCheckpoint, UploadedCheckpoint
from server.checkpoints.refs import CheckpointRef, NewCheckpoint
from server.kit.artifacts.store import FileRef
from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import by_name, last_without, parts, select_page
from server.kit.db.repository import Repository
from server.kit.db.texts import storable
from server.kit.errors import CheckpointDeleted, CheckpointNotFound
from server.kit.listing import ListQuery, Order, Page
from server.kit.states import TERMINAL
from server.runs.models import BEING_DELETED, Run

NEWEST_FIRST = ListQuery(Order("created_at"))


HAS_CHECKPOINTS: Final = exists().where(
    Checkpoint.run_id == Run.id, Checkpoint.deleted_at.is_(None), Checkpoint.damaged_at.is_(None)
)
"""Whether a run has a checkpoint that can be used: a filter of lists of runs."""
MAX_PREDECESSORS: Final = 16
"""Most runs before one that are part of its curve."""
MAX_SUCCESSORS: Final = 20
"""Most runs that are named as those that continue one."""


@dataclass(frozen=True)
class Takeover:
    """The beginning of a run that continues another one from a checkpoint."""

    run_id: str
    predecessor: str
    """The run of the checkpoint."""
    step: int
    """Agent steps of all behaviors together at the checkpoint."""
    steps: Mapping[str, int]
    """Agent steps per behavior at the checkpoint. A behavior that it does not have begins at 0."""


class CheckpointRepository(Repository):
    """Checkpoints of runs."""

    COLUMNS = by_name(Checkpoint.step, Checkpoint.reason, Checkpoint.attempt, Checkpoint.created_at, Checkpoint.score)

    def get(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint, deleted or not. Raises CheckpointNotFound."""
        checkpoint = self._session.get(Checkpoint, checkpoint_id)
        if checkpoint is None or checkpoint.run_id != run_id:
            raise CheckpointNotFound(checkpoint_id)
        return checkpoint

    def takeovers(self, run_ids: Collection[str]) -> dict[str, Takeover]:
        """Return how those of these runs began that continue another one, by the run that continues."""
        query = self._continuing(Run.id, Checkpoint.run_id, Checkpoint.step, Checkpoint.steps)
        return {
            row[0]: Takeover(*row)
            for ids in parts(sorted(run_ids))
            for row in self._session.execute(query.where(Run.id.in_(ids)))
        }

    def successors(self, run_id: str) -> list[str]:
        """Return the runs that continue a run, the oldest first: the newest `MAX_SUCCESSORS` of them."""
        # A subquery of its own: otherwise PostgreSQL may read all runs from the newest on, until it has enough.
        ids = self._continuing(Run.id).where(Checkpoint.run_id == run_id).cte("successors").prefix_with("MATERIALIZED")
        query = select(ids.c.id).order_by(ids.c.id.desc()).limit(MAX_SUCCESSORS)
        return sorted(self._session.scalars(query))

    def lineages(self, run_ids: Collection[str]) -> dict[str, list[Takeover]]:
        """Return, for each of these runs that continues another one, the takeovers that led to it, the newest first.

        Those before the last `MAX_PREDECESSORS` are left out.
        """
        takeovers: dict[str, Takeover] = {}
        generation = set(run_ids)
        for _ in range(MAX_PREDECESSORS):
            newest = self.takeovers(generation)
            takeovers |= newest
            generation = {takeover.predecessor for takeover in newest.values()} - takeovers.keys()
            if not generation:
                break
        lineages: dict[str, list[Takeover]] = {}
        for run_id in run_ids:
            takeover = takeovers.get(run_id)
            while takeover is not None and len(lineages.get(run_id, ())) < MAX_PREDECESSORS:
                lineages.setdefault(run_id, []).append(takeover)
                takeover = takeovers.get(takeover.predecessor)
        return lineages

    def _continuing(self, *columns: Any) -> Select[Any]:
        """Select columns of the runs that name a checkpoint in `resume_from`, and do not only play; and of those."""
        settings = "checkpoint_settings"
        kind = Run.kind.concat("")  # not as it is: SQLite would read all runs of the kind, by its index
        return select(*columns).where(
            RunInitialCheckpoint.checkpoint_id == Checkpoint.id,
            RunInitialCheckpoint.run_id == Run.id,
            kind.in_((RunKind.TRAIN, RunKind.CLONE)),
            Run.config[(settings, "resume_from")].as_string() == Checkpoint.id,
            Run.config[(settings, "inference")].as_boolean().is_not(True),
            Run.id.not_in(BEING_DELETED),
        )

    def get_stored(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint whose files are there. Raises CheckpointNotFound, CheckpointDeleted."""
        checkpoint = self.get(run_id, checkpoint_id)
        if checkpoint.deleted_at is not None:
            raise CheckpointDeleted(checkpoint_id)
        return checkpoint

    def list(self, run_id: str, query: ListQuery = NEWEST_FIRST, *, deleted: bool = False) -> Page[Checkpoint]:
        """Return a page of a run's checkpoints, with `deleted` also those whose files are gone.

        Sorted by `score`, those without one come last.
        """
        statement = select(Checkpoint).where(Checkpoint.run_id == run_id)
        if not deleted:
            statement = statement.where(Checkpoint.deleted_at.is_(None))
        columns = {**self.COLUMNS, "score": last_without(Checkpoint.score, query.order)}
        return select_page(self._session, statement, query, columns, Checkpoint.id)

    def newest(self, run_id: str, *, without: Collection[str] = ()) -> Checkpoint | None:
        """Return the checkpoint to resume from, which is none of `without`, or None."""
        query = self._good(run_id).where(Checkpoint.id.not_in(without))
        order = (Checkpoint.attempt.desc(), Checkpoint.step.desc(), Checkpoint.created_at.desc(), Checkpoint.id.desc())
        return self._session.scalars(query.order_by(*order).limit(1)).one_or_none()

    def best(self, run_id: str) -> Checkpoint | None:
        """Return the checkpoint with the highest score, the newest of several; None if none has one."""
        order = (Checkpoint.score.desc(), Checkpoint.attempt.desc(), Checkpoint.step.desc(), Checkpoint.id.desc())
        query = self._good(run_id).where(Checkpoint.score.is_not(None)).order_by(*order).limit(1)
        return self._session.scalars(query).one_or_none()

    def runs_of(self, checkpoint_ids: Collection[str]) -> dict[str, str]:
        """Return the run of each checkpoint that is there, by the checkpoint's id."""
        query = select(Checkpoint.id, Checkpoint.run_id).where(Checkpoint.id.in_(checkpoint_ids))
        return dict(self._session.execute(query).all())

    def stored(self, run_id: str) -> int:
        """Return how many checkpoints of a run are not given up, damaged ones among them."""
        query = select(func.count()).where(Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None))
        return self._session.scalar(query) or 0

    def add(
        self,
        run_id: str,
        attempt: int,
        checkpoint: NewCheckpoint,
        scores: Mapping[str, Mapping[str, float]],
        score: float | None,
        scored_by: ScoredBy | None,
    ) -> tuple[Checkpoint, bool]:
        """Insert a row; return it and whether it is new. A path has one row: handing a checkpoint in again is safe."""
        known = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.path == checkpoint.path)
        row = self._session.scalars(known).one_or_none()
        if row is not None:
            return row, False
        row = Checkpoint(
            id=new_id("ckpt"),
            run_id=run_id,
            attempt=attempt,
            step=checkpoint.step,
            steps=dict(checkpoint.steps),
            reason=checkpoint.reason,
            path=checkpoint.path,
            files=[asdict(file) for file in checkpoint.files],
            models={name: asdict(model) for name, model in checkpoint.models.items()},
            size=sum(file.size for file in checkpoint.files),
            metrics=dict(checkpoint.metrics),
            scores={behavior: dict(values) for behavior, values in scores.items()},
            score=score,
            scored_by=None if scored_by is None else asdict(scored_by),
            created_at=now(),
        )
        self._session.add(row)
        self._session.flush()
        return row, True

    def mark_damaged(self, checkpoint: Checkpoint, damage: str) -> None:
        """Record that a file of a checkpoint is missing or altered: nothing is resumed from it any more."""
        checkpoint.damaged_at, checkpoint.damage = checkpoint.damaged_at or now(), storable(damage, 2000)
        self._session.flush()

    def _good(self, run_id: str) -> Select[Checkpoint]:
        return select(Checkpoint).where(
            Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None), Checkpoint.damaged_at.is_(None)
        )


_UPLOADED_ONLY: Final = "None was uploaded under this id; name the run, too, if it is a run's (`--run`)."


class UploadedCheckpointRepository(Repository):
    """Checkpoints of other programs, seen through one session."""

    def get(self, checkpoint_id: str) -> UploadedCheckpoint:
        """Return one uploaded checkpoint. Raises CheckpointNotFound."""
        found = self._session.get(UploadedCheckpoint, checkpoint_id)
        if found is None:
            raise CheckpointNotFound(checkpoint_id, _UPLOADED_ONLY)
        return found

    def delete(self, checkpoint: UploadedCheckpoint) -> None:
        """Remove a row, with the notes of its use."""
        uses = delete(RunInitialCheckpoint).where(RunInitialCheckpoint.checkpoint_id == checkpoint.id)
        self._session.execute(uses)
        self._session.delete(checkpoint)
        self._session.flush()


class InitialCheckpoints(Repository):
    """The checkpoints that runs begin with: of other runs, and uploaded ones."""

    def existing(self, ids: Collection[str], *, lock: bool) -> dict[str, Checkpoint | UploadedCheckpoint]:
        """Return those of these checkpoints that have a row; with `lock` they stay until the commit."""
        of_runs = select(Checkpoint).where(Checkpoint.id.in_(ids)).order_by(Checkpoint.id)
        uploaded = select(UploadedCheckpoint).where(UploadedCheckpoint.id.in_(ids)).order_by(UploadedCheckpoint.id)
        if lock:
            of_runs, uploaded = of_runs.with_for_update(read=True), uploaded.with_for_update(read=True)
        rows = [*self._session.scalars(of_runs), *self._session.scalars(uploaded)]
        return {row.id: row for row in rows}

    def use(self, run_id: str, ids: Iterable[str]) -> None:
        """Record that a run begins with checkpoints."""
        self._session.add_all(RunInitialCheckpoint(run_id=run_id, checkpoint_id=each) for each in sorted(set(ids)))
        self._session.flush()

    def of_run(self, run_id: str) -> list[CheckpointRef]:
        """Return the checkpoints that a run begins with, as far as they have a row."""
        query = select(RunInitialCheckpoint.checkpoint_id).where(RunInitialCheckpoint.run_id == run_id)
        found = self.existing(self._session.scalars(query).all(), lock=False)
        return [uploaded_ref(row) if isinstance(row, UploadedCheckpoint) else ref(row) for row in found.values()]

    def in_use(self, ids: Collection[str]) -> dict[str, str]:
        """Return those of these checkpoints that a run which has not ended begins with, and one such run for each."""
        query = (
            select(RunInitialCheckpoint.checkpoint_id, Run.id)
            .join(Run, RunInitialCheckpoint.run_id == Run.id)
            .where(RunInitialCheckpoint.checkpoint_id.in_(ids), Run.state.not_in(TERMINAL))
        )
        return {row.checkpoint_id: row.id for row in self._session.execute(query)}


def ref(checkpoint: Checkpoint) -> CheckpointRef:
    """Return a checkpoint as a value that outlives the session."""
    return CheckpointRef(
        id=checkpoint.id,
        attempt=checkpoint.attempt,
        step=checkpoint.step,
        steps=dict(checkpoint.steps),
        path=checkpoint.path,
        files=tuple(FileRef(**file) for file in checkpoint.files),
    )


def uploaded_ref(checkpoint: UploadedCheckpoint) -> CheckpointRef:
    """Return an uploaded checkpoint as a value that outlives the session: of no attempt, at no step."""
    file = FileRef(checkpoint.file, checkpoint.size, checkpoint.sha256)
    return CheckpointRef(checkpoint.id, attempt=0, step=0, steps={}, path=checkpoint.path, files=(file,))
