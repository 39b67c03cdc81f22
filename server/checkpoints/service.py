"""Commands on checkpoints: pin, score, mark as damaged; store and delete uploaded ones; aliases; requests for one now.

A request is a row first. The run's supervisor finds it with its next heartbeat, the trainer writes the checkpoint
between two updates, and the row is answered in the transaction that enters the checkpoint. A request outlives the
worker: the next attempt answers it. A run that pauses or ends answers it with its last checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from ludus.config.problems import Path, join_path
from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint, CheckpointAlias, CheckpointRequest, UploadedCheckpoint
from server.checkpoints.refs import AliasInvalid, AliasMoved, CheckpointInUse, keep_best_of, overall_score
from server.checkpoints.repository import (
    AliasRepository,
    CheckpointRepository,
    CheckpointRequestRepository,
    InitialCheckpoints,
    UploadedCheckpointRepository,
)
from server.checkpoints.uploads import FILE, Inspected
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import Stored
from server.kit.db.clock import now
from server.kit.db.database import Session, after_commit
from server.kit.errors import CheckpointDeleted, InvalidConfig, Problem
from server.runs.events.repository import Note, ask, lock_run, record
from server.runs.repository import RunNotRunning, RunRepository


class CheckpointService:
    """Commands on checkpoints, within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._of_runs = CheckpointRepository(session)
        self._uploaded = UploadedCheckpointRepository(session)
        self._initial = InitialCheckpoints(session)

    def add(self, stored: Stored[Inspected], name: str | None, behavior: str | None) -> UploadedCheckpoint:
        """Enter a stored file; with the commit the file is kept. One without a name is called like its id."""
        row = UploadedCheckpoint(
            id=stored.id,
            name=name or stored.id,
            behavior=behavior,
            format=stored.inspected.format,
            modules=list(stored.inspected.modules),
            path=stored.path,
            file=FILE,
            size=stored.inspected.size,
            sha256=stored.inspected.sha256,
            created_at=now(),
        )
        after_commit(self._session, stored.keep)
        return self._uploaded.save(row)

    def delete(self, checkpoint_id: str) -> None:
        """Delete an uploaded checkpoint, and give up its file.

        Raises CheckpointNotFound, CheckpointInUse (a run that has not ended may still fetch it).
        """
        checkpoint = self._uploaded.get(checkpoint_id)
        user = self._initial.in_use([checkpoint_id]).get(checkpoint_id)
        if user is not None:
            raise CheckpointInUse(checkpoint_id, user)
        GivenUpFileRepository(self._session).give_up(checkpoint.path)
        self._uploaded.delete(checkpoint)

    def pin(self, run_id: str, checkpoint_id: str, *, pinned: bool) -> Checkpoint:
        """Exempt a checkpoint from the retention rules, or apply them again.

        Raises CheckpointNotFound, CheckpointDeleted.
        """
        lock_run(self._session, run_id)
        checkpoint = self._of_runs.get_stored(run_id, checkpoint_id)
        if pinned != (checkpoint.pinned_at is not None):
            checkpoint.pinned_at = now() if pinned else None
            self._of_runs.save(checkpoint)
        return checkpoint

    def score(self, run_id: str, checkpoint_id: str, metric: str, value: float, behavior: str = "") -> Checkpoint:
        """Store the score of an evaluation of a checkpoint. Raises CheckpointNotFound, CheckpointDeleted."""
        lock_run(self._session, run_id)
        checkpoint = self._of_runs.get_stored(run_id, checkpoint_id)
        scores = {name: dict(values) for name, values in (checkpoint.scores or {}).items()}
        scores.setdefault(behavior, {})[metric] = value
        rule = keep_best_of(RunRepository(self._session).get(run_id).config)
        checkpoint.scores = scores
        if rule is not None:
            checkpoint.score, scored_by = overall_score(rule, scores, (), ())
            checkpoint.scored_by = None if scored_by is None else asdict(scored_by)
        self._session.flush()
        return checkpoint

    def verified(self, run_id: str, checkpoint_id: str, problems: Sequence[str]) -> Checkpoint:
        """Store the result of verifying the files of a checkpoint. Raises CheckpointNotFound, CheckpointDeleted."""
        lock_run(self._session, run_id)
        checkpoint = self._of_runs.get_stored(run_id, checkpoint_id)
        if not problems:
            checkpoint.damaged_at = checkpoint.damage = None
        elif checkpoint.damaged_at is None:
            damage = "; ".join(problems)
            self._of_runs.mark_damaged(checkpoint, damage)
            message = f"Checkpoint {checkpoint_id} is damaged: {damage}."
            record(
                self._session,
                run_id,
                Note("checkpoint_damaged", message, "error", {"checkpoint_id": checkpoint_id, "step": checkpoint.step}),
            )
        return self._of_runs.save(checkpoint)

    def check(self, config: RunConfig, *, lock: bool = False) -> list[str]:
        """Return the ids that a configuration names; with `lock` they exist until the commit at least.

        Raises InvalidConfig, with a path for each id that does not exist, whose files are gone, or that has no such
        behavior. Whether networks fit is seen when they are built.
        """
        named = config.initial_checkpoints()
        checkpoints = self._initial.existing(set(named.values()), lock=lock)
        problems = list(_problems(named, checkpoints))
        if problems:
            raise InvalidConfig(problems)
        return sorted(checkpoints)


