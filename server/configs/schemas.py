"""What the API says of stored configurations, and what it is told."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.http.fields import Read, ResolvedConfig, Text, Time, Write
from server.http.listing import ListPage


class ConfigSummary(Read):
    """One version of a stored configuration, without its content."""

    name: str
    version: int = Field(description="Counts 1, 2, 3, ... per name.")
    description: str
    digest: str = Field(description="SHA-256 of the resolved form as canonical JSON.")
    created_at: Time


class ConfigRead(ConfigSummary):
    """One immutable version of a stored configuration."""

    source: str = Field(description="The document as it was sent.")
    document: dict[str, Any] = Field(description="The source, parsed.")
    resolved: ResolvedConfig = Field(description="With every default filled in.")


class ConfigPage(ListPage):
    """The newest versions of all names."""

    configs: list[ConfigSummary]


class ConfigVersionPage(ListPage):
    """The versions of one name."""

    versions: list[ConfigSummary]


class ConfigChange(Read):
    """One difference; a whole section that came or went is one."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any = Field(description="Null if added.")
    new: Any = Field(description="Null if removed.")


class ConfigDiff(Read):
    """The differences between the resolved forms of two versions."""

    name: str
    old: int
    new: int
    changes: list[ConfigChange]


class ConfigCreate(Write):
    """A configuration to be stored."""

    config: dict[str, Any] | Annotated[str, StringConstraints(max_length=2**21)] = Field(
        description="An object, or its text as YAML or JSON, which is kept as it is."
    )
    description: Text = Field(default="", description="What it is for.")
