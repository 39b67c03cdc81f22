"""The flight recorder: which sessions of simulators are recorded, and how much of them is kept."""

from typing import Any

from pydantic import Field, model_validator

from ludus.config.values import Flag, Own, PositiveReal, Real, Section, Whole


class RecordConfig(Section):
    """The flight recorder: messages of sessions, kept as files that `ludus replay` plays again. `true` stands for a
    `share` of 1, `false` for 0, a number for itself.
    """

    share: Own[Real] = Field(default=0.0, ge=0, le=1)
    """Share of the sessions that is recorded, drawn by their ids; 0 = none."""
    errors: Own[Flag] = True
    """Whether the last 30 seconds of a session are kept when it ends in an error, without being asked for."""
    sessions: Own[Whole] = Field(default=8, ge=1, le=1000)
    """Sessions that each collector records at the same time; others follow when a recording is complete."""
    max_seconds: Own[PositiveReal] = 600.0
    """Longest recording of one session, in seconds."""
    max_bytes: Own[Whole] = Field(default=256 << 20, ge=1 << 16, le=1 << 40)
    """Largest recording of one session: bytes of its messages, before compression."""
    total_bytes: Own[Whole] = Field(default=1 << 30, ge=1 << 16, le=1 << 50)
    """Bytes that all recordings of the run have together, compressed; the oldest are deleted for a new one."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"share": float(value)} if isinstance(value, bool | int | float) else value
