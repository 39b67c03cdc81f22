"""API schemas of changes of a run's configuration."""

from typing import Any, Self

from pydantic import Field, model_validator

from ludus.config.environment_parameters import ParameterName
from server.kit.http.fields import RunName, Tag, Write
from server.runs.environment_parameters.requests import EnvironmentParameterChange


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
    """Tags that the run shall have, too, whoever changes others meanwhile."""
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
