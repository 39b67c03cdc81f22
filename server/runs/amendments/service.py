"""Users' changes of runs that have not ended: hyperparameters of behaviors, and environment parameters.

A change is a numbered row first, and the run's configuration is the changed one at once. A live run's supervisor finds
the row with its next heartbeat and hands it to the trainer, which goes on with it from the next update and says so by
the event `hyperparameters_changed`. A trainer that begins later begins with the changed configuration; its checkpoint
has the number of the newest change that it includes, so that each change takes effect in its order and exactly once.
"""

from collections.abc import Mapping
from typing import Any

from ludus.config.problems import show
from server.config.amendment import amend
from server.kit.db.database import Session
from server.runs.amendments.repository import AmendmentRepository
from server.runs.amendments.requests import RunChanges, RunUpdate
from server.runs.environment_parameters.service import ParameterService
from server.runs.events.repository import Note, ask
from server.runs.models import Run
from server.runs.repository import RunRepository


class AmendmentService:
    """Changes of runs. The session's owner commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._runs = RunRepository(session)
        self._amendments = AmendmentRepository(session)

    def locked(self, run: str) -> Run:
        """Return a run, locked until the commit. Raises RunNotFound."""
        return self._reloaded(self._runs.lock(run))

    def change(self, run: str, wanted: RunChanges) -> Run:
        """Do what is wanted, all or none. Raises RunNotFound, RunEnded, InvalidEdit."""
        found = self._runs.lock_live(run)
        if wanted.behaviors:
            self._amend(found, wanted.behaviors)
        if wanted.environment_parameters:
            ParameterService(self._session).edit(found.id, wanted.environment_parameters, ("environment_parameters",))
        return self._reloaded(found)

    def update(self, run: str, wanted: RunUpdate) -> Run:
        """Do what is wanted, all or none. Raises RunNotFound, RunEnded, InvalidEdit, TooManyTags."""
        found = self._runs.lock(run)
        given = wanted.model_fields_set
        self._runs.label(
            found,
            name=wanted.name or (found.id if "name" in given else None),
            tags=(wanted.tags or ()) if "tags" in given else None,
            add=wanted.add_tags,
            remove=wanted.remove_tags,
        )
        if wanted.changes_training:
            return self.change(found.id, wanted)
        return self._reloaded(found)

    def _reloaded(self, run: Run) -> Run:
        """Return a locked run as it is now, and with its configuration: it was loaded without."""
        self._session.refresh(run)
        self._session.refresh(run, ["config"])
        return run

    def _amend(self, run: Run, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        amended, changes = amend(run.parsed_config, wanted)
        if not changes:
            return
        plain = [{"path": each.path, "old": each.old, "new": each.new} for each in changes]
        amendment = self._amendments.add(run, plain, amended)
        words = ", ".join(f"{each.path} from {show(each.old)} to {show(each.new)}" for each in changes)
        note = Note(
            "hyperparameter_change_requested",
            f"A user changed {words}; it takes effect with the next update.",
            data={"seq": amendment.seq, "changes": plain},
        )
        ask(self._session, run.id, note)
