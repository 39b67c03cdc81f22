"""Retention: the rules that give checkpoints up, and the jobs that remove unneeded files from the artifact store.

Spared, whatever else is said, are of each run the newest good one (recovery begins with it) and as many of the best as
its configuration keeps; and everything that is pinned or in use (`Candidate.held`).

A checkpoint is given up under the lock of its run, and of its own row: a transaction that pins it, or begins a run with
it, either comes first and is seen, or comes later and finds it gone.

Rows first, then files: a checkpoint is given up in the database, where it is no longer visible, and its files are
removed afterwards, as often as it takes. So a job may be killed anywhere, and any number of them may work at once.

- what is given up, and what is deleted (runs, demonstrations, uploaded checkpoints, former archives of metrics): the
  files, after `LUDUS_STORAGE__PURGE_DELAY_SECONDS`;
- what is too old or too much (`LUDUS_STORAGE__RETENTION_...`): given up, every minute;
- what belongs to nothing, since a process was killed between writing files and entering them: removed every hour, when
  it has not changed for `LUDUS_STORAGE__ORPHAN_SECONDS`."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Select, case, exists, select, text, update

from server.checkpoints.models import Checkpoint, UploadedCheckpoint
from server.checkpoints.refs import keep_best_of
from server.checkpoints.repository import AliasRepository, InitialCheckpoints
from server.demonstrations.repository import Demonstration
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.clock import now
from server.kit.db.database import Database, Session
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.kit.errors import StorageRefused
from server.kit.jobs import Job
from server.kit.settings import StorageSettings
from server.runs.events.repository import Note, lock_run, record
from server.runs.models import UNPURGED_SQL, DeletedRun, Run


@dataclass(frozen=True)
class Candidate:
    """One checkpoint whose files are stored."""

    id: str
    run_id: str
    order: tuple[int, int, float, str]
    """Attempt number, step, time and id: the last in this order is the run's newest."""
    created_at: float
    step: int
    size: int
    """Bytes."""
    final: bool
    """Whether a run ended with it."""
    score: float | None
    damaged: bool
    held: bool
    """Whether it is pinned, has an alias, or is something that a run which has not ended begins with."""


def spared(checkpoints: Iterable[Candidate], best: int) -> set[str]:
    """Return the ids of those of one run's checkpoints that no rule removes; `best` is how many of the best stay."""
    items = list(checkpoints)
    good = [item for item in items if not item.damaged]
    newest = max(good, key=lambda item: item.order, default=None)
    scored = [(item.score, item.order, item.id) for item in good if item.score is not None]
    ids = {item.id for item in items if item.held} | {item for *_, item in sorted(scored, reverse=True)[:best]}
    return ids if newest is None else ids | {newest.id}


def beyond_count(checkpoints: Iterable[Candidate], keep: int, best: int) -> list[Candidate]:
    """Return those of one run's checkpoints that `keep_checkpoints` and `keep_best` let go, oldest first. 0 keeps all.

    Final ones stay. Damaged ones don't count among the newest, and go with those that are as old.
    """
    items = sorted(checkpoints, key=lambda item: item.order, reverse=True)
    stay = spared(items, best)
    counted = [item for item in items if not item.final and not item.damaged]
    if keep <= 0 or len(counted) <= keep:
        return []
    last = counted[keep - 1].order
    excess = [item for item in items if item.order < last and not item.final and item.id not in stay]
    return excess[::-1]


def beyond_age(checkpoints: Iterable[Candidate], stay: set[str], before: float) -> list[Candidate]:
    """Return the checkpoints of all runs that are older than a time, oldest first."""
    return _oldest_first(item for item in checkpoints if item.created_at < before and item.id not in stay)


def beyond_size(checkpoints: Sequence[Candidate], stay: set[str], limit: int) -> list[Candidate]:
    """Return the oldest checkpoints of all runs without which the others have at most `limit` bytes, if there are any.

    Those that stay count, too: where they alone are larger, all others go.
    """
    excess = sum(item.size for item in checkpoints) - limit
    oldest = []
    for item in _oldest_first(item for item in checkpoints if item.id not in stay):
        if excess <= 0:
            break
        oldest.append(item)
        excess -= item.size
    return oldest


