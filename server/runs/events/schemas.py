"""What the API says of events."""

from typing import Any

from pydantic import Field

from server.kit.http.fields import Read, Time


class EventRead(Read):
    """Something that happened to a run."""

    seq: int = Field(description="Counts 1, 2, 3, ... per run, without gaps.")
    at: Time
    epoch: int | None = Field(description="Attempt that it concerns; null where none does.")
    type: str = Field(description="Past tense: `run_created`, `simulator_left`, `checkpoint_saved`.")
    level: str = Field(description="`debug`, `info`, `warning` or `error`.")
    message: str = Field(description="A sentence for people.")
    data: dict[str, Any]


class EventPage(Read):
    """Events in order."""

    events: list[EventRead]
    next_after_seq: int | None = Field(
        description="Ask with this as `after_seq` for more; null when there is no more now."
    )
