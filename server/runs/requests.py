"""Request bodies about runs."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from ludus.schemas.states import RunKind
from ludus.validation import NO_NUL
from server.kit.http.fields import Document, Name, RunName, Tag, Write


class RunCreate(Write):
    """A run to be queued. Its configuration is `config`, or a stored one, named by `config_name`."""

    config: Document | None = None
    """A configuration as ML-Agents has it (`behaviors: {Name: {trainer_type: ppo, ...}}`): an object, or its text as
    YAML or JSON.
    """
    config_name: Name | None = None
    """Name of a stored configuration."""
    config_version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The newest one by default."""
    overrides: dict[str, Any] = Field(default={}, examples=[{"behaviors.CartPole.max_steps": 100000}])
    """Changes to the configuration by dotted path."""
    name: RunName | None = None
    """Called like its id by default."""
    tags: list[Tag] = Field(default=[], max_length=50)
    """For filters."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Of a project's runs, those with a higher one are trained first."""
    owner: Annotated[str, StringConstraints(max_length=200), NO_NUL] = ""
    """A label: of the runs that one token created, those of the owner with fewer in training go first. Quotas count by
    project and token, not by owner.
    """
    kind: RunKind | None = None
    """Default: the kind that the configuration implies; another kind is refused."""
    validate_only: bool = False
    """Only check, and answer the run without queuing it."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config is None) == (self.config_name is None):
            raise ValueError("give either config or config_name")
        if self.config_version is not None and self.config_name is None:
            raise ValueError("config_version needs config_name")
        return self