def _oldest_first(checkpoints: Iterable[Candidate]) -> list[Candidate]:
    return sorted(checkpoints, key=lambda item: (item.created_at, item.order))


def held(session: Session, ids: Collection[str]) -> set[str]:
    """Return those of these checkpoints that are protected from every rule: a run that has not ended begins with them
    or goes on from them, or an alias stands for them. A new use of checkpoints adds its query here.
    """
    return {*InitialCheckpoints(session).in_use(ids), *AliasRepository(session).named(ids)} if ids else set()


_COLUMNS = (
    Checkpoint.id,
    Checkpoint.run_id,
    Checkpoint.attempt,
    Checkpoint.step,
    Checkpoint.created_at,
    Checkpoint.size,
    Checkpoint.reason,
    Checkpoint.score,
    Checkpoint.damaged_at,
    Checkpoint.pinned_at,
)
LATE_SECONDS = 600.0
"""After a run has ended its supervisor still copies logs, and tries for minutes where the store is slow."""


@dataclass(frozen=True)
class Limits:
    """Greatest age and total size of the checkpoints of runs. None: no limit."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class ExpiredCheckpoint:
    """A checkpoint that a rule gives up."""

    checkpoint: Candidate
    rule: str
    """`age`, `size` or `count`."""


class RetentionRepository(Repository):
    """Checkpoints as retention sees them."""

    def retire_beyond(self, run: Run, keep: int) -> list[str]:
        """Give up what a locked run keeps neither as one of its newest nor for its score; return the ids."""
        candidates = self._candidates(self._stored().where(Checkpoint.run_id == run.id))
        excess = beyond_count(candidates, keep, self._best_counts([run.id])[run.id])
        return self._retire(run.id, [ExpiredCheckpoint(candidate, "count") for candidate in excess])

    def plan(self, limits: Limits) -> list[ExpiredCheckpoint]:
        """Return what age and size let go, of all runs. Nothing is written."""
        if limits == Limits():
            return []
        candidates = self._candidates(self._stored())
        of_run: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            of_run[candidate.run_id].append(candidate)
        best = self._best_counts(of_run)
        stay = set[str]().union(*(spared(of_run[run_id], best[run_id]) for run_id in of_run))
        old = [] if limits.seconds is None else beyond_age(candidates, stay, self.clock() - limits.seconds)
        expired = {candidate.id: ExpiredCheckpoint(candidate, "age") for candidate in old}
        if limits.bytes is not None:
            young = [candidate for candidate in candidates if candidate.id not in expired]
            for candidate in beyond_size(young, stay, limits.bytes):
                expired[candidate.id] = ExpiredCheckpoint(candidate, "size")
        return list(expired.values())

    def retire(self, expired: Sequence[ExpiredCheckpoint]) -> list[str]:
        """Give up checkpoints of one run, if they still may go; return the ids of those that did."""
        run = lock_run(self._session, expired[0].checkpoint.run_id)
        ids = [expiry.checkpoint.id for expiry in expired]
        self._session.execute(select(Checkpoint.id).where(Checkpoint.id.in_(ids)).with_for_update())
        candidates = self._candidates(self._stored().where(Checkpoint.run_id == run.id))
        stay, stored = spared(candidates, self._best_counts([run.id])[run.id]), {item.id for item in candidates}
        may_go = [item for item in expired if item.checkpoint.id in stored and item.checkpoint.id not in stay]
        return self._retire(run.id, may_go)

    def unpurged(self, limit: int, since_seconds: float = 0.0) -> list[tuple[str, str]]:
        """Return ids and paths of checkpoints that were given up `since_seconds` ago, or earlier, and that still have
        files, the oldest first.
        """
        query = (
            select(Checkpoint.id, Checkpoint.path)
            .where(Checkpoint.deleted_at.is_not(None), Checkpoint.purged_at.is_(None))
            .where(Checkpoint.deleted_at <= now() - since_seconds)
            .order_by(Checkpoint.deleted_at)
            .limit(limit)
        )
        return [(row.id, row.path) for row in self._session.execute(query)]

    def purged(self, checkpoint_id: str) -> None:
        """Record that the files of a checkpoint are removed."""
        self._session.execute(update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(purged_at=now()))

    def deleted_runs(self, limit: int, since_seconds: float = 0.0) -> list[str]:
        """Return ids of deleted runs whose files were to be removed `since_seconds` ago, the longest due first.

        Those that still have rows are left out: `purge_at` is what keeps them out of lists (`BEING_DELETED`).
        """
        due = select(DeletedRun.id).where(text(UNPURGED_SQL), DeletedRun.purge_at <= now() - since_seconds)
        due = due.where(~exists().where(Run.id == DeletedRun.id))
        return list(self._session.scalars(due.order_by(DeletedRun.purge_at).limit(limit)))

    def run_purged(self, run_id: str) -> None:
        """Record that the files of a deleted run are removed. They are once more, for late files of its worker."""
        due = case((DeletedRun.purge_at <= DeletedRun.deleted_at, now() + LATE_SECONDS), else_=None)
        self._session.execute(update(DeletedRun).where(DeletedRun.id == run_id).values(purge_at=due))

    def known(self, paths: Collection[str]) -> set[str]:
        """Return those of these folders in the artifact store that a row names: also as one that is given up."""
        named = GivenUpFileRepository(self._session).among(paths)
        for part in parts(sorted(paths)):
            named.update(self._session.scalars(select(Checkpoint.path).where(Checkpoint.path.in_(part))))
            named.update(
                self._session.scalars(select(UploadedCheckpoint.path).where(UploadedCheckpoint.path.in_(part)))
            )
            ids = [path.rpartition("/")[2] for path in part]
            shown = self._session.scalars(select(Demonstration.id).where(Demonstration.id.in_(ids)))
            named.update(f"demonstrations/{demonstration_id}" for demonstration_id in shown)
        return named

    def _stored(self) -> Select[*tuple[Any, ...]]:
        return select(*_COLUMNS).where(Checkpoint.deleted_at.is_(None))

    def _candidates(self, query: Select[*tuple[Any, ...]]) -> list[Candidate]:
        rows = self._session.execute(query).all()
        needed = set[str]().union(*(held(self._session, ids) for ids in parts([row.id for row in rows])))
        return [
            Candidate(
                id=row.id,
                run_id=row.run_id,
                order=(row.attempt, row.step, row.created_at, row.id),
                created_at=row.created_at,
                step=row.step,
                size=row.size,
                final=row.reason == "final",
                score=row.score,
                damaged=row.damaged_at is not None,
                held=row.pinned_at is not None or row.id in needed,
            )
            for row in rows
        ]

    def _best_counts(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return how many of their best checkpoints runs keep."""
        counts = {}
        for part in parts(sorted(run_ids)):
            query = select(Run.id, Run.config["checkpoint_settings"]).where(Run.id.in_(part))
            for run_id, settings in self._session.execute(query):
                rule = keep_best_of({"checkpoint_settings": settings})
                counts[run_id] = rule.count if rule else 0
        return counts

    def _retire(self, run_id: str, expired: Sequence[ExpiredCheckpoint]) -> list[str]:
        ids = [expiry.checkpoint.id for expiry in expired]
        if not ids:
            return []
        for part in parts(ids):
            self._session.execute(update(Checkpoint).where(Checkpoint.id.in_(part)).values(deleted_at=now()))
        size = sum(expiry.checkpoint.size for expiry in expired)
        rules = sorted({expiry.rule for expiry in expired})
        message = f"Deleted {len(ids)} checkpoint{'s' if len(ids) > 1 else ''} ({', '.join(rules)}), {size} bytes."
        data = {"checkpoint_ids": ids[:100], "count": len(ids), "bytes": size, "rules": rules}
        record(self._session, run_id, Note("checkpoints_deleted", message, "debug", data))
        return ids