def _problems(
    named: Mapping[Path, str], checkpoints: Mapping[str, Checkpoint | UploadedCheckpoint]
) -> Iterator[Problem]:
    for path, id_ in named.items():
        place, checkpoint = join_path(path), checkpoints.get(id_)
        if checkpoint is None:
            uploads = "" if isinstance(path[-1], int) else ", or that `ludus checkpoint upload FILE` prints"
            message = (
                f"there is no checkpoint {id_}; put in the id of one that `ludus checkpoint list RUN` shows{uploads}"
            )
            yield Problem(place, "not_found", message)
        elif isinstance(checkpoint, UploadedCheckpoint):
            if path[-1] == "resume_from":
                message = (
                    f"checkpoint {id_} was uploaded, and a run goes on from checkpoints of runs alone; name it in the "
                    "`initialize_from` of the behavior, which then begins with its networks at step 0"
                )
                yield Problem(place, "contradiction", message)
            elif isinstance(path[-1], int):  # of `self_play.opponents`
                message = (
                    f"checkpoint {id_} was uploaded, and opponents are policies of runs; let a run begin with it "
                    "(`initialize_from`), and name a checkpoint of that run"
                )
                yield Problem(place, "contradiction", message)
        elif checkpoint.deleted_at is not None:
            message = f"the files of checkpoint {id_} were removed by retention; name a newer one"
            yield Problem(place, "not_found", message)
        elif checkpoint.damaged_at is not None:
            message = f"checkpoint {id_} is damaged ({checkpoint.damage}); name another one"
            yield Problem(place, "not_found", message)
        elif path[0] == "behaviors" and len(checkpoint.steps) > 1 and path[1] not in checkpoint.steps:
            names = ", ".join(sorted(checkpoint.steps))
            message = f"checkpoint {id_} has no behavior {path[1]!r}, but {names}; name another checkpoint"
            yield Problem(place, "contradiction", message)


RESERVED: Final = frozenset({"latest", "best"})
"""Names that already mean a checkpoint of a run."""
ID_PREFIX: Final = "ckpt_"


class AliasService:
    """Commands on aliases, within the caller's transaction. Each move leaves a row in the alias's history."""

    def __init__(self, session: Session, actor: str) -> None:
        """`actor` is the name of the principal that moves them."""
        self._aliases = AliasRepository(session)
        self._actor = actor

    def put(self, name: str, checkpoint_id: str, *, compare: bool, expected: str | None) -> CheckpointAlias:
        """Set an alias to a checkpoint of a run; setting it to its present checkpoint changes nothing.

        With `compare` only if it stands for `expected` now (None: for nothing). Raises AliasInvalid, AliasMoved,
        CheckpointNotFound, CheckpointDeleted.
        """
        if name in RESERVED or name.startswith(ID_PREFIX):
            raise AliasInvalid(name)
        checkpoint = self._aliases.checkpoint(checkpoint_id)
        if checkpoint.deleted_at is not None:
            raise CheckpointDeleted(checkpoint_id)
        alias = self._aliases.lock(name)
        if alias is None and not (compare and expected is not None):
            inserted = self._aliases.insert(name, checkpoint_id, self._actor)
            if inserted is not None:
                return inserted
            alias = self._aliases.lock(name)
        stands = None if alias is None else alias.checkpoint_id
        if alias is None or (compare and stands not in {expected, checkpoint_id}):
            raise AliasMoved(name, expected, stands)
        return alias if stands == checkpoint_id else self._aliases.move(alias, checkpoint_id, self._actor)

    def delete(self, name: str) -> None:
        """Remove a name. Raises AliasNotFound, NameAmbiguous."""
        self._aliases.delete(self._aliases.get(name, lock=True), self._actor)


def request_checkpoint(session: Session, run: str) -> CheckpointRequest:
    """Ask for a checkpoint; while a request is pending, asking again returns that one.

    Raises RunNotFound, RunEnded, RunNotRunning.
    """
    requests = CheckpointRequestRepository(session)
    row = RunRepository(session).lock_live(run)
    if row.state != RunState.RUNNING:
        newest = CheckpointRepository(session).newest(row.id)
        hint = "" if newest is None else f", or take its newest checkpoint, {newest.id}"
        raise RunNotRunning(row.id, row.state, "write a checkpoint", hint)
    pending = requests.pending(row.id)
    if pending is not None:
        return pending
    request = requests.add(row.id)
    note = Note("checkpoint_requested", "A user asked for a checkpoint now.", data={"request": request.seq})
    ask(session, row.id, note, attempt=row.attempt)
    return request
