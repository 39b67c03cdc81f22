"""The progress of runs: steps to do, speed, estimated end, connected simulators."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from ludus.schemas import STEPS_PER_SECOND
from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.progress import STANDSTILL_SECONDS, SUMMARY_SECONDS, Progress, ProgressRepository
from server.metrics.models import LatestMetric
from server.metrics.points import MetricPoint
from server.runs.models import Lease, Run
from server.runs.repository import RunRepository
from tests.factories import CONFIG, make_ledger, make_run, pack_metrics
from tests.plans import plans_of
from tests.server.app.world import World

TWO = {"behaviors": {"Striker": {"max_steps": 6000}, "Goalie": {"max_steps": 4000}}, "seed": 7}
MATCH = {
    **CONFIG,
    "match": {"behavior": "CartPole", "candidate": f"ckpt_{26 * 'a'}", "champion": f"ckpt_{26 * 'b'}"},
}


def progress(database: Database, name: str) -> Progress:
    """Read the progress of a run as a list does, and hold that it is the same of the run alone."""
    with database.read() as session:
        repository, runs = ProgressRepository(session), RunRepository(session)
        listed = repository.of(runs.list().items)
        run = runs.get(name)
        assert repository.of([run])[run.id] == listed[run.id]
        return listed[run.id]


def summarise(ledger: AttemptLedger, **speeds: float) -> None:
    """Have a trainer write a summary for each of some behaviors."""
    ledger.metrics.append(
        [MetricPoint(behavior, STEPS_PER_SECOND, 1000, time.time(), speed) for behavior, speed in speeds.items()]
    )


def test_a_run_that_trains_has_a_speed_and_an_end(database: Database) -> None:
    ledger = make_ledger(database, name="soccer", config=TWO)
    summarise(ledger, Striker=60.0, Goalie=40.0)
    ledger.heartbeat(10, 2500)
    with database.read() as session:
        at = RunRepository(session).get("soccer").updated_at

    found = progress(database, "soccer")

    assert (found.max_steps, found.steps_per_second) == (10_000, 100.0)
    assert found.finishes_at == pytest.approx(at + 7500 / 100.0, abs=1.0)
    assert progress(database, "soccer") == found, "an answer without a new step is the same"


def stands_still(session: Any) -> None:
    session.execute(update(Run).values(stored_updated_at=Run.stored_updated_at - STANDSTILL_SECONDS - 1))
    session.execute(update(Lease).values(step_at=Lease.step_at - STANDSTILL_SECONDS - 1))


def has_old_summaries(session: Any) -> None:
    session.execute(update(LatestMetric).values(at=LatestMetric.at - SUMMARY_SECONDS - 1))


def pauses(session: Any) -> None:
    session.execute(update(Run).values(state=RunState.PAUSED))


def has_no_number(session: Any) -> None:
    session.execute(update(LatestMetric).values(value=None))


@pytest.mark.parametrize("change", [stands_still, has_old_summaries, pauses, has_no_number])
def test_a_speed_that_is_out_of_date_is_not_told(database: Database, change: Callable[[Any], None]) -> None:
    ledger = make_ledger(database, name="soccer", config=TWO)
    summarise(ledger, Striker=60.0, Goalie=40.0)
    pack_metrics(database)
    with database.write() as session:
        change(session)

    found = progress(database, "soccer")

    assert (found.max_steps, found.steps_per_second, found.finishes_at) == (10_000, None, None)


def test_a_behavior_that_was_complete_long_ago_is_not_counted(database: Database) -> None:
    ledger = make_ledger(database, name="soccer", config=TWO)
    summarise(ledger, Striker=60.0, Goalie=40.0)
    pack_metrics(database)
    with database.write() as session:
        old = update(LatestMetric).where(LatestMetric.behavior == "Goalie")
        session.execute(old.values(at=LatestMetric.at - SUMMARY_SECONDS - 1))

    assert progress(database, "soccer").steps_per_second == 60.0


@pytest.mark.parametrize(("speed", "step"), [(0.0, 100), (50.0, 10_000), (50.0, 12_000)])
def test_an_end_that_cannot_be_estimated_is_not_told(database: Database, speed: float, step: int) -> None:
    ledger = make_ledger(database, name="soccer", config=TWO)
    summarise(ledger, Striker=speed)
    ledger.heartbeat(10, step)

    found = progress(database, "soccer")

    assert (found.steps_per_second, found.finishes_at) == (speed, None)


def test_the_simulators_of_a_run_are_those_that_are_connected_now(database: Database) -> None:
    ledger = make_ledger(database, name="soccer")
    for number in range(3):
        ledger.simulators.connected(f"session-{number}", number=number, collector=0)
    ledger.simulators.left("session-1", code="bye", reason="It left.", steps=1)

    assert progress(database, "soccer").simulators == 2
    ledger.move(RunState.SUCCEEDED)
    assert progress(database, "soccer").simulators == 0


def test_a_run_that_ends_by_its_verdict_has_no_steps_to_do(database: Database) -> None:
    make_run(database, name="match", config=MATCH)
    make_run(database, name="train", config=TWO)

    assert (progress(database, "match").max_steps, progress(database, "train").max_steps) == (None, 10_000)


def test_a_list_asks_three_times_more_however_many_runs_it_has(database: Database) -> None:
    if database.engine.dialect.name != "sqlite":
        pytest.skip("the same queries")
    for number in range(12):
        make_ledger(database, name=f"run-{number}")

    with database.read() as session:
        runs = RunRepository(session).list().items
    plans = plans_of(database, lambda session: ProgressRepository(session).of(runs))

    assert sum("runs" in plan or "simulators" in plan or "latest_metrics" in plan for plan in plans) == 4
    assert not any(plan.startswith("SCAN") for plan in plans), plans


def test_progress_is_in_lists_and_in_the_run_and_follows_a_changed_max_steps(world: World) -> None:
    run = world.create(name="live")
    trainer = world.claim(run["id"]).start()
    summarise(trainer.ledger, CartPole=100.0)
    trainer.ledger.heartbeat(60, 4000)
    trainer.ledger.simulators.connected("one", number=0, collector=0)
    names = ("step", "max_steps", "steps_per_second", "simulators")

    assert [run[name] for name in names] == [0, 10_000, None, 0]
    alone = world.http.get(f"/v1/runs/{run['id']}").json()
    listed = world.http.get("/v1/runs", params={"filter": "name = live"}).json()["runs"][0]
    assert [alone[name] for name in names] == [listed[name] for name in names] == [4000, 10_000, 100.0, 1]
    assert alone["finishes_at"] == listed["finishes_at"] is not None

    changes = {"behaviors": {"CartPole": {"max_steps": 50_000}}}
    changed = world.http.patch(f"/v1/runs/{run['id']}", json=changes).json()

    assert changed["max_steps"] == 50_000
    listed = world.http.get("/v1/runs", params={"filter": "name = live"}).json()["runs"][0]
    assert listed["max_steps"] == 50_000
    assert listed["finishes_at"] > alone["finishes_at"]
