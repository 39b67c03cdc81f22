"""Old rows are deleted in bounded batches; rows that something needs stay."""

from typing import Any

import pytest
from sqlalchemy import func, select, update

from ludus.schemas.states import RunState
from server.checkpoints.service import CheckpointService
from server.kit.db.database import Database
from server.kit.jobs import JobLoop
from server.kit.settings import ControllerSettings
from server.ladders.models import LadderMatch, LadderParticipant
from server.ladders.service import LadderService
from server.lifecycle import retention as job
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.retention import RowRetention
from server.runs.events.repository import EventRepository
from server.runs.models import Event, Run
from server.simulators.models import Simulator
from tests.factories import make_checkpoint, make_ledger
from tests.server.ladders.played import computed, get_ladder, make_match, make_player, rate_all

DAY = 86400.0
NEVER = {"run_days": None, "event_days": None, "simulator_days": None, "match_days": None, "recording_days": None}


def retention(database: Database, **days: float) -> JobLoop:
    """Make a job that deletes only what the days name."""
    return JobLoop(RowRetention(database, ControllerSettings(**{**NEVER, **days})).jobs(), 0.0)


def run_of(ledger: AttemptLedger) -> str:
    return ledger.run_id


def age(database: Database, table: Any, column: str, days: float) -> None:
    """Move a column of all rows into the past."""
    values = {column: getattr(table, column) - days * DAY}
    with database.write() as session:
        session.execute(update(table).values(values), execution_options={"synchronize_session": False})


def events(database: Database, run_id: str) -> list[str]:
    with database.read() as session:
        return [event.type for event in EventRepository(session).page(run_id, limit=1000)]


def count(database: Database, table: Any) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def all_runs(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Run.id)))


def test_old_routine_events_go_and_states_warnings_and_the_newest_event_stay(database: Database) -> None:
    ended = make_ledger(database)
    ended.event("simulator_left", "Routine.")
    ended.event("trainer_lost", "Trouble.", level="error")
    ended.move(RunState.SUCCEEDED)
    running = make_ledger(database, name="goes on")
    running.event("checkpoint_saved", "Routine, but the newest.")
    age(database, Event, "at", 366)

    assert retention(database, event_days=365).tick()["old_events"] == 1

    states = ["run_created", "run_claimed", "run_started"]
    assert events(database, run_of(ended)) == [*states, "trainer_lost", "run_succeeded"]
    assert events(database, run_of(running)) == [*states, "checkpoint_saved"]


def test_young_events_stay(database: Database) -> None:
    ledger = make_ledger(database)
    ledger.event("simulator_left", "Routine.")
    ledger.move(RunState.SUCCEEDED)
    age(database, Event, "at", 364)

    assert retention(database, event_days=365).tick()["old_events"] == 0


def test_rounds_go_through_all_runs_a_few_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "LOOKED_AT", 2)
    monkeypatch.setattr(job, "ROWS", 2)
    for number in range(3):
        ledger = make_ledger(database, name=f"run {number}")
        for _ in range(3):
            ledger.event("simulator_left", "Routine.")
        ledger.move(RunState.SUCCEEDED)
    age(database, Event, "at", 366)
    retain = retention(database, event_days=365)

    assert [retain.tick()["old_events"] for _ in range(4)] == [6, 3, 0, 0]


def test_simulators_that_left_long_ago_go_and_connected_ones_stay(database: Database) -> None:
    ledger = make_ledger(database)
    with database.write() as session:
        for session_id, left_at in (("gone", 1.0), ("left just now", None), ("plays", None)):
            columns = {"number": 0, "state": "connected", "attempt": 1, "joined_at": 0.0, "left_at": left_at}
            session.add(Simulator(run_id=run_of(ledger), session_id=session_id, **columns))
    ledger.simulators.left("left just now", code="finished", reason="It left.", steps=1)

    assert retention(database, simulator_days=30).tick()["old_simulators"] == 1

    with database.read() as session:
        assert set(session.scalars(select(Simulator.session_id))) == {"left just now", "plays"}


def test_ratings_stay_when_old_matches_go_and_are_computed_again_from_the_rest(database: Database) -> None:
    ledger = make_player(database, name="player")
    ledger.matches.append([make_match(number, "win" if number % 3 else "loss") for number in range(1, 41)])
    young = [make_match(number, "loss", at=4e9) for number in range(41, 51)]
    ledger.matches.append(young)
    ledger.move(RunState.CANCELLED)
    rate_all(database)
    before = computed(database)

    assert retention(database, match_days=365).tick()["old_matches"] == 40

    assert computed(database) == before
    assert (count(database, LadderMatch), count(database, LadderParticipant)) == (10, 20)
    with database.write() as session:
        LadderService(session).recompute("player")
    assert computed(database) != before
    rate_all(database)
    assert computed(database) == before


def test_a_ladder_without_any_match_left_is_recomputed_to_what_it_was(database: Database) -> None:
    ledger = make_player(database, name="player")
    ledger.matches.append([make_match(number) for number in range(1, 11)])
    ledger.move(RunState.CANCELLED)
    rate_all(database)
    before = computed(database)
    assert retention(database, match_days=365).tick()["old_matches"] == 10

    with database.write() as session:
        LadderService(session).recompute("player")
    rate_all(database)

    assert computed(database) == before


@pytest.mark.parametrize("reason", ["a run that goes on", "matches that are not rated", "young matches before them"])
def test_old_matches_stay_because_of(database: Database, reason: str) -> None:
    ledger = make_player(database, name="player")
    first = {"at": 4e9} if reason.startswith("young") else {}
    ledger.matches.append([make_match(1, **first), *(make_match(number) for number in range(2, 11))])
    if reason != "a run that goes on":
        ledger.move(RunState.CANCELLED)
    if reason != "matches that are not rated":
        rate_all(database)

    assert retention(database, match_days=365).tick()["old_matches"] == 0

    assert get_ladder(database, "player").match_seq == count(database, LadderMatch) == 10


def test_runs_that_ended_long_ago_go_unless_something_needs_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RUNS", 1)  # a run that is needed does not keep the others
    names = {}
    for name in ("pinned", "old", "goes on"):
        ledger = make_ledger(database, name=name)
        checkpoint = ledger.checkpoints.add(make_checkpoint(path=f"runs/{name.replace(' ', '-')}/1"))
        names[run_of(ledger)] = name
        if name == "pinned":
            with database.write() as session:
                CheckpointService(session).pin(run_of(ledger), checkpoint, pinned=True)
        if name != "goes on":
            ledger.move(RunState.SUCCEEDED)
    age(database, Run, "finished_at", 31)
    young = make_ledger(database, name="young")
    young.move(RunState.SUCCEEDED)
    retain = retention(database, run_days=30)

    assert sum(retain.tick()["old_runs"] for _ in range(6)) == 1

    assert {names.get(run, "young") for run in all_runs(database)} == {"pinned", "goes on", "young"}
