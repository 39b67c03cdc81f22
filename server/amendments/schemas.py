"""What the API says of changes of a run's configuration, and what it is told."""

from typing import Any, Self

from pydantic import Field, model_validator

from server.http.fields import Read, ResolvedConfig, Time, Write
from server.parameters.schemas import EnvironmentParameterChange
from server.training.parameters import ParameterName


class RunChanges(Write):
    """Changes of a run that has not ended."""

    behaviors: dict[str, dict[str, Any]] = Field(
        default={},
        max_length=256,
        description="Parts of behaviors' sections, by the behaviors' names: `max_steps`, and some of the "
        "`hyperparameters`. What cannot be changed is refused by name.",
        examples=[{"Walker": {"hyperparameters": {"learning_rate": 1e-4}, "max_steps": 800_000}}],
    )
    environment_parameters: dict[ParameterName, EnvironmentParameterChange] = Field(
        default={},
        max_length=1000,
        description="Another lesson or value, by the parameter's name, as `PATCH .../environment_parameters` takes it.",
    )


class RunUpdate(RunChanges):
    """At least one change."""

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if not self.behaviors and not self.environment_parameters:
            raise ValueError("give changes of behaviors, of environment_parameters, or of both")
        return self


class ChangeRead(Read):
    """One key that was changed."""

    path: str = Field(description="Where: dotted keys.")
    old: Any
    new: Any


class AmendmentRead(Read):
    """One change of a run's configuration."""

    seq: int = Field(description="Counts 1, 2, 3, ... per run.")
    changes: list[ChangeRead]
    applied: bool = Field(description="Whether a trainer has carried it out; a live run does within seconds.")
    created_at: Time


class AmendmentsRead(Read):
    """How a run's configuration came to be what it is."""

    original_config: ResolvedConfig = Field(description="What the run was created with, every default filled in.")
    config: ResolvedConfig = Field(description="The present one: all changes made.")
    amendments: list[AmendmentRead] = Field(description="In their order.")
