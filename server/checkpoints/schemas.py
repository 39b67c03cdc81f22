"""What the API says of checkpoints."""

from pydantic import Field, field_validator

from server.kit.http.fields import Read, Text, Time, Write
from server.kit.http.listing import ListPage


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
    scores: dict[str, dict[str, float]] = Field(
        description="Per behavior (empty for the run as a whole): metrics when this was saved, and what evaluations "
        "handed in."
    )
    merit: float | None = Field(
        description="What `best` goes by, higher is better: the score that `keep_best` names (negated if less is "
        "better), else the mean episode return."
    )
    created_at: Time
    pinned_at: Time | None = Field(description="Since when it is kept whatever the rules say.")
    damaged_at: Time | None = Field(description="When a file was found to be missing or altered.")
    damage: str | None = Field(description="Which file, and what is wrong with it.")
    deleted_at: Time | None = Field(description="When retention gave it up.")

    @field_validator("scores", mode="before")
    @classmethod
    def _of_earlier_releases(cls, scores: object) -> object:
        return {} if scores is None else scores


class ScoreWrite(Write):
    """What an evaluation says of a checkpoint."""

    metric: Text = Field(min_length=1, max_length=200, description="A name for it, as `keep_best.metric` may name it.")
    value: float
    behavior: Text = Field(default="", max_length=200, description="The behavior; empty for the run as a whole.")


class CheckpointVerified(Read):
    """What became of a look into all files of a checkpoint."""

    checkpoint: CheckpointRead
    sound: bool = Field(description="Whether every file is as it was stored.")
    problems: list[str] = Field(description="Of each file that is not: what is wrong with it.")
    bytes: int = Field(description="Bytes that were read.")


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
