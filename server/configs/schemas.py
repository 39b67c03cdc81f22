"""What the API says of stored configurations, and what it is told."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.kit.http.fields import Read, ResolvedConfig, Text, Time, Write
from server.kit.http.listing import ListPage

Document = dict[str, Any] | Annotated[str, StringConstraints(max_length=2**21)]
"""A configuration as it is sent."""


class ConfigSummary(Read):
    """One version of a stored configuration, without its content."""

    name: str
    version: int = Field(description="Counts 1, 2, 3, ... per name.")
    description: str
    digest: str = Field(description="SHA-256 of the resolved form as canonical JSON.")
    project: str
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


class ConfigUpgradeRequest(Write):
    """A configuration of an older release of ML-Agents."""

    config: Document = Field(description="The file of the trainers: an object, or its text as YAML or JSON.")
    curriculum: Document | None = Field(
        default=None, description="The file of curricula that releases up to 0.16 had beside it, by behavior."
    )
    sampler: Document | None = Field(
        default=None, description="The file of samplers that releases up to 0.16 had beside it."
    )


class ConfigRewrite(Read):
    """Something that is written otherwise now."""

    path: str = Field(description="Where it was; `*` stands for each behavior.")
    to: str = Field(description="Where it is now.")
    old: Any = Field(description="Null where only the place changed.")
    new: Any
    why: str


class ConfigDrop(Read):
    """Something that the new document does not have."""

    path: str = Field(description="Where it was.")
    value: Any
    why: str


class ConfigProblem(Read):
    """A mistake that a run of the new document would be refused for."""

    path: str
    code: str = Field(description="Stable name.")
    message: str


class ConfigUpgrade(Read):
    """A configuration in the format of today, and what was done to it."""

    document: str = Field(description="As YAML; without comments, unless nothing changed.")
    unchanged: bool = Field(description="It had the format of today; the document is the one that was sent.")
    changes: list[ConfigRewrite]
    dropped: list[ConfigDrop]
    problems: list[ConfigProblem] = Field(description="What is left to do before a run can be made of it.")


class ConfigCreate(Write):
    """A configuration to be stored."""

    config: Document = Field(description="An object, or its text as YAML or JSON, which is kept as it is.")
    description: Text = Field(default="", description="What it is for.")
