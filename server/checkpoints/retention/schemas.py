"""What the API says of pruning."""

from typing import Literal

from pydantic import Field

from server.kit.http.fields import Read, Time, Write


class PruneWrite(Write):
    """What shall be deleted."""

    older_than_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Age at which checkpoints are deleted. Default: the server's `retention_seconds`.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="Size of all checkpoints together beyond which the oldest are deleted. Default: the server's "
        "`retention_bytes`.",
    )
    dry_run: bool = Field(default=False, description="Only say what would be deleted.")


class PrunedCheckpoint(Read):
    """A checkpoint that is deleted, or would be."""

    id: str
    run_id: str
    step: int
    size: int = Field(description="Bytes.")
    created_at: Time
    rule: Literal["age", "size"] = Field(description="Which rule lets it go.")


class Pruned(Read):
    """What was deleted, or would be."""

    dry_run: bool
    checkpoints: list[PrunedCheckpoint]
    bytes: int = Field(description="Of all of them together.")
