"""What the API says of checkpoints."""

from pydantic import Field

from server.http.fields import Read, Time
from server.http.listing import ListPage


class CheckpointFile(Read):
    """One file of a checkpoint."""

    name: str
    size: int = Field(description="Bytes.")
    sha256: str = Field(description="Lower-case hexadecimal; also the ETag of the download.")


class CheckpointRead(Read):
    """A complete state of a run, with its exported models."""

    id: str
    run_id: str
    epoch: int = Field(description="Attempt that saved it.")
    step: int = Field(description="Agent steps of all behaviors together.")
    steps: dict[str, int] = Field(description="Agent steps per behavior.")
    reason: str = Field(description="`interval`, `final` or `requested`.")
    size: int = Field(description="Bytes of all files.")
    files: list[CheckpointFile]
    metrics: dict[str, float | None] = Field(
        description="Per behavior: mean episode return since the previous checkpoint."
    )
    created_at: Time
    deleted_at: Time | None = Field(description="When retention removed the files.")


class CheckpointPage(ListPage):
    """Checkpoints."""

    checkpoints: list[CheckpointRead]


class UploadedCheckpointRead(Read):
    """A checkpoint that another program wrote, for behaviors to begin with (`initialize_from`)."""

    id: str
    name: str = Field(description="For people; not unique.")
    behavior: str | None = Field(description="The behavior that it was trained for, if that was said.")
    format: str = Field(
        description="`mlagents`: a `checkpoint.pt`; `ludus`: that of `ludus learn`, a whole checkpoint of a run."
    )
    modules: list[str] = Field(description="What the file says is in it, as in `Policy`, `Optimizer:critic`.")
    file: str = Field(description="Name of the file in the artifact store.")
    size: int = Field(description="Bytes of the file.")
    sha256: str = Field(description="Of the file, lower-case hexadecimal.")
    project: str
    created_at: Time


class UploadedCheckpointPage(ListPage):
    """Uploaded checkpoints."""

    checkpoints: list[UploadedCheckpointRead]
