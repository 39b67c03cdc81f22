"""Commands of users on runs: create, pause, resume, stop, cancel, delete. One object per request, in its transaction.

If a worker holds the run, its supervisor reads the intent with its next heartbeat (at most 2 s later) and pauses or
ends the run itself; a waiting run is paused or ended at once.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, field, replace

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.repository import InitialCheckpoints
from server.demonstrations.repository import DemonstrationRepository
from server.kit.db.database import Session, after_commit
from server.kit.db.projects import DEFAULT, project_of
from server.kit.errors import Conflict, RunNotFound
from server.kit.states import EVENT_OF, LEASED, TERMINAL, Intent
from server.kit.wake_up import Wakes
from server.ladders.service import LadderService
from server.lifecycle.deletion import DeletionRepository
from server.lifecycle.leases.repository import finish
from server.runs.amendments import AmendmentService, RunChanges
from server.runs.events.repository import Note, lock_run, move, record
from server.runs.models import Run
from server.runs.repository import NewRun, RunRepository
from server.webhooks.repository import Outbox, WebhookRepository


class RunInUse(Conflict, code="run_in_use"):
    """A run cannot be deleted: something outside it needs it; the message names what."""

    run_id: str
    users: Sequence[str]

    def _sentence(self) -> str:
        shown = "; ".join(self.users[:10]) + (f"; and {len(self.users) - 10} more" if len(self.users) > 10 else "")
        return f"Run {self.run_id} is needed: {shown}. Delete or change these first."


class RunNotEnded(Conflict, code="run_not_ended"):
    """The request needs a run that has ended."""

    run_id: str
    state: str
    sentence = (
        "Run {run_id} is {state}: only a run that has ended is deleted. End it first (`ludus run stop`, `cancel`)."
    )


class RunEnding(Conflict, code="run_ending"):
    """A run cannot be paused because it is about to end."""

    run_id: str
    intent: str
    sentence = (
        "Run {run_id} will not pause: a request to {intent} it came before, and it is about to end. To go on from its "
        "last checkpoint, branch off another run (`ludus run branch`)."
    )


class RunNotPaused(Conflict, code="run_not_paused"):
    """A run cannot be resumed because it is not paused."""

    run_id: str
    state: str
    pausing: bool = field(kw_only=True)

    def _sentence(self) -> str:
        remedy = (
            "it is about to pause; wait for PAUSED (`?wait=PAUSED`), and resume it then"
            if self.pausing
            else "there is nothing to resume"
        )
        return f"Run {self.run_id} is {self.state}, not PAUSED: {remedy}."


class RunService:
    """Commands on runs. The session's owner commits; workers are woken after that."""

    def __init__(self, session: Session, wake_up: Wakes) -> None:
        self._session = session
        self._runs = RunRepository(session)
        self._wake_up = wake_up

    def create(self, new: NewRun) -> Run:
        """Queue a run. A missing seed is drawn now; it is stored in the configuration with the samplers' seeds."""
        seed = secrets.randbelow(2**31) if new.config.seed is None else new.config.seed
        owner = new.owner or project_of(self._session) or DEFAULT
        new = replace(new, config=new.config.with_seed(seed), owner=owner)
        run = self._runs.insert(new)
        DemonstrationRepository(self._session).use(run.id, new.demonstrations)
        InitialCheckpoints(self._session).use(run.id, new.checkpoints)
        LadderService(self._session).join(run.id, new.config, new.ladder)
        for warning in new.warnings:
            note = Note("config_doubted", f"{warning.path}: {warning.message}.", "warning", asdict(warning))
            record(self._session, run.id, note)
        self._session.refresh(run)
        run_id = run.id
        after_commit(self._session, lambda: self._wake_up.wake(run_id))
        return run

    def pause(self, run: str) -> Run:
        """Ask for a checkpoint, then PAUSED with reason `user`: the worker is free, and simulators wait.

        A run that no worker holds is PAUSED at once. One that has paused because its simulators were gone stays so
        until a user resumes it. Asking again changes nothing.
        Raises RunNotFound, RunEnding (a stop or cancel is under way), RunEnded.
        """
        locked = self._runs.lock_live(run)
        if locked.state == RunState.PAUSED:
            if locked.stop_reason == StopReason.USER:
                return locked
            # It had paused by itself, and would go on by itself if its simulators came back.
            note = Note("pause_requested", "A user asked that the run stays paused until it is resumed.")
            return self._runs.annotate(locked, note, stop_reason=StopReason.USER, stop_detail="Paused by a user.")
        if locked.intent in {Intent.STOP, Intent.CANCEL} or locked.state == RunState.STOPPING:
            raise RunEnding(locked.id, Intent.CANCEL if locked.intent == Intent.CANCEL else Intent.STOP)
        if locked.state not in LEASED:
            return self._finish(locked, RunState.PAUSED, "Paused by a user while no worker held the run.")
        if locked.intent == Intent.PAUSE:
            return locked
        return self._runs.intend(locked, Intent.PAUSE, Note("pause_requested", "A user asked to pause the run."))

    def resume(self, run: str, changes: RunChanges | None = None) -> Run:
        """Queue a run again, paused for any reason; it continues from its newest checkpoint, with all restarts.

        `changes` are made first; the run goes on with them. Raises RunNotFound, RunEnded, RunNotPaused, InvalidEdit.
        """
        locked = self._runs.lock_live(run)
        if locked.state != RunState.PAUSED:
            pausing = locked.state == RunState.PAUSING or locked.intent == Intent.PAUSE
            raise RunNotPaused(locked.id, locked.state, pausing=pausing)
        if changes is not None:
            AmendmentService(self._session).change(locked.id, changes)
        note = Note(EVENT_OF[RunState.QUEUED], "Resumed by a user; the run waits for a worker again.")
        move(self._session, locked, RunState.QUEUED, note, restarts_without_progress=0)
        run_id = locked.id
        after_commit(self._session, lambda: self._wake_up.wake(run_id))
        return locked

    def stop(self, run: str) -> Run:
        """Ask for a final checkpoint and export, then SUCCEEDED with reason `user`.

        Outranks an earlier pause. A run that no worker holds has nothing to save beyond its newest checkpoint and is
        SUCCEEDED at once. One that has ended, however it did, stays as it is, and asking again changes nothing: who
        asks wants it to be over. Raises RunNotFound.
        """
        locked = self._runs.lock(run)
        if locked.state in TERMINAL:
            return locked
        if locked.state not in LEASED:
            return self._finish(locked, RunState.SUCCEEDED, "Stopped by a user while no worker held the run.")
        if locked.intent in {Intent.STOP, Intent.CANCEL}:
            return locked
        return self._runs.intend(locked, Intent.STOP, Note("stop_requested", "A user asked to stop the run."))

    def cancel(self, run: str) -> Run:
        """Ask for CANCELLED without a checkpoint; outranks an earlier stop or pause, and asking again changes nothing.

        A run that has ended, however it did, stays as it is. Raises RunNotFound.
        """
        locked = self._runs.lock(run)
        if locked.state in TERMINAL:
            return locked
        if locked.state not in LEASED:
            return self._finish(locked, RunState.CANCELLED, "Cancelled by a user while no worker held the run.")
        if locked.intent == Intent.CANCEL:
            return locked
        return self._runs.intend(locked, Intent.CANCEL, Note("cancel_requested", "A user asked to cancel the run."))

    def _finish(self, run: Run, to: RunState, detail: str) -> Run:
        finish(self._session, run, to, StopReason.USER, detail)
        return run


