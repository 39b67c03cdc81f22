"""What the API says of attempts and their logs."""

from typing import Any

from pydantic import Field

from server.kit.http.fields import Read, Time


class AttemptRead(Read):
    """One execution of a run by one worker."""

    epoch: int = Field(description="Counts 1, 2, 3, ... per run.")
    worker_id: str
    step: int = Field(description="Agent steps as of the last heartbeat.")
    resumed_from: str | None = Field(description="Checkpoint that it began with.")
    resume_step: int
    endpoints: list[dict[str, Any]] = Field(description="Where its collectors listen.")
    fingerprint: dict[str, Any] | None = Field(
        description="What it ran on: release and commit of Ludus, versions of Python, torch, CUDA and the driver, "
        "processor, cores, memory and GPUs of the worker; null where the worker did not say."
    )
    started_at: Time
    heartbeat_at: Time
    ended_at: Time | None
    outcome: str | None = Field(description="How it ended: a stop reason, `lease_expired`, `released`, `paused`.")
    detail: str | None


class AttemptList(Read):
    """All attempts of a run, oldest first."""

    attempts: list[AttemptRead]


class LogRead(Read):
    """A log file of an attempt."""

    epoch: int
    name: str
    size: int = Field(description="Bytes.")
    updated_at: Time


class LogList(Read):
    """Log files by attempt and name."""

    logs: list[LogRead]


class LogText(Read):
    """A part of a log. Bytes that are no UTF-8 are replaced; a character is never cut in two."""

    text: str
    offset: int = Field(description="Byte in the file at which the text begins.")
    next_offset: int = Field(description="Byte at which to go on.")
    size: int = Field(description="Bytes of the whole file at this time.")
