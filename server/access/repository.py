"""Tokens, sessions of browsers and the audit log in the database."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from server.access.models import AuditEntry, BrowserSession, Token
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.keyset import by_name, select_page
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository, delete_some
from server.kit.errors import Invalid, NotFound
from server.kit.listing import ListQuery, Page


class TokenNotFound(NotFound, code="token_not_found"):
    """No token of the project has this id."""

    token_id: str
    sentence = "There is no token {token_id!r}. List the tokens to see what there is."


class TokenForRun(Invalid, code="invalid_run_token"):
    """A token that is bound to a run is for playing in it or reading it."""

    sentence = (
        "A token that is bound to a run has the scopes `simulate` or `read` alone, and belongs to the run's project. "
        "Leave out the run, or the other scopes."
    )


class TokenForLadder(Invalid, code="invalid_ladder_token"):
    """A token that is bound to a ladder is for reading it."""

    sentence = (
        "A token that is bound to a ladder has the scope `read` alone, belongs to the ladder's project, and to no run. "
        "Leave out the ladder, or the rest."
    )


USE_SECONDS = 60.0
"""The last use of a token is written at most so often."""


@dataclass(frozen=True, slots=True)
class Known:
    """A token, and the time at which it was read."""

    token: Token
    now: float
    """The database's clock."""


class TokenRepository(Repository):
    """Tokens, seen through one session: those of its project, if it has one."""

    COLUMNS = by_name(
        Token.name,
        Token.project,
        Token.run_id,
        Token.ladder_id,
        Token.created_at,
        Token.expires_at,
        Token.last_used_at,
        Token.revoked_at,
    )

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        project = project_of(session)
        self._in_project = [] if project is None else [Token.project == project]

    def list(self, query: ListQuery) -> Page[Token]:
        """Return a page of tokens, also of those that don't hold any more."""
        return select_page(self._session, select(Token).where(*self._in_project), query, self.COLUMNS, Token.id)

    def get(self, token_id: str) -> Token:
        """Return one token. Raises TokenNotFound."""
        token = self._session.scalars(select(Token).where(Token.id == token_id, *self._in_project)).one_or_none()
        if token is None:
            raise TokenNotFound(token_id)
        return token

    def find(self, token_id: str) -> Known | None:
        """Return a token of any project, with the present time."""
        row = self._session.execute(select(Token, now()).where(Token.id == token_id)).one_or_none()
        return None if row is None else Known(row[0], row[1])

    def find_all(self, token_ids: Collection[str]) -> dict[str, Known]:
        """Return the existing ones of these tokens, by id, of any project."""
        rows = self._session.execute(select(Token, now()).where(Token.id.in_(token_ids)))
        return {token.id: Known(token, read_at) for token, read_at in rows}

    def revoke(self, token_id: str) -> Token:
        """Revoke a token; one that was revoked before stays as it is. Raises TokenNotFound."""
        token = self.get(token_id)
        if token.revoked_at is None:
            token.revoked_at = now()
            self.save(token)
        return token

    def note_use(self, token_id: str) -> None:
        """Write down that a token was used just now, unless that was done less than a minute ago."""
        stale = or_(Token.last_used_at.is_(None), Token.last_used_at < now() - USE_SECONDS)
        self._session.execute(update(Token).where(Token.id == token_id, stale).values(last_used_at=now()))


LIFETIME_SECONDS: Final = 30 * 86400.0
"""Longest time from signing in to signing in again."""
KEPT_SECONDS: Final = 86400.0
"""Time for which a session is kept after its end, so that an open page is told that it has ended."""


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session and its token, and the time at which they were read."""

    session: BrowserSession
    token: Token | None
    """None: it is the token of the server's settings."""
    now: float
    """The database's clock."""


class SessionRepository(Repository):
    """Sessions of all projects."""

    def add(self, session: BrowserSession, seconds: float) -> None:
        """Add a session for so many seconds, at most `LIFETIME_SECONDS`."""
        session.created_at = self.clock()
        session.expires_at = session.created_at + min(seconds, LIFETIME_SECONDS)
        self.save(session)

    def find(self, session_id: str) -> KnownSession | None:
        """Return a session, with the present time."""
        return self.find_all([session_id]).get(session_id)

    def find_all(self, session_ids: Collection[str]) -> dict[str, KnownSession]:
        """Return the existing ones of these sessions, by id."""
        rows = self._session.execute(
            select(BrowserSession, Token, now())
            .outerjoin(Token, Token.id == BrowserSession.token_id)
            .where(BrowserSession.id.in_(session_ids))
        )
        return {session.id: KnownSession(session, token, read_at) for session, token, read_at in rows}

    def end(self, session_id: str, digest: str | None = None) -> None:
        """End a session, if it has this digest (None: in any case). It stays as it is if it has ended before."""
        lasting = update(BrowserSession).where(BrowserSession.id == session_id, BrowserSession.ended_at.is_(None))
        if digest is not None:
            lasting = lasting.where(BrowserSession.digest == digest)
        self._session.execute(lasting.values(ended_at=now()))

    def note_use(self, session_id: str) -> None:
        """Write down that a session was used just now, unless that was done less than a minute ago."""
        used = BrowserSession.last_used_at
        stale = or_(used.is_(None), used < now() - USE_SECONDS)
        self._session.execute(
            update(BrowserSession).where(BrowserSession.id == session_id, stale).values(last_used_at=now())
        )

    def forget(self, limit: int) -> int:
        """Delete at most `limit` sessions that ended or expired `KEPT_SECONDS` ago; return how many."""
        since = now() - KEPT_SECONDS
        old = or_(BrowserSession.ended_at < since, BrowserSession.expires_at < since)
        return delete_some(self._session, BrowserSession, limit, old)


class AuditRepository(Repository):
    """Entries of the audit log, seen through one session: those of its project, if it has one."""

    def forget(self, days: float, limit: int) -> int:
        """Delete at most `limit` entries that are so old; return how many."""
        return delete_some(self._session, AuditEntry, limit, AuditEntry.at < now() - days * DAY_SECONDS)
