"""Why a request was refused."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProblemDetail:
    """One mistake of a refused request: where, which (stable code), and what to do, for people."""

    path: str
    code: str
    message: str
    location: str = "body"
    """`config`, `body`, `query`, `path` or `header`: what `path` is a path in."""
