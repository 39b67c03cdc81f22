"""Tokens, the identity of a request, and the audit log."""

from dataclasses import field
from datetime import datetime
from enum import StrEnum

from ludus.schemas.record import FrozenRecord


class Scope(StrEnum):
    """A permission of a token. `run` includes `read` and `simulate`; `admin` includes all."""

    SIMULATE = "simulate"
    """Join runs as a simulator, at the gateway. Nothing over HTTP."""
    READ = "read"
    """Read everything of the project."""
    RUN = "run"
    """Create, change and end the project's resources, and play in its runs."""
    ADMIN = "admin"
    """Create and revoke the project's tokens, and read its audit log."""


class Token(FrozenRecord):
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    project: str
    """`*`: all projects."""
    run_id: str | None = None
    """The only run that it is for: to play in, or to read."""
    ladder_id: str | None = None
    """The only ladder that it is for: to read."""
    created_by: str
    """Name of the token that created it."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    revoked_at: datetime | None = None


class NewToken(Token):
    """A token that was just created."""

    token: str | None = field(default=None, repr=False)
    """The text to send as `Authorization: Bearer TOKEN`. It is shown only once: null in the answer to a repeated
    request."""


class Identity(FrozenRecord):
    """The sender of this request."""

    name: str
    token_id: str | None = None
    """Null: the token of the server's settings, or none."""
    scopes: tuple[Scope, ...]
    """With the included ones."""
    project: str
    """The project that it is bound to; `*`: none."""
    acts_in: str
    """The project of this request."""
    run_id: str | None = None
    """The only run that it is for."""
    ladder_id: str | None = None
    """The only ladder that it is for."""


class AuditEntry(FrozenRecord):
    """A request that changed something, or tried to."""

    id: str
    at: datetime
    actor: str
    """Name of the token; `configured token` (LUDUS_API__TOKEN), or `anonymous loopback`."""
    token_id: str | None = None
    """Null where the token is not one of `/v1/tokens`."""
    project: str
    method: str
    route: str
    """The path as this description has it."""
    target: str
    """The requested path."""
    request_id: str
    """The id in the server's log and in the answer's `X-Request-Id`."""
    status: int
    """HTTP status of the answer."""
    client: str
    """Address of the client."""
