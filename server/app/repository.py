"""What the HTTP layer itself keeps and asks: idempotency keys, and where event logs stand."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from server.app.tailer import Head
from server.kit.db.clock import now
from server.kit.http.models import IdempotencyKey
from server.runs.models import Run
from server.runs.states import RunState


class IdempotencyRepository:
    """First answers by (scope, key). The steward removes them after `steward.idempotency_seconds`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def claim(self, scope: str, key: str, fingerprint: str) -> IdempotencyKey | None:
        """Reserve a key in this transaction; return None, or the first answer if the key was used before.

        Two transactions can't both reserve it: the second waits for the end of the first.
        """
        dialect = postgresql if self._session.get_bind().dialect.name == "postgresql" else sqlite
        values = {"scope": scope, "key": key, "fingerprint": fingerprint, "created_at": now()}
        reserve = dialect.insert(IdempotencyKey).values(values).on_conflict_do_nothing().returning(IdempotencyKey.key)
        if self._session.scalar(reserve) is not None:
            return None
        return self._session.get_one(IdempotencyKey, (scope, key))

    def answer(self, scope: str, key: str, status: int, response: Mapping[str, Any]) -> None:
        """Store the first answer."""
        condition = (IdempotencyKey.scope == scope, IdempotencyKey.key == key)
        self._session.execute(update(IdempotencyKey).where(*condition).values(status=status, response=dict(response)))

    def forget(self, older_seconds: float) -> int:
        """Delete the keys that were used so long ago; return how many."""
        old = delete(IdempotencyKey).where(IdempotencyKey.created_at < now() - older_seconds)
        return len(self._session.scalars(old.returning(IdempotencyKey.key)).all())


class EventHeads:
    """Where the event logs of runs stand."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, run_ids: Collection[str]) -> dict[str, Head]:
        """Return sequence number and state of each run that exists, in one small query."""
        rows = self._session.execute(select(Run.id, Run.event_seq, Run.state).where(Run.id.in_(run_ids)))
        return {run_id: Head(seq, RunState(state)) for run_id, seq, state in rows}
