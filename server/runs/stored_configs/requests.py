"""Request bodies about stored configurations."""

from server.kit.http.fields import Document, Text, Write


class ConfigUpgradeRequest(Write):
    """A configuration of an older release of ML-Agents."""

    config: Document
    """The file of the trainers: an object, or its text as YAML or JSON."""
    curriculum: Document | None = None
    """The file of curricula that releases up to 0.16 had beside it, by behavior."""
    sampler: Document | None = None
    """The file of samplers that releases up to 0.16 had beside it."""


class ConfigCreate(Write):
    """A configuration to be stored."""

    config: Document
    """An object, or its text as YAML or JSON, which is stored unchanged."""
    description: Text = ""
    """Description."""