def by_run(expired: Iterable[ExpiredCheckpoint]) -> list[list[ExpiredCheckpoint]]:
    """Return checkpoints in groups of one run each, in the order in which runs are locked."""
    of_run: dict[str, list[ExpiredCheckpoint]] = defaultdict(list)
    for expiry in expired:
        of_run[expiry.checkpoint.run_id].append(expiry)
    return [of_run[run_id] for run_id in sorted(of_run)]


RETENTION_SECONDS = 60.0
ORPHANS_SECONDS = 3600.0
BATCH = 50
"""Checkpoints, deleted runs, and further files that are removed in one round, of each at most."""
log = structlog.get_logger(__name__)


class Retention:
    """Cleans up. Keeps nothing that another one, or its own successor, would miss."""

    def __init__(self, database: Database, store: ArtifactStore, settings: StorageSettings) -> None:
        self._database = database
        self._store = store
        self._settings = settings

    def jobs(self) -> Sequence[Job]:
        """Return the jobs."""
        return (
            Job("purging", self.purge),
            Job("retention", lambda: len(self.retain()), RETENTION_SECONDS),
            Job("orphans", lambda: len(self.collect()), ORPHANS_SECONDS, after_seconds=ORPHANS_SECONDS),
        )

    def purge(self) -> int:
        """Remove the files of checkpoints that are given up, and of what is deleted; return of how many."""
        delay = self._settings.purge_delay_seconds
        with self._database.read() as session:
            checkpoints = RetentionRepository(session).unpurged(BATCH, delay)
            runs = RetentionRepository(session).deleted_runs(BATCH, delay)
            files = GivenUpFileRepository(session).due(BATCH, delay)
        for checkpoint_id, path in checkpoints:
            if self._remove(path):
                with self._database.write() as session:
                    RetentionRepository(session).purged(checkpoint_id)
        for run_id in runs:
            if self._remove(f"runs/{run_id}"):
                with self._database.write() as session:
                    RetentionRepository(session).run_purged(run_id)
        for path in files:
            if self._remove(path):
                with self._database.write() as session:
                    GivenUpFileRepository(session).removed(path)
        return len(checkpoints) + len(runs) + len(files)

    def _remove(self, path: str) -> bool:
        """Remove a file or a folder; return False if the store refuses this one: others may go."""
        try:
            self._store.delete(path)
        except StorageRefused as error:
            log.warning("file_not_removed", path=path, error=str(error))
            return False
        return True

    def retain(self) -> list[str]:
        """Give up what is too old or too much; return the ids."""
        limits = Limits(self._settings.retention_seconds, self._settings.retention_bytes)
        with self._database.read() as session:
            expired = RetentionRepository(session).plan(limits)
        ids: list[str] = []
        for of_run in by_run(expired):
            with self._database.write() as session:
                ids += RetentionRepository(session).retire(of_run)
        return ids

    def collect(self) -> list[str]:
        """Remove folders that no row names and that have not been written to for long; return their paths."""
        folders = orphans(self._database, self._store, self._settings.orphan_seconds)
        for folder in folders:
            self._store.delete(folder)
        swept = self._store.sweep(self._settings.orphan_seconds)
        if folders or swept:
            log.info("orphans_deleted", folders=len(folders), unfinished=swept)
        return folders


def orphans(database: Database, store: ArtifactStore, seconds: float) -> list[str]:
    """Return the folders that no row names and that have not been written to for so many seconds."""
    oldest = time.time() - seconds
    changed = dict[str, float]()
    for top in ("runs", "checkpoints", "demonstrations"):
        for file in store.files(top):
            match file.path.split("/"):  # the folder that would have a row
                case ["runs", run, attempt, "checkpoints", name, _, *_]:
                    folder = f"runs/{run}/{attempt}/checkpoints/{name}"
                case ["checkpoints" | "demonstrations", name, _, *_]:
                    folder = f"{top}/{name}"
                case _:
                    continue
            changed[folder] = max(file.modified, changed.get(folder, 0.0))
    old = [folder for folder, modified in changed.items() if modified <= oldest]
    with database.read() as session:
        return sorted(set(old) - RetentionRepository(session).known(old))
