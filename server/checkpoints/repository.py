"""The rows of checkpoints, of their aliases, and of requests for a checkpoint now."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Select, delete, exists, func, select, update

from ludus.schemas import ScoredBy
from ludus.schemas.states import RunKind, RunState
from server.checkpoints.models import (
    AliasMove,
    Checkpoint,
    CheckpointAlias,
    CheckpointRequest,
    RunInitialCheckpoint,
    UploadedCheckpoint,
)
from server.checkpoints.refs import AliasNotFound, CheckpointRef, CheckpointRequestNotFound, NewCheckpoint
from server.kit.artifacts.store import FileRef
from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import by_name, parts, select_page
from server.kit.db.projects import DEFAULT, project_of
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import storable
from server.kit.errors import CheckpointDeleted, CheckpointNotFound, NameAmbiguous
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
        return select_page(self._session, statement, query, self.COLUMNS, Checkpoint.id)

    def newest(self, run_id: str, *, without: Collection[str] = ()) -> Checkpoint | None:
        """Return the checkpoint to resume from, which is none of `without`, or None."""
        query = newest_of(run_id).where(Checkpoint.id.not_in(without))
        return self._session.scalars(query).one_or_none()

    def best(self, run_id: str) -> Checkpoint | None:
        """Return the checkpoint with the highest score, the newest of several; None if none has one."""
        order = (Checkpoint.score.desc(), Checkpoint.attempt.desc(), Checkpoint.step.desc(), Checkpoint.id.desc())
        query = _good(run_id, Checkpoint).where(Checkpoint.score.is_not(None)).order_by(*order).limit(1)
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
        former = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.path == checkpoint.path)
        row = self._session.scalars(former).one_or_none()
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


def newest_of(run_id: Any, table: type[Checkpoint] = Checkpoint) -> Select[Checkpoint]:
    """Select the checkpoint from which a run is resumed, if it has one; `table` may be an alias."""
    order = (table.attempt.desc(), table.step.desc(), table.created_at.desc(), table.id.desc())
    return _good(run_id, table).order_by(*order).limit(1)


def _good(run_id: Any, table: type[Checkpoint]) -> Select[Checkpoint]:
    return select(table).where(table.run_id == run_id, table.deleted_at.is_(None), table.damaged_at.is_(None))


_UPLOADED_ONLY: Final = "None was uploaded under this id; name the run, too, if it is a run's (`--run`)."


class UploadedCheckpointRepository(Repository):
    """Checkpoints of other programs, seen through one session."""

    def get(self, checkpoint_id: str) -> UploadedCheckpoint:
        """Return one uploaded checkpoint. Raises CheckpointNotFound."""
        checkpoint = self._session.get(UploadedCheckpoint, checkpoint_id)
        if checkpoint is None:
            raise CheckpointNotFound(checkpoint_id, _UPLOADED_ONLY)
        return checkpoint

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
        self._session.add_all(RunInitialCheckpoint(run_id=run_id, checkpoint_id=id_) for id_ in sorted(set(ids)))
        self._session.flush()

    def of_run(self, run_id: str) -> list[CheckpointRef]:
        """Return the checkpoints that a run begins with, as far as they have a row."""
        query = select(RunInitialCheckpoint.checkpoint_id).where(RunInitialCheckpoint.run_id == run_id)
        rows = self.existing(self._session.scalars(query).all(), lock=False)
        return [uploaded_ref(row) if isinstance(row, UploadedCheckpoint) else ref(row) for row in rows.values()]

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


class AliasRepository(Repository):
    """Aliases of the session's project, or of all of them where it has none."""

    MOVE_COLUMNS = by_name(AliasMove.version, AliasMove.checkpoint_id, AliasMove.moved_at, AliasMove.moved_by)

    def get(self, name: str, *, lock: bool = False) -> CheckpointAlias:
        """Return one alias, with `lock` locked until the commit.

        Raises AliasNotFound; NameAmbiguous if the session sees several projects that have it.
        """
        query = select(CheckpointAlias).where(CheckpointAlias.name == name)
        aliases = self._session.scalars(query.with_for_update() if lock else query).all()
        if not aliases:
            raise AliasNotFound(name)
        _check_one(name, [alias.project for alias in aliases])
        return aliases[0]

    def lock(self, name: str) -> CheckpointAlias | None:
        """Return an alias, locked until the commit; None if there is none."""
        same = (CheckpointAlias.name == name, CheckpointAlias.project == self._project)
        return self._locked(select(CheckpointAlias).where(*same))

    def history(self, name: str, query: ListQuery) -> Page[AliasMove]:
        """Return a page of the moves of an alias, also of one that was deleted.

        Raises AliasNotFound; NameAmbiguous if the session sees several projects that have, or had, the alias.
        """
        moves = select(AliasMove).where(AliasMove.alias == name)
        projects = self._session.scalars(moves.with_only_columns(AliasMove.project).distinct()).all()
        if not projects:
            self.get(name)  # one of the previous release, which keeps no history
        _check_one(name, projects)
        return select_page(self._session, moves, query, self.MOVE_COLUMNS, AliasMove.version)

    def named(self, checkpoints: Collection[str]) -> set[str]:
        """Return those of these checkpoints that an alias stands for."""
        query = select(CheckpointAlias.checkpoint_id).where(CheckpointAlias.checkpoint_id.in_(checkpoints))
        return set(self._session.scalars(query))

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return a run's checkpoint that retention leaves alone until the commit. Raises CheckpointNotFound."""
        checkpoint = self._locked(select(Checkpoint).where(Checkpoint.id == checkpoint_id))
        if checkpoint is None:
            raise CheckpointNotFound(checkpoint_id)
        return checkpoint

    def insert(self, name: str, checkpoint_id: str, by: str) -> CheckpointAlias | None:
        """Insert an alias on behalf of a principal; return None if another transaction has just inserted it."""
        values = upsert(self._session, CheckpointAlias).values(
            name=name,
            project=self._project,
            checkpoint_id=checkpoint_id,
            version=0,
            created_at=now(),
            moved_at=now(),
        )
        key = [CheckpointAlias.name, CheckpointAlias.project]
        inserted = values.on_conflict_do_nothing(index_elements=key).returning(CheckpointAlias.name)
        return None if self._session.scalar(inserted) is None else self.move(self.get(name), checkpoint_id, by)

    def move(self, alias: CheckpointAlias, checkpoint_id: str, by: str) -> CheckpointAlias:
        """Set a locked alias to another checkpoint."""
        alias.checkpoint_id = checkpoint_id
        alias.moved_at = self.clock()
        alias.version = self._record(alias, checkpoint_id, alias.moved_at, by)
        return self.save(alias)

    def delete(self, alias: CheckpointAlias, by: str) -> None:
        """Remove a locked alias; the checkpoint stays."""
        self._record(alias, None, self.clock(), by)
        self._session.delete(alias)
        self._session.flush()

    def _record(self, alias: CheckpointAlias, checkpoint_id: str | None, at: float, by: str) -> int:
        """Record a move of a locked alias; return its version.

        The alias's own version may lie below its newest move's (it was deleted and set again), or above it (the
        previous release moved it, and recorded nothing).
        """
        same = (AliasMove.alias == alias.name, AliasMove.project == alias.project)
        newest = self._session.scalar(select(func.max(AliasMove.version)).where(*same)) or 0
        move = AliasMove(
            alias=alias.name,
            project=alias.project,
            version=max(newest, alias.version) + 1,
            checkpoint_id=checkpoint_id,
            moved_at=at,
            moved_by=storable(by, 200),
        )
        self._session.add(move)
        self._session.flush()
        return move.version

    @property
    def _project(self) -> str:
        """Return the project of new aliases."""
        return project_of(self._session) or DEFAULT


def _check_one(name: str, projects: Iterable[str]) -> None:
    """Raise NameAmbiguous if several projects have an alias."""
    distinct = dict.fromkeys(projects)
    if len(distinct) > 1:
        raise NameAmbiguous("alias", name, distinct)


SAVED = frozenset({RunState.PAUSED, RunState.SUCCEEDED})
"""States that a run enters with everything saved: what was asked for just before is its newest checkpoint."""


class CheckpointRequestRepository(Repository):
    """Requests of runs."""

    def get(self, run_id: str, seq: int) -> CheckpointRequest:
        """Return one request. Raises CheckpointRequestNotFound."""
        request = self._session.get(CheckpointRequest, (run_id, seq), populate_existing=True)
        if request is None:
            raise CheckpointRequestNotFound(run_id, seq)
        return request

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
