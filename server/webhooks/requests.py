"""Request bodies about webhooks."""

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from ludus.validation import Form
from server.kit.http.fields import Name, Tag, Text, Write
from server.webhooks.refs import PATTERN

Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Pattern = Annotated[str, Form("a type of events: small letters, digits, underscores, and `*` for anything", PATTERN)]
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
    """Changes of a webhook; fields that are left out stay, and null stands for the default."""

    url: Url | None = None
    """Has no default: null is refused."""
    events: Patterns | None = None
    description: Text | None = None
    run: Name | None = None
    """Id or name of a run; null: all runs."""
    tag: Tag | None = None
    """A tag; null: any tags."""
    enabled: bool | None = None
    """Enabled again, a webhook receives the events from then on."""

    @model_validator(mode="after")
    def _says_something(self) -> "WebhookUpdate":
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed; name at least one field")
        if "url" in self.model_fields_set and self.url is None:
            raise ValueError("url must not be null: a webhook without an address receives nothing")
        return self


class SecretRotation(Write):
    """The replacement of a secret."""

    overlap_seconds: float = Field(default=86400, ge=0, le=30 * 86400)
    """For so long messages are signed with the old secret, too."""
