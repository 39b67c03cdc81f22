"""Runs without games lend their slots, wait again in their places, and get them back after the others."""

from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.scheduling import SchedulingSettings
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.blocked import BlockedRepository
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.lending import SlotLending
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from server.runs.models import Attempt, Run
from server.runs.refs import EdgeCollectorRef
from server.runs.repository import RunRepository
from server.simulators.repository import NotReady, Placement
from server.workers.repository import WorkerInfo, WorkerRegistry
from server.workers.service import WorkerService
from tests.factories import RecordingWakeUp, make_checkpoint, make_run, read_run

ENDPOINTS = [{"address": "host:1", "index": 0}]


def add_slots(database: Database, *names: str) -> None:
    for name in names:
        WorkerRegistry(database).register(WorkerInfo(name, name, 1, "0"))


def claim(database: Database, slot: str = "one") -> AttemptLedger:
    found = RunQueue(database).claim(slot, 60)
    assert found is not None
    ledger = AttemptLedger(database, found)
    ledger.listening(ENDPOINTS)
    return ledger


def start_game(database: Database, run: str) -> None:
    assert isinstance(Placement(database).join(run, f"game of {run}"), NotReady)


def lend(database: Database, lending: SlotLending | None = None) -> list[str]:
    """Do a round of the controller; return the names of the runs that are asked for their slots now."""
    (lending or SlotLending(database, SchedulingSettings(), 60)).lend()
    with database.read() as session:
        return list(session.scalars(select(Run.name).where(Run.intent == Intent.RELEASE)))


def taker(database: Database, slot: str = "one") -> str:
    found = RunQueue(database).claim(slot, 60)
    assert found is not None
    return found.name


def test_a_run_without_a_game_lends_its_slot_and_gets_one_before_those_that_came_later(database: Database) -> None:
    add_slots(database, "one")
    for name in "abc":
        make_run(database, name=name)
    queued_at = read_run(database, "a").queued_at
    first = claim(database)
    assert lend(database) == [], "no game waits"

    start_game(database, "c")
    assert lend(database) == ["a"]
    assert lend(database) == ["a"], "it is asked once"
    assert first.heartbeat(60, 0).intent is Intent.RELEASE
    first.release("released", "it was asked to hand its slot back")

    back = read_run(database, "a")
    assert (back.state, back.intent, back.queued_at) == ("QUEUED", None, queued_at)
    assert back.restarts_without_progress == 0
    assert taker(database) == "c"
    with database.read() as session:
        (blocked,) = BlockedRepository(session, 60).of([RunRepository(session).get("a")]).values()
    assert (blocked.waits_for or "").startswith(
        "A free slot: the only slot that can train it is held by run c (STARTING"
    )
    assert [taker(database, slot) for slot in ("two", "three")] == ["a", "b"]
    with database.read() as session:
        events = EventRepository(session).page(back.id)
        (lent,) = [event for event in events if event.type == "slot_lent"]
    assert lent.message == "Slot lent to run c, whose game waits; no game has joined this one yet."
    assert lent.data == {"run_id": read_run(database, "c").id}
    assert [event.type for event in events[-2:]] == ["run_queued", "run_claimed"]


def test_runs_whose_games_both_wait_do_not_take_the_slot_from_each_other(database: Database) -> None:
    add_slots(database, "one")
    for name in "ab":
        make_run(database, name=name)
        start_game(database, name)
    first = claim(database)

    assert lend(database) == [], "its game waits until its trainer listens"
    Placement(database).join("a", "game of a")
    set_mark(database, "a", -1)
    assert lend(database) == [], "its game has its place, and connects"
    first.move(RunState.RUNNING)
    assert lend(database) == []


def begin_attempts(database: Database, *, ago: float) -> None:
    """Have all attempts begun so many seconds ago."""
    with database.write() as session:
        session.execute(update(Attempt).values(started_at=RunRepository(session).clock() - ago))


def set_mark(database: Database, run: str, seconds: float) -> None:
    """Have the mark of a run's game end so many seconds from now."""
    with database.write() as session:
        until = RunRepository(session).clock() + seconds
        session.execute(update(Run).where(Run.name == run).values(awaited_until=until))


def test_a_run_whose_game_has_gone_away_gets_no_slot_for_it(database: Database) -> None:
    add_slots(database, "one")
    for name in "abc":
        make_run(database, name=name)
    start_game(database, "c")
    set_mark(database, "c", -1)

    assert taker(database) == "a"
    assert lend(database) == []
    start_game(database, "c")
    assert lend(database) == ["a"]


def stop(database: Database, ledger: AttemptLedger) -> None:
    with database.write() as session:
        RunService(session, RecordingWakeUp()).stop("a")


def cordon(database: Database, ledger: AttemptLedger) -> None:
    with database.write() as session:
        WorkerService(session).cordon("one")


def connect_an_edge_collector(database: Database, ledger: AttemptLedger) -> None:
    ledger.collectors.publish([EdgeCollectorRef(0, "edge", "host:1", 0.0)])


def lose_the_game(database: Database, ledger: AttemptLedger) -> None:
    ledger.simulators.connected("game", number=0, collector=0)
    ledger.move(RunState.RUNNING)
    ledger.simulators.left("game", code="bye", reason="", steps=0)


def clone(database: Database, ledger: AttemptLedger) -> None:
    with database.write() as session:
        session.execute(update(Run).where(Run.name == "a").values(kind="clone"))


