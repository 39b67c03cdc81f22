"""Tokens, who makes a request, and who changed what."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Token:
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    project: str
    """`*`: all projects."""
    created_by: str
    created_at: datetime
    run_id: str | None = None
    """The only run in which it may play."""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    revoked_at: datetime | None = None
    token: str | None = field(default=None, repr=False)
    """What to send; only in the answer to its making."""


@dataclass(frozen=True)
class Identity:
    """Who makes a request; `scopes` with those that are included in others."""

    name: str
    scopes: tuple[str, ...]
    project: str
    """What it is bound to; `*`: nothing."""
    acts_in: str
    """The project of the request."""
    token_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class AuditEntry:
    """A request that changed something, or tried to."""

    id: str
    at: datetime
    actor: str
    """Name of the token, or what else somebody was let in for."""
    project: str
    method: str
    route: str
    target: str
    request_id: str
    status: int
    client: str
    token_id: str | None = None
