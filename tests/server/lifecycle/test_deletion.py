"""Runs are deleted whole, once, and never while something outside them needs them."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from ludus.schemas.states import RunState
from server.app.models import Base
from server.checkpoints.models import Checkpoint
from server.checkpoints.retention import Retention
from server.checkpoints.service import AliasService
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import RunNotFound, StorageUnavailable
from server.kit.jobs import JobLoop
from server.kit.settings import StorageSettings, WebhookSettings
from server.ladders.models import LadderPlayer
from server.ladders.requests import PlayerCreate
from server.ladders.service import LadderService
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import DeletionService, RunInUse, RunNotEnded
from server.metrics.points import MetricPoint
from server.runs.models import DeletedRun, Run
from server.webhooks.models import Delivery
from server.webhooks.sender import Sender
from server.webhooks.service import WebhookCreate, WebhookService
from tests.factories import CONFIG, make_checkpoint, make_ledger, make_run, pack_metrics, read_run


def ended(database: Database, name: str = "trained") -> tuple[str, str]:
    """Have a run save a checkpoint, measure, and end; return its id and the checkpoint's."""
    ledger = make_ledger(database, name=name, tags=["ci"])
    run_id = ledger.run_id
    checkpoint = ledger.checkpoints.add(make_checkpoint(path=f"runs/{run_id}/1/checkpoints/1"))
    ledger.metrics.append([MetricPoint("CartPole", "reward", 100, 1.0, 2.0)])
    pack_metrics(database)
    ledger.metrics.append([MetricPoint("CartPole", "reward", 200, 1.0, 2.0)])
    ledger.log("trainer.log", f"runs/{run_id}/1/logs/trainer.log", 3)
    ledger.move(RunState.SUCCEEDED)
    return run_id, checkpoint


def delete(database: Database, run_id: str) -> None:
    with database.write() as session:
        DeletionService(session).delete(run_id)


def rows(database: Database, run_id: str) -> dict[str, int]:
    """Count the rows of every table that name a run."""
    with database.read() as session:
        return {
            table.name: count
            for table in Base.metadata.sorted_tables
            if "run_id" in table.columns
            and (count := session.scalar(select(func.count()).where(table.c.run_id == run_id)))
        }


def test_a_deleted_run_leaves_no_row_but_the_note_of_its_files(database: Database) -> None:
    run_id, _ = ended(database)
    metrics = {"latest_metrics", "metric_chunks", "metric_tail"}
    assert {"attempts", "events", "logs", "run_tags", "checkpoints", *metrics} <= set(rows(database, run_id))

    delete(database, run_id)

    assert rows(database, run_id) == {}
    with pytest.raises(RunNotFound):
        read_run(database, run_id)
    with database.read() as session:
        assert session.get_one(DeletedRun, run_id).name == "trained"


def test_to_delete_a_run_twice_is_to_delete_it_once(database: Database) -> None:
    run_id, _ = ended(database)
    failures = list[BaseException]()

    def attempt() -> None:
        try:
            delete(database, run_id)
        except BaseException as error:  # noqa: BLE001  # a test reports whatever went wrong in a thread
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delete(database, run_id)

    assert failures == []
    with pytest.raises(RunNotFound):
        delete(database, "run_of_nobody")


def test_who_deletes_a_run_by_its_name_is_told_its_id(database: Database) -> None:
    run_id, _ = ended(database)

    with pytest.raises(RunNotFound, match=rf"No run has the id 'trained'; it is the name of run {run_id}"):
        delete(database, "trained")


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.PAUSED])
def test_a_run_that_has_not_ended_is_not_deleted(database: Database, state: RunState) -> None:
    run = make_run(database)
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run.id).values(state=state))

    with pytest.raises(RunNotEnded, match=state):
        delete(database, run.id)


def test_an_alias_a_pin_and_a_run_that_began_with_it_are_named(database: Database) -> None:
    run_id, checkpoint = ended(database)
    config = {**CONFIG, "behaviors": {"CartPole": {"trainer_type": "ppo", "initialize_from": checkpoint}}}
    other = make_run(database, config=config, name="branch", checkpoints=[checkpoint])
    with database.write() as session:
        AliasService(session, "ann").put("champion", checkpoint, compare=False, expected=None)
        session.execute(update(Checkpoint).where(Checkpoint.id == checkpoint).values(pinned_at=1.0))

    with pytest.raises(RunInUse) as refused:
        delete(database, run_id)

    assert f"the alias champion stands for its checkpoint {checkpoint}" in str(refused.value)
    assert f"checkpoint {checkpoint} is pinned" in str(refused.value)
    assert f"the train run {other.id} (branch) began with its checkpoint {checkpoint}" in str(refused.value)
    assert rows(database, run_id)["checkpoints"] == 1, "nothing is deleted"


