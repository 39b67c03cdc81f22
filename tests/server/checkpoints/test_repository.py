"""Checkpoints: which one is newest, which are gone."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import insert

from server.checkpoints.models import RunInitialCheckpoint
from server.checkpoints.repository import MAX_SUCCESSORS, CheckpointRepository
from server.kit.db.database import Database
from server.kit.errors import CheckpointDeleted, CheckpointNotFound
from server.lifecycle.attempts import AttemptLedger
from server.runs.models import Run
from tests.factories import give_up, make_checkpoint, make_claim, make_ledger, make_run, read_run
from tests.plans import plans_of
from tests.statements import selected


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


def begin(database: Database, names: str, count: int, checkpoint: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Insert runs that begin with a checkpoint, as `NAMES_00`, `NAMES_01`, ...."""
    ids = [f"{names}_{number:04d}" for number in range(count)]
    common = {"kind": kind, "state": "SUCCEEDED", "seed": 0, "tags": [], "created_at": time.time()}
    common |= {"stored_updated_at": time.time(), "config": {"checkpoint_settings": settings}}
    with database.write() as session:
        session.execute(insert(Run), [{**common, "id": run_id, "name": run_id} for run_id in ids])
        uses = [{"run_id": run_id, "checkpoint_id": checkpoint} for run_id in ids]
        session.execute(insert(RunInitialCheckpoint), uses)


def test_the_newest_20_runs_that_continue_one_are_named_and_of_all_others_nothing_is_read(database: Database) -> None:
    checkpoint = make_ledger(database, name="run").checkpoints.add(make_checkpoint())
    resumed = {"resume_from": checkpoint, "inference": False}
    begin(database, "evaluated", 50, checkpoint, "evaluate", {})
    begin(database, "initialized", 50, checkpoint, "train", {"resume_from": None, "inference": False})
    begin(database, "played", 5, checkpoint, "train", {**resumed, "inference": True})
    begin(database, "cloned", 1, checkpoint, "clone", resumed)
    begin(database, "resumed", MAX_SUCCESSORS + 3, checkpoint, "train", resumed)
    run_id = read_run(database, "run").id

    with selected(database) as statements, database.read() as session:
        successors = CheckpointRepository(session).successors(run_id)
        loaded = list(session.identity_map)

    assert successors == [f"resumed_{number:04d}" for number in range(3, MAX_SUCCESSORS + 3)]
    (statement,) = statements
    assert loaded == []
    assert " SELECT successors.id FROM successors ORDER BY " in " ".join(statement.split())
    with database.read() as session:
        takeovers = CheckpointRepository(session).takeovers(["evaluated_0000", "played_0000", "cloned_0000"])
    assert {name: takeover.step for name, takeover in takeovers.items()} == {"cloned_0000": 1000}
    plans = plans_of(database, lambda session: CheckpointRepository(session).successors(run_id))
    assert not any("ix_runs_kind" in step for step in plans), "all runs of the kind are read"
