"""Users' changes of runs that have not ended: hyperparameters of behaviors, and environment parameters.

A change is a numbered row first, and the run's configuration is the changed one at once. A live run's supervisor finds
the row with its next heartbeat and hands it to the trainer, which goes on with it from the next update and says so by
the event `hyperparameters_changed`. A trainer that begins later begins with the changed configuration; its checkpoint
has the number of the newest change that it includes, so that each change takes effect in its order and exactly once.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from ludus.config.environment_parameters import ParameterName
from ludus.config.problems import show
from server.config.amendment import amend
from server.kit.db.database import Session
from server.kit.http.fields import RunName, Tag, Write
from server.runs.amendments.repository import AmendmentRepository
from server.runs.environment_parameters.service import EnvironmentParameterChange, ParameterService
from server.runs.events.repository import Note, ask
from server.runs.models import Run
from server.runs.repository import RunRepository


class RunChanges(Write):
    """Changes of a run that has not ended."""

    behaviors: dict[str, dict[str, Any]] = Field(
        default={},
        max_length=256,
        examples=[{"Walker": {"hyperparameters": {"learning_rate": 1e-4}, "max_steps": 800_000}}],
    )
    """Parts of behaviors' sections, by the behaviors' names: `max_steps`, some of the `hyperparameters`, and the limits
    of `divergence`. What cannot be changed is refused by name.
    """
    environment_parameters: dict[ParameterName, EnvironmentParameterChange] = Field(default={}, max_length=1000)
    """Another lesson or value, by the parameter's name, as `PATCH .../environment_parameters` takes it."""


class RunUpdate(RunChanges):
    """At least one change. Name and tags change in runs that have ended, too."""

    name: RunName | None = None
    """Another name; null: the run's id."""
    tags: list[Tag] | None = Field(default=None, max_length=50)
    """All tags, in place of those that it has; null: none."""
    add_tags: list[Tag] = Field(default=[], max_length=50)
    """Tags to add. Tags that other requests add meanwhile stay."""
    remove_tags: list[Tag] = Field(default=[], max_length=50)
    """Tags that it shall not have."""

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        labels = self.model_fields_set & {"name", "tags"} or self.add_tags or self.remove_tags
        if not (self.changes_training or labels):
            raise ValueError("give behaviors, environment_parameters, name, tags, add_tags or remove_tags")
        if both := sorted({*self.add_tags} & {*self.remove_tags}):
            raise ValueError(f"{', '.join(both)} is to be added and removed")
        return self

    @property
    def changes_training(self) -> bool:
        """Whether it is about what the trainer does."""
        return bool(self.behaviors or self.environment_parameters)


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
        locked = self._runs.lock_live(run)
        if wanted.behaviors:
            self._amend(locked, wanted.behaviors)
        if wanted.environment_parameters:
            ParameterService(self._session).edit(locked.id, wanted.environment_parameters, ("environment_parameters",))
        return self._reloaded(locked)

    def update(self, run: str, wanted: RunUpdate) -> Run:
        """Do what is wanted, all or none. Raises RunNotFound, RunEnded, InvalidEdit, TooManyTags."""
        locked = self._runs.lock(run)
        fields = wanted.model_fields_set
        self._runs.label(
            locked,
            name=wanted.name or (locked.id if "name" in fields else None),
            tags=(wanted.tags or ()) if "tags" in fields else None,
            add=wanted.add_tags,
            remove=wanted.remove_tags,
        )
        if wanted.changes_training:
            return self.change(locked.id, wanted)
        return self._reloaded(locked)

    def _reloaded(self, run: Run) -> Run:
        """Return a locked run as it is now, and with its configuration: it was loaded without."""
        self._session.refresh(run)
        self._session.refresh(run, ["config"])
        return run

    def _amend(self, run: Run, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        amended, changes = amend(run.parsed_config, wanted)
        if not changes:
            return
        plain = [{"path": change.path, "old": change.old, "new": change.new} for change in changes]
        amendment = self._amendments.add(run, plain, amended)
        words = ", ".join(f"{each.path} from {show(each.old)} to {show(each.new)}" for each in changes)
        note = Note(
            "hyperparameter_change_requested",
            f"A user changed {words}; it takes effect with the next update.",
            data={"seq": amendment.seq, "changes": plain},
        )
        ask(self._session, run.id, note)
