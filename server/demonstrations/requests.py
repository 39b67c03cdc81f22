"""Request bodies about demonstrations."""

from typing import Self

from pydantic import Field, model_validator

from ludus.config.values import DemonstrationId
from server.kit.http.fields import Name, Write


class DemonstrationMerge(Write):
    """Several demonstrations to become one."""

    demonstrations: list[DemonstrationId] = Field(min_length=1, max_length=1000)
    """Ids, in their order."""
    name: Name | None = None
    """Name of the new one; default: its id."""


class DemonstrationSubsample(Write):
    """Some episodes of a demonstration, some of its transitions, or some transitions of some episodes."""

    count: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of transitions, drawn without replacement."""
    episodes: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of complete episodes: the first ones, or drawn by `seed`."""
    every: int | None = Field(default=None, ge=1, le=100_000_000)
    """Keep every n-th transition of each episode: from its first one on, or from one drawn by `seed`."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Equal seeds draw equally; 0 for `count` if not given."""
    name: Name | None = None
    """Name of the new one; default: its id."""

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.count is not None and self.every is not None:
            raise ValueError("count and every both say which transitions: leave one of them out")
        if self.count is self.episodes is self.every is None:
            raise ValueError("say what to keep: episodes, and every or count for transitions")
        return self
