"""What the API says of requests for a checkpoint."""

from pydantic import Field

from server.kit.http.fields import Read, Time


class CheckpointRequestRead(Read):
    """A request for a checkpoint now."""

    run_id: str
    seq: int = Field(description="Counts 1, 2, 3, ... per run.")
    created_at: Time
    answered_at: Time | None = Field(description="null while the trainer has not written it.")
    checkpoint_id: str | None = Field(description="The checkpoint, once it is stored.")
    problem: str | None = Field(description="Why there is none, as a sentence.")
