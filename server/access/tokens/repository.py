"""Tokens in the database."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from server.access.tokens.errors import TokenNotFound
from server.access.tokens.models import Token
from server.kit.db.clock import now
from server.kit.db.keyset import by_name, select_page
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.listing import ListQuery, Page

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
        self._mine = [] if project is None else [Token.project == project]

    def list(self, query: ListQuery) -> Page[Token]:
        """Return a page of tokens, also of those that don't hold any more."""
        return select_page(self._session, select(Token).where(*self._mine), query, self.COLUMNS, Token.id)

    def get(self, token_id: str) -> Token:
        """Return one token. Raises TokenNotFound."""
        found = self._session.scalars(select(Token).where(Token.id == token_id, *self._mine)).one_or_none()
        if found is None:
            raise TokenNotFound(token_id)
        return found

    def find(self, token_id: str) -> Known | None:
        """Return a token of any project, with the present time."""
        row = self._session.execute(select(Token, now()).where(Token.id == token_id)).one_or_none()
        return None if row is None else Known(row[0], row[1])

    def find_all(self, token_ids: Collection[str]) -> dict[str, Known]:
        """Return the existing ones of these tokens, by id, of any project."""
        rows = self._session.execute(select(Token, now()).where(Token.id.in_(token_ids)))
        return {token.id: Known(token, at) for token, at in rows}

    def revoke(self, token_id: str) -> Token:
        """Revoke a token; one that was revoked before stays as it is. Raises TokenNotFound."""
        found = self.get(token_id)
        if found.revoked_at is None:
            found.revoked_at = now()
            self.save(found)
        return found

    def note_use(self, token_id: str) -> None:
        """Write down that a token was used just now, unless that was done less than a minute ago."""
        stale = or_(Token.last_used_at.is_(None), Token.last_used_at < now() - USE_SECONDS)
        self._session.execute(update(Token).where(Token.id == token_id, stale).values(last_used_at=now()))