def test_a_run_that_judged_it_needs_it_even_after_its_end(database: Database) -> None:
    run_id, checkpoint = ended(database)
    config = {**CONFIG, "evaluate": {"checkpoint": checkpoint, "behavior": "CartPole", "episodes": 3}}
    evaluate = make_run(database, config=config, name="evaluate", checkpoints=[checkpoint])
    with database.write() as session:
        session.execute(update(Run).where(Run.id == evaluate.id).values(state=RunState.SUCCEEDED))

    with pytest.raises(RunInUse, match=f"the evaluate run {evaluate.id} .evaluate. judges its checkpoint {checkpoint}"):
        delete(database, run_id)

    delete(database, evaluate.id)
    delete(database, run_id)


def test_a_shared_ladder_on_which_it_plays_is_named_and_its_own_goes_with_it(database: Database) -> None:
    run_id, checkpoint = ended(database)
    with database.write() as session:
        ladders = LadderService(session)
        ladders.create("arena")
        ladders.add_player(
            "arena", PlayerCreate(name="veteran", kind="checkpoint", checkpoint_id=checkpoint, behavior="CartPole")
        )

    with pytest.raises(RunInUse, match="veteran plays on the ladder arena"):
        delete(database, run_id)

    with database.write() as session:
        ladders = LadderService(session)
        ladders.delete("arena")
        ladders._ladders.own(run_id)
        ladders.add_player(
            run_id, PlayerCreate(name="policy", kind="checkpoint", checkpoint_id=checkpoint, behavior="CartPole")
        )
    delete(database, run_id)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(LadderPlayer)) == 0


def test_webhooks_get_all_events_and_the_deletion(database: Database) -> None:
    with database.write() as session:
        WebhookService(session, private=True).create(WebhookCreate(url="https://192.0.2.1", events=["run_*"], tag="ci"))
    run_id, _ = ended(database)  # and the sender has sent nothing yet

    delete(database, run_id)
    Sender(database, WebhookSettings()).create_deliveries()

    with database.read() as session:
        sent = session.scalars(select(Delivery.type).where(Delivery.run_id == run_id).order_by(Delivery.seq)).all()
    assert sent == ["run_created", "run_claimed", "run_started", "run_succeeded", "run_deleted"]


class Away(FolderStore):
    """A store that does not answer at first."""

    answers = False

    def delete(self, path: str) -> None:
        """Remove, or fail."""
        if not self.answers:
            raise StorageUnavailable("it is away")
        super().delete(path)


def test_the_files_go_as_often_as_it_takes_and_late_ones_too(database: Database, tmp_path: Path) -> None:
    run_id, _ = ended(database)
    root = tmp_path / "artifacts"
    store = Away(root)
    other = root / "runs/run_other/1/logs/trainer.log"
    log = root / f"runs/{run_id}/1/logs/trainer.log"
    for file in (other, log):
        file.parent.mkdir(parents=True)
        file.write_text("log")
    janitor = Retention(database, store, StorageSettings())
    delete(database, run_id)

    JobLoop(janitor.jobs(), 0.0).tick()
    assert log.exists(), "the store is away"
    store.answers = True
    assert janitor.purge() == 1
    assert not log.exists()

    log.parent.mkdir(parents=True)
    log.write_text("published late")
    assert janitor.purge() == 0, "not at once"
    with database.write() as session:
        aged = {"purge_at": DeletedRun.purge_at - 601, "deleted_at": DeletedRun.deleted_at - 1000}
        session.execute(update(DeletedRun).values(aged))
    assert janitor.purge() == 1
    assert not log.exists()
    assert janitor.purge() == 0
    assert other.exists()
    with database.read() as session:
        assert session.get_one(DeletedRun, run_id).purge_at is None


def test_a_supervisor_that_publishes_after_the_deletion_is_told_so(database: Database) -> None:
    ledger: AttemptLedger = make_ledger(database)
    ledger.move(RunState.SUCCEEDED)
    run_id = ledger.run_id
    delete(database, run_id)

    with pytest.raises(RunNotFound):
        ledger.log("trainer.log", f"runs/{run_id}/1/logs/trainer.log", 3)
