"""Sessions of browsers in the database."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select, update

from server.access.sessions.models import BrowserSession
from server.access.tokens.models import Token
from server.access.tokens.repository import USE_SECONDS
from server.kit.db.clock import now
from server.kit.db.repository import Repository, delete_some

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
        return {session.id: KnownSession(session, token, at) for session, token, at in rows}

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
