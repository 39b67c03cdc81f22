"""Idempotency keys of mutating requests in the database (IETF draft-ietf-httpapi-idempotency-key-header)."""

from collections.abc import Mapping

from sqlalchemy import Integer, String, update
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.repository import Repository, delete_some, upsert
from server.kit.db.texts import JsonObject


class IdempotencyKey(Base):
    """The first answer to a request with this key; a repetition gets it again."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Method and path."""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the request's content."""
    status: Mapped[int | None] = mapped_column(Integer)
    """HTTP status of the answer. None while the first request is still in flight."""
    response: Mapped[JsonObject | None] = mapped_column(Json)
    created_at: Mapped[float] = mapped_column(Timestamp, index=True)


class IdempotencyRepository(Repository):
    """First answers by (scope, key). The controller removes them after `controller.idempotency_seconds`."""

    def claim(self, scope: str, key: str, fingerprint: str) -> IdempotencyKey | None:
        """Reserve a key in this transaction; return None, or the first answer if the key was used before.

        Two transactions can't both reserve it: the second waits for the end of the first.
        """
        values = {"scope": scope, "key": key, "fingerprint": fingerprint, "created_at": now()}
        reserve = upsert(self._session, IdempotencyKey).values(values).on_conflict_do_nothing()
        if self._session.scalar(reserve.returning(IdempotencyKey.key)) is not None:
            return None
        return self._session.get_one(IdempotencyKey, (scope, key))

    def answer(self, scope: str, key: str, status: int, response: Mapping[str, object]) -> None:
        """Store the first answer."""
        condition = (IdempotencyKey.scope == scope, IdempotencyKey.key == key)
        self._session.execute(update(IdempotencyKey).where(*condition).values(status=status, response=dict(response)))

    def forget(self, older_seconds: float, limit: int) -> int:
        """Delete at most `limit` keys that were used so long ago; return how many."""
        return delete_some(self._session, IdempotencyKey, limit, IdempotencyKey.created_at < now() - older_seconds)