@pytest.mark.parametrize("happens", [stop, cordon, connect_an_edge_collector, lose_the_game, clone])
def test_a_run_that_has_something_to_lose_or_ends_keeps_its_slot(
    database: Database, happens: Callable[[Database, AttemptLedger], None]
) -> None:
    add_slots(database, "one")
    make_run(database, name="a")
    make_run(database, name="b")
    ledger = claim(database)
    happens(database, ledger)
    start_game(database, "b")

    assert lend(database) == []


def test_a_run_that_resumes_lends_its_slot_until_its_first_game_is_back(database: Database) -> None:
    add_slots(database, "one")
    make_run(database, name="a")
    first = claim(database)
    lose_the_game(database, first)
    first.checkpoints.add(make_checkpoint(100))
    first.release("trainer_lost", "It crashed.")
    with database.write() as session:
        session.execute(update(Run).values(queued_at=1000.0))
    second = claim(database)
    make_run(database, name="b")
    start_game(database, "b")

    assert lend(database) == [], "it was queued long ago, and its games have not had the time to come"
    begin_attempts(database, ago=61)
    assert lend(database) == ["a"]
    second.release("released", "it was asked to hand its slot back")
    assert read_run(database, "a").restarts_without_progress == 1, "the crash alone"
    assert taker(database) == "b"
    resumed = RunQueue(database).claim("two", 60)
    assert resumed is not None
    assert resumed.resume is not None
    assert resumed.resume.step == 100
    assert resumed.waited_seconds < 60, "since its last attempt ended"


def test_a_run_that_gets_its_game_while_it_is_asked_recovers_as_after_a_drain(database: Database) -> None:
    add_slots(database, "one")
    make_run(database, name="a")
    make_run(database, name="b")
    ledger = claim(database)
    start_game(database, "b")
    assert lend(database) == ["a"]
    ledger.move(RunState.RUNNING)

    ledger.release("released", "it was asked to hand its slot back")

    assert read_run(database, "a").state == "RECOVERING"


def test_a_drained_slot_is_not_lent_and_its_run_recovers(database: Database) -> None:
    add_slots(database, "one")
    make_run(database, name="a")
    ledger = claim(database)
    with database.write() as session:
        WorkerService(session).drain("one")

    ledger.release("released", "it was asked to hand its slot back")

    assert read_run(database, "a").state == "RECOVERING"


def test_a_run_of_another_project_is_not_named(database: Database) -> None:
    add_slots(database, "one")
    make_run(database.within("a"), name="a")
    make_run(database.within("b"), name="secret")
    claim(database)
    start_game(database, "secret")

    assert lend(database) == ["a"]
    with database.read() as session:
        lent = EventRepository(session).page(read_run(database, "a").id)[-1]
    assert lent.message.startswith("Slot lent to a run of another project, whose game waits")
    assert lent.data == {}


def test_a_run_that_needs_no_game_goes_before_those_without_one(database: Database) -> None:
    make_run(database, name="without")
    run = make_run(database, name="clone")
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run.id).values(awaited_until=float("inf"), kind="clone"))

    assert taker(database) == "clone"


def test_no_slots_go_round_among_runs_whose_games_come_late_and_go(database: Database) -> None:
    """Three slots, nine runs: each game that comes moves one slot at most, and after that nothing moves."""
    add_slots(database, "one", "two", "three")
    names = [f"run-{number}" for number in range(9)]
    for name in names:
        make_run(database, name=name)
    ledgers = {name: claim(database, slot) for name, slot in zip(names, ("one", "two", "three"), strict=False)}
    slots = dict(zip(names, ("one", "two", "three"), strict=False))
    moved = []

    def settle() -> None:
        for _ in range(10):
            for name in lend(database):
                ledgers.pop(name).release("released", "it was asked to hand its slot back")
                slot = slots.pop(name)
                got = taker(database, slot)
                moved.append((name, got))
                slots[got] = slot
                with database.read() as session:
                    attempt = session.get_one(Attempt, (read_run(database, got).id, read_run(database, got).attempt))
                assert attempt.worker_id == slot

    for name in names[8:4:-1]:
        start_game(database, name)
        settle()

    assert moved == [("run-0", "run-8"), ("run-1", "run-7"), ("run-2", "run-6")]
    assert set(slots) == {"run-8", "run-7", "run-6"}


def test_a_run_is_left_to_an_idle_slot_that_takes_nothing_for_as_long_as_to_one_that_fits_better(
    database: Database,
) -> None:
    now = 1000.0
    lending = SlotLending(database, SchedulingSettings(best_fit_seconds=600), 60, lambda: now)
    add_slots(database, "one", "idle")
    for name in "abc":
        make_run(database, name=name)
    claim(database)
    start_game(database, "c")

    assert lend(database, lending) == []
    now += 599
    assert lend(database, lending) == []
    now += 2
    assert lend(database, lending) == ["a"]


def test_a_run_that_lent_its_slot_is_told_from_one_that_paused_and_was_resumed_at_once(database: Database) -> None:
    add_slots(database, "one")
    for name in "ab":
        make_run(database, name=name)
    queue = RunQueue(database)
    paused = queue.claim("one", 60)
    assert paused is not None
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause(paused.run_id)
    AttemptLedger(database, paused).release("released", "it paused")
    with database.write() as session:
        RunService(session, RecordingWakeUp()).resume(paused.run_id)
    assert read_run(database, paused.run_id).state == "QUEUED"
    assert not queue.has_lent(paused)

    held = queue.claim("one", 60)
    assert held is not None
    waiting = "a" if held.name == "b" else "b"
    start_game(database, waiting)
    assert lend(database) == [held.name]
    AttemptLedger(database, held).release("released", "it was asked to hand its slot back")
    assert queue.has_lent(held)
