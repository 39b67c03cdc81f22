"""Request bodies about webhooks."""

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from server.kit.http.fields import Name, Tag, Text, Write
from server.webhooks.refs import PATTERN

Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Pattern = Annotated[str, StringConstraints(pattern=PATTERN)]
Patterns = Annotated[
    list[Pattern],
    Field(
        min_length=1,
        max_length=50,
        description="Types of events; `*` stands for anything: `run_*`, `checkpoint_saved`, `*`.",
    ),
]


class WebhookCreate(Write):
    """A webhook that is to be made."""

    url: Url
    """Where messages are sent: `https://...`."""
    events: Patterns = Field(default=["*"])
    description: Text = ""
    run: Name | None = None
    """Id or name of a run: only its events."""
    tag: Tag | None = None
    """Only events of runs with this tag."""


class WebhookUpdate(Write):
    """Changes of a webhook; fields that are left out stay."""

    url: Url | None = None
    events: Patterns | None = None
    description: Text | None = None
    run: Name | Annotated[str, StringConstraints(max_length=0)] | None = None
    """Id or name of a run; the empty text: all runs."""
    tag: Tag | Annotated[str, StringConstraints(max_length=0)] | None = None
    """A tag; the empty text: any tags."""
    enabled: bool | None = None
    """Enabled again, a webhook receives the events from then on."""

    @model_validator(mode="after")
    def _says_something(self) -> "WebhookUpdate":
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed; name at least one field")
        return self


class SecretRotation(Write):
    """The replacement of a secret."""

    overlap_seconds: float = Field(default=86400, ge=0, le=30 * 86400)
    """For so long messages are signed with the old secret, too."""
