"""The problems of a refused request."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProblemDetail:
    """One mistake of a refused request."""

    path: str
    code: str
    """Stable name of the mistake."""
    message: str
    """The mistake and its correction, for people."""
    location: str = "body"
    """`config`, `body`, `query`, `path` or `header`: what `path` is a path in."""
    line: int | None = None
    """Line of the key in a configuration that was sent as text, from 1; of a missing key, that of the next parent."""
    column: int | None = None
    """Column of the key in this line, from 1."""
