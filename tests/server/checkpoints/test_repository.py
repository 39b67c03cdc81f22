"""Checkpoints: which one is newest, which are gone."""

import pytest

from server.checkpoints.repository import CheckpointRepository
from server.kit.db.database import Database
from server.kit.errors import CheckpointDeleted, CheckpointNotFound
from server.lifecycle.attempts.repository import AttemptLedger
from tests.factories import give_up, make_checkpoint, make_claim, make_ledger, make_run, read_run


def test_the_newest_attempts_checkpoint_is_newest_even_at_a_lower_step(database: Database) -> None:
    first = make_ledger(database, name="run")
    first.checkpoints.add(make_checkpoint(100))
    bad = first.checkpoints.add(make_checkpoint(300))
    first.release("trainer_lost", "It crashed.")
    second = AttemptLedger(database, make_claim(database))
    second.checkpoints.resume_instead({bad: "its digest differs"})
    newest = second.checkpoints.add(make_checkpoint(200, path="runs/x/2/checkpoints/200"))

    with database.read() as session:
        found = CheckpointRepository(session).newest(read_run(database, "run").id)

    assert found is not None
    assert found.id == newest


def test_deleted_checkpoints_are_listed_on_request_and_not_served(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    gone = ledger.checkpoints.add(make_checkpoint(100))
    kept = ledger.checkpoints.add(make_checkpoint(200))
    give_up(database, gone)
    run_id = read_run(database, "run").id

    with database.read() as session:
        checkpoints = CheckpointRepository(session)
        assert [row.id for row in checkpoints.list(run_id).items] == [kept]
        assert {row.id for row in checkpoints.list(run_id, deleted=True).items} == {gone, kept}
        assert checkpoints.get(run_id, gone).deleted_at is not None
        with pytest.raises(CheckpointDeleted, match="keep_checkpoints"):
            checkpoints.get_stored(run_id, gone)


def test_a_checkpoint_belongs_to_its_run(database: Database) -> None:
    checkpoint = make_ledger(database, name="run").checkpoints.add(make_checkpoint())
    other = make_run(database)

    with database.read() as session, pytest.raises(CheckpointNotFound):
        CheckpointRepository(session).get(other.id, checkpoint)
