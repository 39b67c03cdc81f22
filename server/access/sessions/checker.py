"""Checks the cookies of browsers' requests to the HTTP API, and watches open requests that were made with one."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from server.access.sessions.repository import KnownSession, SessionRepository
from server.access.sessions.secrets import SessionCookie, is_session
from server.access.tokens.checker import principal_of, refused_tokens, seconds_left
from server.access.tokens.memory import PrincipalMemory
from server.access.tokens.repository import USE_SECONDS, Known, TokenRepository
from server.access.tokens.secrets import same
from server.kit.db.database import Database
from server.kit.errors import TokenRefused, Unauthenticated, Unavailable
from server.kit.http.errors import SessionEnded
from server.kit.principal import CONFIGURED, Principal, everything
from server.kit.token_watcher import TokenWatcher

_log = structlog.get_logger(__name__)


class SessionChecker:
    """Finds the principal of a session. Safe to share between threads.

    `configured` is the token of the settings: sessions that were made with another one have ended.
    """

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database.within(None)
        self._configured = configured
        self._memory = PrincipalMemory(monotonic)

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a cookie's value if that is known without a query. Takes microseconds."""
        return self._memory.recall(text)

    def check(self, text: str) -> Principal:
        """Return the principal of a cookie's value.

        Raises TokenRefused (an unknown cookie, or a token that is not valid any more), SessionEnded,
        DatabaseUnavailable.
        """
        known = self.recall(text)
        if known is not None:
            return known
        cookie = SessionCookie.parse(text)
        if cookie is None:
            raise TokenRefused("unknown")
        with self._database.read() as session:
            found = SessionRepository(session).find(cookie.session_id)
        if found is None or not same(found.session.digest, cookie.digest):
            raise TokenRefused("unknown")
        seconds = session_seconds_left(found)
        principal = self._principal(found, cookie)
        self._memory.remember(text, principal, seconds)
        if found.session.last_used_at is None or found.now - found.session.last_used_at >= USE_SECONDS:
            self._note_use(found)
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has ended a session, or revoked a token."""
        self._memory.forget()

    def _principal(self, found: KnownSession, cookie: SessionCookie) -> Principal:
        if found.token is not None:
            principal = principal_of(found.token)
        else:
            present = "" if self._configured is None else cookie.digest_of_configured(self._configured)
            if not same(found.session.configured_digest or "", present) or not present:
                raise SessionEnded
            principal = everything(CONFIGURED)
        return replace(principal, session_id=found.session.id, chosen_project=found.session.project)

    def _note_use(self, found: KnownSession) -> None:
        try:
            with self._database.write() as session:
                SessionRepository(session).note_use(found.session.id)
                if found.session.token_id is not None:
                    TokenRepository(session).note_use(found.session.token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("session_use_not_noted", session_id=found.session.id, error=str(error))


def session_seconds_left(found: KnownSession) -> float:
    """Return the seconds for which a session is valid. Raises SessionEnded, or TokenRefused for its token."""
    if found.session.ended_at is not None or found.session.expires_at <= found.now:
        raise SessionEnded
    of_token = math.inf if found.token is None else seconds_left(Known(found.token, found.now))
    return min(found.session.expires_at - found.now, of_token)


def watch_credentials(database: Database, seconds: float | None = None) -> TokenWatcher:
    """Return a watcher of tokens and sessions in the database; see `TokenWatcher` for `seconds`."""

    def refused(ids: Collection[str]) -> Mapping[str, Unauthenticated]:
        sessions = [each for each in ids if is_session(each)]
        tokens = [each for each in ids if not is_session(each)]
        refusals: dict[str, Unauthenticated] = {}
        if tokens:
            refusals.update(refused_tokens(database, tokens))
        if sessions:
            refusals.update(_refused_sessions(database, sessions))
        return refusals

    return TokenWatcher(refused, seconds)


def _refused_sessions(database: Database, session_ids: Collection[str]) -> Mapping[str, Unauthenticated]:
    with database.within(None).read() as session:
        found = SessionRepository(session).find_all(session_ids)
    refusals: dict[str, Unauthenticated] = {}
    for session_id in session_ids:
        try:
            if session_id not in found:  # with its token, when the run or ladder was deleted that it was for
                raise SessionEnded
            session_seconds_left(found[session_id])
        except Unauthenticated as refusal:
            refusals[session_id] = refusal
    return refusals
