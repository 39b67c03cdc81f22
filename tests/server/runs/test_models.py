from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from server.kit.db.database import Database
from server.runs.models import Run
from server.workers.models import Worker
from tests.factories import make_run


@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.execute(update(Run).values(step=5)),
        lambda session: session.execute(update(Run).values({Run.updated_at: 5.0})),
        lambda session: session.execute(update(Run), [{"id": "run", "step": 5}]),
        lambda session: session.execute(insert(Run), [{"id": "one"}, {"id": "other", "updated_at": 5.0}]),
        lambda session: session.execute(insert(Worker).values(id="worker", heartbeat_at=5.0)),
        lambda _session: Worker(id="worker", heartbeat_at=5.0),
        lambda session: setattr(session.query(Run).one(), "step", 5),
    ],
)
def test_what_is_computed_from_the_lease_cannot_be_written(database: Database, write: Callable[[Session], Any]) -> None:
    make_run(database)

    with (
        pytest.raises(TypeError, match=r"Nothing can be written to (Run|Worker)\..*computed"),
        database.write() as session,
    ):
        write(session)