ROWS = 1000
"""Rows that one transaction deletes at most."""


class DeletionService:
    """Deletes runs that have ended. The session's owner commits.

    In one transaction: the users of the run are looked for, webhooks get its last event, and a row of `deleted_runs`
    takes the run's place: from the commit on it is not found any more. So a process that is killed anywhere leaves the
    whole run, or none of it. The same transaction deletes up to `ROWS` rows of the run, which are all of a small one.
    The controller deletes the rest, as many at a time (`server.lifecycle.retention`), the run's own row last, and
    then the files (`server.checkpoints.retention`).
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._deletions = DeletionRepository(session)

    def delete(self, run_id: str, why: str = "A user deleted the run.") -> None:
        """Delete a run; one that was deleted before stays so. Its last event says why.

        Raises RunNotFound, RunNotEnded, RunInUse.
        """
        try:
            run = lock_run(self._session, run_id)
        except RunNotFound:
            # Asked after the lock: of two who delete it at once, the second has waited for the first one's commit.
            if self._deletions.is_deleted(run_id):
                return
            raise RunNotFound(run_id, named=RunRepository(self._session).newest_named(run_id)) from None
        if self._deletions.is_being_deleted(run_id):
            return
        if run.state not in TERMINAL:
            raise RunNotEnded(run.id, run.state)
        users = list(self._deletions.users(run))
        if users:
            raise RunInUse(run.id, users)
        self._announce(run, why)
        self._deletions.mark(run)
        self._deletions.delete_rows(run_id, ROWS)

    def _announce(self, run: Run, why: str) -> None:
        """Record the run's last event, and make messages of all its events that have none yet.

        The events go with the run: what the sender has not come to would be lost.
        """
        data = {"name": run.name, "state": run.state}
        head = record(self._session, run.id, Note("run_deleted", why, data=data), attempt=run.attempt)
        webhooks, outbox = WebhookRepository(self._session).enabled(lock=True), Outbox(self._session)
        while webhooks and (through := outbox.positions([run.id]).get(run.id, 0)) < head:
            outbox.create_deliveries(run.id, through, head, webhooks)
