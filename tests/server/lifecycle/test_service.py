"""What users do with runs: create, stop, cancel."""

import pytest

from ludus.config.run import RunConfig
from ludus.schemas.states import RunKind, RunState, StopReason
from server.kit.db.database import Database
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from server.runs.repository import NewRun
from tests.factories import CONFIG, RecordingWakeUp, make_claim, make_ledger, make_run, read_run


def stop(database: Database, run: str) -> Run:
    with database.write() as session:
        return RunService(session, RecordingWakeUp()).stop(run)


def cancel(database: Database, run: str) -> Run:
    with database.write() as session:
        return RunService(session, RecordingWakeUp()).cancel(run)


def events(database: Database, run_id: str) -> list[str]:
    with database.read() as session:
        return [event.type for event in EventRepository(session).page(run_id)]


def test_a_created_run_waits_and_a_worker_is_woken_after_the_commit(
    database: Database, wake_up: RecordingWakeUp
) -> None:
    with database.write() as session:
        run = RunService(session, wake_up).create(
            NewRun(RunConfig.model_validate(CONFIG), name="first", tags=["b", "a", "b"], priority=3)
        )
        assert wake_up.woken == []

    assert wake_up.woken == [run.id]
    assert (run.state, run.name, run.tags, run.priority, run.seed) == (RunState.QUEUED, "first", ["a", "b"], 3, 7)
    assert events(database, run.id) == ["run_created"]


def test_a_missing_seed_is_drawn_and_stored_with_the_configuration(database: Database) -> None:
    run = make_run(database, config={**CONFIG, "seed": None})

    assert 0 <= run.seed < 2**31
    assert read_run(database, run.id).config["seed"] == run.seed


@pytest.mark.parametrize(
    ("trainers", "kind"),
    [(["ppo"], RunKind.TRAIN), (["clone"], RunKind.CLONE), (["clone", "ppo"], RunKind.TRAIN)],
    ids=["ppo", "clone", "both"],
)
def test_a_run_is_of_the_kind_that_its_behaviors_make_it(
    database: Database, trainers: list[str], kind: RunKind
) -> None:
    needs = {"clone": {"demonstrations": [f"dem_{'0' * 26}"]}}
    behaviors = {
        f"B{index}": {"trainer_type": trainer, **needs.get(trainer, {})} for index, trainer in enumerate(trainers)
    }

    run = make_run(database, config={**CONFIG, "behaviors": behaviors})

    assert run.kind == kind


def test_a_run_without_a_name_is_called_like_its_id(database: Database) -> None:
    run = make_run(database)

    assert run.name == run.id


def test_stopping_a_live_run_is_a_wish_that_its_supervisor_learns_with_the_next_heartbeat(database: Database) -> None:
    ledger = make_ledger(database, name="live")
    assert ledger.heartbeat(10, 0).intent is Intent.NONE

    stopped = stop(database, "live")
    again = stop(database, "live")

    assert stopped.state == again.state == RunState.RUNNING
    assert ledger.heartbeat(10, 0).intent is Intent.STOP
    assert events(database, stopped.id).count("stop_requested") == 1


def test_cancel_outranks_stop_and_stop_does_not_outrank_cancel(database: Database) -> None:
    ledger = make_ledger(database, name="live")

    stop(database, "live")
    cancel(database, "live")
    stop(database, "live")

    assert ledger.heartbeat(10, 0).intent is Intent.CANCEL


def test_repeating_a_wish_after_it_came_true_is_no_error(database: Database) -> None:
    run = make_run(database)
    stop(database, run.id)

    assert stop(database, run.id).state == RunState.SUCCEEDED
    assert events(database, run.id) == ["run_created", "run_succeeded"]


def test_a_run_that_ended_otherwise_stays_so_when_it_is_stopped_or_cancelled(database: Database) -> None:
    make_run(database, name="done")
    ledger = AttemptLedger(database, make_claim(database))
    ledger.move(RunState.RUNNING)
    ledger.move(RunState.SUCCEEDED)

    assert cancel(database, "done").state == stop(database, "done").state == RunState.SUCCEEDED
    assert stop(database, "done").stop_reason != StopReason.USER
