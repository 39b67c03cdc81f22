"""Commands of users on runs: create, pause, resume, stop, cancel. One object per request, inside its transaction.

If a worker holds the run, its supervisor reads the intent with its next heartbeat (at most 2 s later) and pauses or
ends the run itself; a waiting run is paused or ended at once.
"""

import secrets
from dataclasses import asdict, replace

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.repository import InitialCheckpoints
from server.demonstrations.repository import DemonstrationRepository
from server.kit.db.database import Session, after_commit
from server.kit.db.projects import DEFAULT, project_of
from server.kit.states import EVENT_OF, LEASED, TERMINAL, Intent
from server.kit.wake_up import WakeUp
from server.ladders.service import LadderService
from server.lifecycle.errors import RunEnding, RunNotPaused
from server.lifecycle.leases.repository import finish
from server.runs.amendments.requests import RunChanges
from server.runs.amendments.service import AmendmentService
from server.runs.events.repository import Note, record
from server.runs.models import Run
from server.runs.repository import NewRun, RunRepository


class RunService:
    """Commands on runs. The session's owner commits; workers are woken after that."""

    def __init__(self, session: Session, wake_up: WakeUp) -> None:
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
        found = self._runs.lock_live(run)
        if found.state == RunState.PAUSED:
            return self._keep_paused(found)
        if found.intent in {Intent.STOP, Intent.CANCEL} or found.state == RunState.STOPPING:
            raise RunEnding(found.id, Intent.CANCEL if found.intent == Intent.CANCEL else Intent.STOP)
        if found.state not in LEASED:
            return self._finish(found, RunState.PAUSED, "Paused by a user while no worker held the run.")
        if found.intent == Intent.PAUSE:
            return found
        return self._runs.intend(found, Intent.PAUSE, Note("pause_requested", "A user asked to pause the run."))

    def resume(self, run: str, changes: RunChanges | None = None) -> Run:
        """Queue a run again, paused for any reason; it continues from its newest checkpoint, with all restarts.

        `changes` are made first; the run goes on with them. Raises RunNotFound, RunEnded, RunNotPaused, InvalidEdit.
        """
        found = self._runs.lock_live(run)
        if found.state != RunState.PAUSED:
            pausing = found.state == RunState.PAUSING or found.intent == Intent.PAUSE
            raise RunNotPaused(found.id, found.state, pausing=pausing)
        if changes is not None:
            AmendmentService(self._session).change(found.id, changes)
        note = Note(EVENT_OF[RunState.QUEUED], "Resumed by a user; the run waits for a worker again.")
        self._runs.move(found, RunState.QUEUED, note, restarts_without_progress=0)
        run_id = found.id
        after_commit(self._session, lambda: self._wake_up.wake(run_id))
        return found

    def stop(self, run: str) -> Run:
        """Ask for a final checkpoint and export, then SUCCEEDED with reason `user`.

        Outranks an earlier pause. A run that no worker holds has nothing to save beyond its newest checkpoint and is
        SUCCEEDED at once. One that has ended, however it did, stays as it is, and asking again changes nothing: who
        asks wants it to be over. Raises RunNotFound.
        """
        found = self._runs.lock(run)
        if found.state in TERMINAL:
            return found
        if found.state not in LEASED:
            return self._finish(found, RunState.SUCCEEDED, "Stopped by a user while no worker held the run.")
        if found.intent in {Intent.STOP, Intent.CANCEL}:
            return found
        return self._runs.intend(found, Intent.STOP, Note("stop_requested", "A user asked to stop the run."))

    def cancel(self, run: str) -> Run:
        """Ask for CANCELLED without a checkpoint; outranks an earlier stop or pause, and asking again changes nothing.

        A run that has ended, however it did, stays as it is. Raises RunNotFound.
        """
        found = self._runs.lock(run)
        if found.state in TERMINAL:
            return found
        if found.state not in LEASED:
            return self._finish(found, RunState.CANCELLED, "Cancelled by a user while no worker held the run.")
        if found.intent == Intent.CANCEL:
            return found
        return self._runs.intend(found, Intent.CANCEL, Note("cancel_requested", "A user asked to cancel the run."))

    def _keep_paused(self, run: Run) -> Run:
        """Keep a run paused that had paused by itself, even if its simulators come back."""
        if run.stop_reason == StopReason.USER:
            return run
        note = Note("pause_requested", "A user asked that the run stays paused until it is resumed.")
        return self._runs.annotate(run, note, stop_reason=StopReason.USER, stop_detail="Paused by a user.")

    def _finish(self, run: Run, to: RunState, detail: str) -> Run:
        finish(self._session, run, to, StopReason.USER, detail)
        return run
