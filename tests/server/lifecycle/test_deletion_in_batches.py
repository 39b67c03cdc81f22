"""A run of many rows is deleted a thousand at a time; from the first transaction on it is not found."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, update

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.app.models import Base
from server.checkpoints.retention import Retention
from server.checkpoints.service import CheckpointService
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig, RunNotFound
from server.kit.jobs import JobLoop
from server.kit.listing import ListQuery, Order
from server.kit.settings import ControllerSettings, MetricsSettings, StorageSettings
from server.ladders.models import Ladder, LadderMatch, LadderParticipant, RatingPoint
from server.ladders.ratings import RatingRepository
from server.ladders.refs import LadderNotFound
from server.ladders.repository import LadderRepository
from server.lifecycle import retention as job
from server.lifecycle.retention import RowRetention
from server.lifecycle.service import ROWS, DeletionService
from server.metrics.points import MetricPoint
from server.metrics.repository import MetricRetentionRepository
from server.runs.models import Attempt, DeletedAttempts, DeletedRun, Event, Run
from server.runs.repository import RunRepository
from server.simulators.models import Simulator
from server.simulators.repository import SimulatorRepository
from tests.factories import make_checkpoint, pack_metrics
from tests.server.app.world import World, open_world
from tests.server.deletions import counted
from tests.server.ladders.played import make_match, make_player, rate_all

OF_LADDERS = (Ladder, LadderMatch, RatingPoint)
NEVER = {"event_days": None, "simulator_days": None, "match_days": None, "recording_days": None}


def ended(database: Database, events: int = 1500) -> tuple[str, str]:
    """Make a run that has ended, with some thousand rows; return its id and that of its checkpoint."""
    ledger = make_player(database, name="large", tags=["ci"])
    run_id = ledger.run_id
    checkpoint = ledger.checkpoints.add(make_checkpoint(path=f"runs/{run_id}/1/checkpoints/1"))
    ledger.metrics.append([MetricPoint("Striker", f"metric {number}", 100, 1.0, 2.0) for number in range(40)])
    pack_metrics(database)
    ledger.matches.append([make_match(number) for number in range(1, 31)])
    rate_all(database)
    ledger.matches.append([make_match(number) for number in range(31, 41)])
    ledger.move(RunState.RUNNING)
    ledger.move(RunState.SUCCEEDED)
    with database.write() as session:
        seq = session.scalar(select(Run.event_seq).where(Run.id == run_id)) or 0
        ladder = session.scalars(select(Ladder.id).where(Ladder.run_id == run_id)).one()
        point = {"ladder_id": ladder, "player": 99, "seq": 1, "at": 0.0, "elo": 0.0, "mu": 0.0, "sigma": 1.0}
        many: dict[type[Base], list[dict[str, Any]]] = {
            Event: [{"seq": seq + n, "at": 1.0, "type": "told", "message": ""} for n in range(1, events + 1)],
            Simulator: [
                {"session_id": f"{n}", "number": n, "attempt": 1, "state": "left", "joined_at": 0.0} for n in range(300)
            ],
            Attempt: [{"number": n, "worker_id": "w", "heartbeat_at": 0.0, "started_at": 0.0} for n in range(2, 1100)],
        }
        for model, rows in many.items():
            session.connection().execute(insert(model), [{"run_id": run_id, **row} for row in rows])
        session.connection().execute(insert(RatingPoint), [{**point, "game": n} for n in range(700)])
        session.execute(update(Run).where(Run.id == run_id).values(event_seq=seq + events))
    return run_id, checkpoint


def rows(database: Database, run_id: str) -> int:
    """Count the rows that go with a run by themselves: its own, those that name it, and those of its ladder."""
    with database.read() as session:
        ladders = session.scalars(select(Ladder.id).where(Ladder.run_id == run_id)).all()
        found = session.scalar(select(func.count()).where(Run.id == run_id)) or 0
        for table in Base.metadata.sorted_tables:
            if table.name == "ladder_participants":
                continue
            if "ladder_id" in table.c:
                found += session.scalar(select(func.count()).where(table.c.ladder_id.in_(ladders))) or 0
            elif "run_id" in table.c:
                found += session.scalar(select(func.count()).where(table.c.run_id == run_id)) or 0
    return found


def total(database: Database, model: type[Base]) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def delete(database: Database, run_id: str) -> None:
    with database.write() as session:
        DeletionService(session).delete(run_id)


def retention(database: Database, run_days: float | None = None) -> JobLoop:
    return JobLoop(RowRetention(database, ControllerSettings(run_days=run_days, **NEVER)).jobs(), 0.0)  # type: ignore[arg-type]


def test_no_transaction_deletes_more_than_a_thousand_rows_and_no_cascade_deletes_any(database: Database) -> None:
    run_id, _ = ended(database)
    before = rows(database, run_id)
    assert before > 3 * ROWS

    with counted(database) as deleted:
        delete(database, run_id)
        gone = retention(database).tick()["old_rows_of_runs"]

    assert deleted[:-1] == [ROWS] * (len(deleted) - 1)
    assert 0 < deleted[-1] < ROWS
    assert sum(deleted) == before + 1, "with the event of the deletion"
    assert gone == sum(deleted) - ROWS - 1  # its own row
    assert rows(database, run_id) == 0
    assert [total(database, model) for model in (Run, LadderParticipant, *OF_LADDERS)] == [0] * 5
    with database.read() as session:
        assert session.scalar(select(func.sum(DeletedAttempts.attempts))) == 1099


def test_a_run_whose_rows_are_being_deleted_is_in_no_list_and_serves_no_other(database: Database) -> None:
    run_id, checkpoint = ended(database)
    delete(database, run_id)
    assert rows(database, run_id) > ROWS

    with database.read() as session:
        runs = RunRepository(session)
        for find in (runs.get, runs.id_of, runs.without_config, lambda name: runs.ids_of([name])):
            for name in (run_id, "large"):
                with pytest.raises(RunNotFound):
                    find(name)
        assert (runs.list().items, runs.list(ListQuery(Order("step"))).items, runs.count()) == ((), (), 0)
        assert (runs.named([run_id]), runs.configs([run_id]), runs.newest_named("large")) == ({}, {}, None)
        assert runs.ended_before(0, (0.0, ""), 10) == []
        assert SimulatorRepository(session).list_all(ListQuery(Order("joined_at"))).items == ()
        assert LadderRepository(session).list(ListQuery(Order("created_at"))).items == ()
        with pytest.raises(LadderNotFound):
            LadderRepository(session).get(run_id)
        assert RatingRepository(session).pending() == []
        assert MetricRetentionRepository(session).to_archive(MetricsSettings(archive_days=1e-12), 10) == []
        config = {"behaviors": {"Striker": {"trainer_type": "ppo", "initialize_from": checkpoint}}}
        with pytest.raises(InvalidConfig, match="removed"):
            CheckpointService(session).check(RunConfig.model_validate(config))


def test_a_deletion_that_dies_is_finished_by_the_next_controller(database: Database) -> None:
    run_id, _ = ended(database)
    delete(database, run_id)
    before, commits = rows(database, run_id), 0

    def die(_connection: object) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise InterruptedError("killed before its commit")

    event.listen(database.engine, "commit", die)
    with pytest.raises(InterruptedError):
        retention(database).tick()
    event.remove(database.engine, "commit", die)
    assert rows(database, run_id) == before - ROWS, "one transaction was committed"

    retention(database).tick()

    assert rows(database, run_id) == 0


def test_rounds_are_bounded_and_go_on_where_they_were(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "RUN_BATCHES", 2)
    run_id, _ = ended(database)
    delete(database, run_id)

    gone = [retention(database).tick()["old_rows_of_runs"] for _ in range(3)]

    assert (gone[0], gone[1] < 2 * ROWS, gone[2]) == (2 * ROWS, True, 0)
    assert rows(database, run_id) == 0


def test_a_run_that_is_old_goes_in_the_same_batches(database: Database) -> None:
    run_id, _ = ended(database)
    with database.write() as session:
        session.execute(update(Run).values(finished_at=Run.finished_at - 31 * 86400))

    with counted(database) as deleted:
        gone = retention(database, run_days=30).tick()

    assert (gone["old_runs"], max(deleted), rows(database, run_id)) == (1, ROWS, 0)


def test_its_files_and_its_note_stay_until_its_rows_are_gone(database: Database, tmp_path: Path) -> None:
    run_id, _ = ended(database)
    store = FolderStore(tmp_path / "artifacts")
    (tmp_path / "log").write_text("log")
    store.publish(tmp_path / "log", f"runs/{run_id}/1/logs/trainer.log")
    janitor = Retention(database, store, StorageSettings())
    delete(database, run_id)
    delete(database, run_id)  # a second one changes nothing

    janitor.purge()
    with database.read() as session:
        assert session.get_one(DeletedRun, run_id).purge_at is not None
    assert len([*store.files(f"runs/{run_id}")]) == 1
    retention(database).tick()
    janitor.purge()

    assert [*store.files(f"runs/{run_id}")] == []


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with open_world(tmp_path / "server") as world:
        yield world


def test_over_http_it_is_gone_at_once(world: World) -> None:
    run_id, _ = ended(world.services.database)

    with counted(world.services.database) as deleted:
        answer = world.http.delete(f"/v1/runs/{run_id}")

    assert (answer.status_code, deleted) == (204, [ROWS])
    for path in ("", "/events", "/metrics", "/checkpoints", "/attempts", "/simulators"):
        assert world.http.get(f"/v1/runs/{run_id}{path}").status_code == 404
    assert world.http.get("/v1/simulators").json()["simulators"] == []
    assert world.http.delete(f"/v1/runs/{run_id}").status_code == 204
    assert rows(world.services.database, run_id) > ROWS
