"""Log files of attempts."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log file of an attempt."""

    attempt: int
    name: str
    size: int
    """Bytes."""
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class LogText:
    """A part of a log. Bytes that are no UTF-8 are replaced; a character is never cut in two."""

    text: str
    offset: int
    """Byte in the file at which the text begins."""
    next_offset: int
    """Byte at which the next part begins."""
    size: int
    """Bytes of the whole file at this time."""
