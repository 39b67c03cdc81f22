"""Checks the `Authorization` of requests to the HTTP API and the gateway."""

import math
import time
from collections.abc import Callable, Collection, Mapping

import structlog

from ludus.schemas.tokens import Scope
from server.access.tokens.memory import PrincipalMemory, fingerprint_of
from server.access.tokens.models import Token
from server.access.tokens.repository import USE_SECONDS, Known, TokenRepository
from server.access.tokens.secrets import parse, same
from server.kit.db.database import Database
from server.kit.errors import TokenRefused, Unavailable
from server.kit.principal import CONFIGURED, Principal, everything, including
from server.kit.token_watcher import TokenWatcher

_log = structlog.get_logger(__name__)


class TokenChecker:
    """Finds the principal of a token. Safe to share between threads.

    `configured` is the token of the settings, which may do everything.
    """

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database.within(None)
        self._configured = None if configured is None else fingerprint_of(configured)
        self._memory = PrincipalMemory(monotonic)

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a token if that is known without a query. Takes microseconds."""
        if self._configured is not None and same(fingerprint_of(text).hex(), self._configured.hex()):
            return everything(CONFIGURED)
        return self._memory.recall(text)

    def check(self, text: str) -> Principal:
        """Return the principal of a token. Raises TokenRefused, DatabaseUnavailable."""
        known = self.recall(text)
        if known is not None:
            return known
        parsed = parse(text)
        if parsed is None:
            raise TokenRefused("unknown")
        token_id, digest = parsed
        with self._database.read() as session:
            found = TokenRepository(session).find(token_id)
        if found is None or not same(found.token.digest, digest):
            raise TokenRefused("unknown")
        seconds = seconds_left(found)
        principal = principal_of(found.token)
        self._memory.remember(text, principal, seconds)
        if found.token.last_used_at is None or found.now - found.token.last_used_at >= USE_SECONDS:
            self._note_use(token_id)
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token."""
        self._memory.forget()

    def _note_use(self, token_id: str) -> None:
        try:
            with self._database.write() as session:
                TokenRepository(session).note_use(token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("token_use_not_noted", token_id=token_id, error=str(error))


def watch_tokens(database: Database, seconds: float | None = None) -> TokenWatcher:
    """Return a watcher of the tokens in the database; see `TokenWatcher` for `seconds`."""
    return TokenWatcher(lambda token_ids: refused_tokens(database, token_ids), seconds)


def refused_tokens(database: Database, token_ids: Collection[str]) -> Mapping[str, TokenRefused]:
    """Return those of some tokens that are not valid any more, by id."""
    with database.within(None).read() as session:
        found = TokenRepository(session).find_all(token_ids)
    refusals = {}
    for token_id in token_ids:
        try:
            seconds_left(found.get(token_id))
        except TokenRefused as refusal:
            refusals[token_id] = refusal
    return refusals


def seconds_left(found: Known | None) -> float:
    """Return the seconds for which a token is valid, maybe infinite. Raises TokenRefused if it is not."""
    if found is None:
        raise TokenRefused("unknown")
    token = found.token
    if token.revoked_at is not None:
        raise TokenRefused("revoked")
    if token.expires_at is None:
        return math.inf
    if token.expires_at <= found.now:
        raise TokenRefused("expired")
    return token.expires_at - found.now


def principal_of(token: Token) -> Principal:
    """Return the principal that a token stands for."""
    scopes = including(Scope(each) for each in token.scopes)
    return Principal(
        token.name, scopes, token.project, token_id=token.id, run_id=token.run_id, ladder_id=token.ladder_id
    )
