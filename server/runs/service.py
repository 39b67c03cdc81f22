"""What users do with runs: create, stop, cancel. One object per request, inside its transaction.

Whether a worker holds the run decides how a wish is carried out: a live run's supervisor learns it with its next
heartbeat (at most 2 s later) and ends the run itself; a run that waits is ended on the spot.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from server.checkpoints.repository import InitialCheckpoints
from server.db.database import Session, after_commit
from server.demonstrations.repository import DemonstrationRepository
from server.errors import IllegalTransition, Problem
from server.events.repository import Note, record
from server.ladders.service import LadderService
from server.runs.models import Run
from server.runs.repository import RunRepository
from server.runs.states import EVENT_OF, LEASED, TERMINAL, Intent, RunKind, RunState, StopReason
from server.training.config import RunConfig


class Bell(Protocol):
    """Wakes a worker. Losing a ring is harmless: the steward rings again."""

    def ring(self, run_id: str) -> None:
        """Tell the workers that this run waits."""
        ...


class RunService:
    """Commands on runs. The session's owner commits; bells ring after that."""

    def __init__(self, session: Session, bell: Bell) -> None:
        self._session = session
        self._runs = RunRepository(session)
        self._bell = bell

    def create(
        self,
        config: Mapping[str, Any],
        *,
        name: str | None = None,
        tags: Iterable[str] = (),
        priority: int = 0,
        owner: str = "",
        config_name: str | None = None,
        config_version: int | None = None,
        demonstrations: Iterable[str] = (),
        checkpoints: Iterable[str] = (),
        ladder: str | None = None,
        warnings: Iterable[Problem] = (),
    ) -> Run:
        """Queue a run. `config` is resolved, as JSON; a `seed` of None in it is drawn now, and stored in it with
        the seeds of samplers.

        What kind of run it is, its configuration says. `demonstrations` and `checkpoints` are the ids that it names,
        which exist, and `ladder` the id of the one that it names; `warnings` about it become events. `owner` is whom
        the run counts for where workers are shared.
        """
        seed = config.get("seed")
        if seed is None:
            seed = secrets.randbelow(2**31)
        resolved = RunConfig.model_validate(config).with_seed(seed)
        run = self._runs.insert(
            resolved.model_dump(mode="json"),
            seed=int(seed),
            name=name,
            tags=tags,
            priority=priority,
            owner=owner,
            kind=RunKind.of(config),
            config_name=config_name,
            config_version=config_version,
        )
        DemonstrationRepository(self._session).use(run.id, demonstrations)
        InitialCheckpoints(self._session).use(run.id, checkpoints)
        LadderService(self._session).join(run.id, resolved, ladder)
        for warning in warnings:
            note = Note("config_doubted", f"{warning.path}: {warning.message}.", "warning", asdict(warning))
            record(self._session, run.id, note)
        self._session.refresh(run)
        run_id = run.id
        after_commit(self._session, lambda: self._bell.ring(run_id))
        return run

    def stop(self, run: str) -> Run:
        """Ask for a final checkpoint and export, then SUCCEEDED with reason `user`; asking again changes nothing.

        A run that no worker holds has nothing to save beyond its newest checkpoint and is SUCCEEDED at once.
        Raises RunNotFound, IllegalTransition (the run has ended otherwise).
        """
        found = self._runs.lock(run)
        if found.state in TERMINAL:
            return _already(found, RunState.SUCCEEDED)
        if found.state not in LEASED:
            return self._end(found, RunState.SUCCEEDED, "Stopped by a user while no worker held the run.")
        if found.intent is not None:
            return found
        return self._runs.intend(found, Intent.STOP, Note("stop_requested", "A user asked to stop the run."))

    def cancel(self, run: str) -> Run:
        """Ask for CANCELLED without a checkpoint; outranks an earlier stop, and asking again changes nothing.

        Raises RunNotFound, IllegalTransition (the run has ended otherwise).
        """
        found = self._runs.lock(run)
        if found.state in TERMINAL:
            return _already(found, RunState.CANCELLED)
        if found.state not in LEASED:
            return self._end(found, RunState.CANCELLED, "Cancelled by a user while no worker held the run.")
        if found.intent == Intent.CANCEL:
            return found
        return self._runs.intend(found, Intent.CANCEL, Note("cancel_requested", "A user asked to cancel the run."))

    def _end(self, run: Run, to: RunState, detail: str) -> Run:
        return self._runs.move(run, to, Note(EVENT_OF[to], detail), reason=StopReason.USER, detail=detail)


def _already(run: Run, wanted: RunState) -> Run:
    """Return a run that has ended as a user wanted; a repeated request is answered like the first one."""
    if run.state == wanted and run.stop_reason == StopReason.USER:
        return run
    raise IllegalTransition(run.id, run.state, wanted)
