"""Commands on sessions: sign in, sign out."""

from server.access.sessions.models import BrowserSession
from server.access.sessions.repository import LIFETIME_SECONDS, SessionRepository
from server.access.sessions.secrets import SessionCookie
from server.access.tokens.checker import seconds_left
from server.access.tokens.repository import TokenRepository
from server.kit.db.database import Session
from server.kit.principal import Principal


class SessionService:
    """Commands on sessions within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sessions = SessionRepository(session)

    def create(self, principal: Principal, project: str, configured: str | None) -> tuple[SessionCookie, float]:
        """Make a session of a principal that acts in a project; return its cookie, and the seconds for which it holds.

        `configured` is the token of the server's settings. Raises TokenRefused: the token was revoked just now.
        """
        cookie = SessionCookie.draw()
        seconds = LIFETIME_SECONDS
        configured_digest = None
        if principal.token_id is not None:
            seconds = min(seconds, seconds_left(TokenRepository(self._session).find(principal.token_id)))
        else:
            assert configured is not None, "only the token of the settings is not in the database"
            configured_digest = cookie.digest_of_configured(configured)
        row = BrowserSession(
            id=cookie.session_id,
            digest=cookie.digest,
            token_id=principal.token_id,
            configured_digest=configured_digest,
            project=project,
        )
        self._sessions.add(row, seconds)
        return cookie, seconds
