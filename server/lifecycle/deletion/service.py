"""Deletes runs that have ended.

In one transaction: the users of the run are looked for, webhooks get its last event, and a row of `deleted_runs` takes
the run's place: from the commit on it is not found any more. So a process that is killed anywhere leaves the whole run,
or none of it. The same transaction deletes up to `ROWS` rows of the run, which are all of a small one. The controller
deletes the rest, as many at a time (`server.lifecycle.retention.job`), the run's own row last, and then the files
(`server.checkpoints.retention.job`).
"""

from server.kit.db.database import Session
from server.kit.errors import RunNotFound
from server.kit.states import TERMINAL
from server.lifecycle.deletion.repository import DeletionRepository
from server.lifecycle.errors import RunInUse, RunNotEnded
from server.runs.events.repository import Note, lock_run, record
from server.runs.models import Run
from server.runs.repository import RunRepository
from server.webhooks.repository import Outbox, WebhookRepository

ROWS = 1000
"""Rows that one transaction deletes at most."""


class DeletionService:
    """Deletes runs. The session's owner commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._deletions = DeletionRepository(session)

    def delete(self, run_id: str, why: str = "A user deleted the run.") -> None:
        """Delete a run; one that was deleted before stays so. Its last event says why.

        Raises RunNotFound, RunNotEnded, RunInUse.
        """
        try:
            run = lock_run(self._session, run_id)
        except RunNotFound:
            # Asked after the lock: of two who delete it at once, the second has waited for the first one's commit.
            if self._deletions.is_deleted(run_id):
                return
            raise RunNotFound(run_id, named=RunRepository(self._session).newest_named(run_id)) from None
        if self._deletions.is_being_deleted(run_id):
            return
        if run.state not in TERMINAL:
            raise RunNotEnded(run.id, run.state)
        users = list(self._deletions.users(run))
        if users:
            raise RunInUse(run.id, users)
        self._announce(run, why)
        self._deletions.mark(run)
        self._deletions.delete_rows(run_id, ROWS)

    def _announce(self, run: Run, why: str) -> None:
        """Record the run's last event, and make messages of all its events that have none yet.

        The events go with the run: what the sender has not come to would be lost.
        """
        data = {"name": run.name, "state": run.state}
        head = record(self._session, run.id, Note("run_deleted", why, data=data), attempt=run.attempt)
        webhooks, outbox = WebhookRepository(self._session).enabled(lock=True), Outbox(self._session)
        while webhooks and (through := outbox.positions([run.id]).get(run.id, 0)) < head:
            outbox.create_deliveries(run.id, through, head, webhooks)
