"""The service at which simulators ask for a place in a run."""

import pytest
from sqlalchemy import event, update

from ludus.schemas.states import RunState, StopReason
from server.kit.db.database import Database
from server.kit.errors import RunNotFound
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.lifecycle.attempts import AttemptLedger
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from server.simulators.models import RunClosed, SimulatorNotFound
from server.simulators.repository import Assigned, NotReady, Placement, SimulatorRepository
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import CONFIG, make_claim, make_ledger, make_run, read_run

ENDPOINTS = [{"address": "host:1", "index": 0}, {"address": "host:2", "index": 1}]


@pytest.fixture
def placement(database: Database) -> Placement:
    return Placement(database)


def test_an_unknown_run_is_not_found(placement: Placement) -> None:
    with pytest.raises(RunNotFound, match="'nobody'"):
        placement.join("nobody", "inc")


def test_a_waiting_run_is_not_ready_and_says_why(database: Database, placement: Placement) -> None:
    run = make_run(database, name="run")

    answer = placement.join("run", "inc")

    assert isinstance(answer, NotReady)
    assert answer.run_id == run.id
    assert "QUEUED" in answer.reason


def test_a_queued_simulator_hears_what_its_run_waits_for(database: Database, placement: Placement) -> None:
    run = make_run(database, name="run")
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run.id).values(waits_for="Every slot is taken."))

    answer = placement.join("run", "inc")

    assert answer == NotReady(run.id, f"Run {run.id} is QUEUED: Every slot is taken.")


def test_a_trainer_that_does_not_listen_yet_is_not_ready(database: Database, placement: Placement) -> None:
    make_ledger(database, name="run")

    answer = placement.join("run", "inc")

    assert isinstance(answer, NotReady)
    assert "does not listen yet" in answer.reason


def test_a_finished_run_takes_no_simulators(database: Database, placement: Placement) -> None:
    ledger = make_ledger(database, name="run")
    ledger.move(RunState.SUCCEEDED)

    with pytest.raises(RunClosed) as refusal:
        placement.join("run", "inc")

    assert (refusal.value.run_id, refusal.value.state) == (read_run(database, "run").id, RunState.SUCCEEDED)


def test_simulators_are_numbered_in_the_order_of_joining_by_id_and_by_name(
    database: Database, placement: Placement
) -> None:
    ledger = make_ledger(database, name="run")
    ledger.listening(ENDPOINTS)
    run = read_run(database, "run")

    first = placement.join("run", "a", label="left", client="test/1", peer="1.2.3.4:5")
    second = placement.join(run.id, "b", relay=True)

    assert first == Assigned(run.id, 1, 0, tuple(ENDPOINTS), {})
    assert second == Assigned(run.id, 1, 1, tuple(ENDPOINTS), {})
    with database.read() as session:
        simulators = SimulatorRepository(session).list(run.id, ListQuery(Order("number", descending=False))).items
    assert [(s.number, s.label, s.client, s.peer, s.state, s.relayed) for s in simulators] == [
        (0, "left", "test/1", "1.2.3.4:5", "joined", False),
        (1, "", "", "", "joined", True),
    ]


def test_joining_again_gives_the_same_number_in_later_attempts_too(database: Database, placement: Placement) -> None:
    first = make_ledger(database, name="run")
    first.listening(ENDPOINTS)
    placement.join("run", "a")
    placement.join("run", "b")
    again = placement.join("run", "b")
    first.release("trainer_lost", "It crashed.")
    second = AttemptLedger(database, make_claim(database))
    second.listening(ENDPOINTS[:1])

    later = placement.join("run", "b")

    assert isinstance(again, Assigned)
    assert isinstance(later, Assigned)
    assert (again.number, again.attempt) == (1, 1)
    assert (later.number, later.attempt, len(later.endpoints)) == (1, 2, 1)


def test_the_answer_says_how_many_simulators_each_collector_has(database: Database, placement: Placement) -> None:
    ledger = make_ledger(database, name="run")
    ledger.listening(ENDPOINTS)
    for number, collector in enumerate([0, 0, 1]):
        ledger.simulators.connected(f"inc{number}", number=number, collector=collector)
    ledger.simulators.left("inc0", code="left", reason="bye", steps=3)

    answer = placement.join("run", "new")

    assert isinstance(answer, Assigned)
    assert answer.load == {0: 1, 1: 1}


def test_a_simulator_that_comes_back_wakes_a_run_that_paused_for_want_of_simulators(
    database: Database, placement: Placement
) -> None:
    ledger = make_ledger(database, name="run")
    ledger.move(RunState.PAUSING, reason=StopReason.SIMULATORS_LOST)
    ledger.move(RunState.PAUSED, reason=StopReason.SIMULATORS_LOST)

    assert isinstance(placement.join("run", "inc"), NotReady)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.QUEUED, None)
    assert make_claim(database).attempt == 2


def test_a_run_that_a_user_paused_stays_paused(database: Database, placement: Placement) -> None:
    ledger = make_ledger(database, name="run")
    ledger.move(RunState.PAUSING, reason=StopReason.USER)
    ledger.move(RunState.PAUSED, reason=StopReason.USER)

    assert isinstance(placement.join("run", "inc"), NotReady)
    assert read_run(database, "run").state == RunState.PAUSED


def test_connected_and_past_simulators_are_listed_with_why_they_left(database: Database, placement: Placement) -> None:
    ledger = make_ledger(database, name="run")
    ledger.listening(ENDPOINTS)
    placement.join("run", "a", label="kept")
    ledger.simulators.connected("a", number=0, collector=1)
    ledger.simulators.plays("a", ["CartPole"], 4)
    ledger.simulators.connected("b", number=1, collector=0)
    ledger.simulators.left("b", code="shape_mismatch", reason="obs_0 has the wrong shape.", steps=12)
    run_id = read_run(database, "run").id

    with database.read() as session:
        repository = SimulatorRepository(session)
        past = repository.list(run_id, ListQuery(Order("joined_at"), (Condition("state", Operator.EQ, "left"),))).items
        present = repository.get(run_id, "a")
        with pytest.raises(SimulatorNotFound):
            repository.get(run_id, "c")

    assert (present.state, present.label, present.collector) == ("connected", "kept", 1)
    assert (present.behaviors, present.agents) == (["CartPole"], 4)
    assert [(s.leave_code, s.leave_reason, s.steps) for s in past] == [
        ("shape_mismatch", "obs_0 has the wrong shape.", 12)
    ]


def test_leaving_twice_leaves_one_event_and_a_reconnection_counts_anew(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.simulators.connected("a", number=0, collector=0)
    ledger.simulators.left("a", code="connection_lost", reason="gone", steps=7)
    before = read_run(database, "run").event_seq
    ledger.simulators.left("a", code="connection_lost", reason="gone", steps=7)
    assert read_run(database, "run").event_seq == before

    ledger.simulators.connected("a", number=0, collector=0)

    with database.read() as session:
        simulator = SimulatorRepository(session).get(read_run(database, "run").id, "a")
    assert (simulator.state, simulator.steps, simulator.left_at, simulator.leave_code) == ("connected", 0, None, None)


CRASH = "the game crashed: ValueError: level file missing (jumper.py:65)"


def test_a_crash_that_is_reported_before_the_trainer_reports_the_simulator_is_why_it_left(
    database: Database, placement: Placement
) -> None:
    ledger = make_ledger(database, name="run")
    ledger.listening(ENDPOINTS)
    placement.join("run", "a")
    placement.report("run", "a", "game_crashed", CRASH)
    ledger.simulators.connected("a", number=0, collector=0)
    ledger.simulators.left("a", code="disconnected", reason="the connection to the simulator was lost", steps=0)

    with database.read() as session:
        simulator = SimulatorRepository(session).get(read_run(database, "run").id, "a")
    assert (simulator.leave_code, simulator.leave_reason) == ("game_crashed", CRASH)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_simulator_whose_game_has_reported_its_crash_left_for_that(
    database: Database, placement: Placement, is_late: bool
) -> None:
    ledger = make_ledger(database, name="run")
    ledger.simulators.connected("a", number=0, collector=0)
    if not is_late:
        placement.report("run", "a", "game_crashed", CRASH)
    ledger.simulators.left("a", code="disconnected", reason="the connection to the simulator was lost", steps=7)
    if is_late:
        placement.report("run", "a", "game_crashed", CRASH)

    run_id = read_run(database, "run").id
    with database.read() as session:
        simulator = SimulatorRepository(session).get(run_id, "a")
        left = [event for event in EventRepository(session).page(run_id) if event.type == "simulator_left"]

    assert (simulator.leave_code, simulator.leave_reason) == ("game_crashed", CRASH)
    if not is_late:
        assert [(event.message, event.data["code"]) for event in left] == [
            (f"Simulator 0 left: {CRASH}", "game_crashed")
        ]


def test_a_report_of_something_else_leaves_the_reason_of_the_end_alone(
    database: Database, placement: Placement
) -> None:
    ledger = make_ledger(database, name="run")
    ledger.simulators.connected("a", number=0, collector=0)
    placement.report("run", "a", "stopped_calling", "It hangs.")
    ledger.simulators.left("a", code="not_finite", reason="a reward is nan", steps=7)
    placement.report("run", "a", "game_crashed", CRASH)

    with database.read() as session:
        simulator = SimulatorRepository(session).get(read_run(database, "run").id, "a")

    assert simulator.leave_code == "not_finite"


def test_a_refused_session_leaves_an_event_even_if_nobody_knows_the_simulator(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.simulators.left("", code="bad_hello", reason="The first message could not be read.", steps=0)
    ledger.simulators.connected("a", number=0, collector=0)
    ledger.simulators.left("a", code="left", reason="It closed its stream.", steps=7)
    ledger.simulators.left("a", code="spec_conflict", reason="obs_0 has another shape than before.", steps=0)

    with database.read() as session:
        events = EventRepository(session).page(read_run(database, "run").id)[-4:]

    assert [(event.type, event.level, event.data.get("code")) for event in events] == [
        ("simulator_refused", "warning", "bad_hello"),
        ("simulator_connected", "info", None),
        ("simulator_left", "info", "left"),
        ("simulator_refused", "warning", "spec_conflict"),
    ]


def awaited_seconds(database: Database, run: str) -> float:
    """Return for how many seconds a game still counts as waiting for a run; negative: it is over."""
    with database.read() as session:
        return (read_run(database, run).awaited_until or 0.0) - SimulatorRepository(session).clock()


def test_a_game_that_waits_marks_its_run_for_a_while_and_writes_once_in_a_quarter_of_it(database: Database) -> None:
    placement = Placement(database, awaited_seconds=1000)
    make_run(database, name="run")
    placement.join("run", "inc")
    first = read_run(database, "run").awaited_until
    assert 990 < awaited_seconds(database, "run") <= 1000

    placement.join("run", "another")
    assert read_run(database, "run").awaited_until == first
    shift_mark(database, -260)
    placement.join("run", "another")

    assert 990 < awaited_seconds(database, "run") <= 1000


def test_a_game_that_waits_costs_no_statement_for_its_mark_while_the_mark_holds(database: Database) -> None:
    placement = Placement(database, awaited_seconds=1000)
    run = make_run(database, name="run")
    statements = []

    def ask() -> list[str]:
        statements.clear()
        placement.join(run.id, "inc")
        return [statement for statement in statements if "awaited_until" in statement]

    ask()
    for engine in {database._reader, database.engine}:
        event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    assert len(set(ask())) == 1, "the run is read"


@pytest.mark.parametrize(
    ("state", "marked"),
    [("QUEUED", True), ("RECOVERING", True), ("STARTING", True), ("PAUSING", False), ("PAUSED", False)],
)
def test_only_a_run_at_whose_mark_a_scheduler_looks_is_marked(database: Database, state: str, *, marked: bool) -> None:
    run = make_run(database, name="run")
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run.id).values(state=state))

    assert isinstance(Placement(database).join("run", "inc"), NotReady)
    assert (read_run(database, "run").awaited_until is not None) is marked


def shift_mark(database: Database, seconds: float) -> None:
    with database.write() as session:
        session.execute(update(Run).values(awaited_until=Run.awaited_until + seconds))


def test_a_game_waits_until_the_trainer_listens_and_one_that_gets_a_place_writes_no_mark(
    database: Database, placement: Placement
) -> None:
    ledger = make_ledger(database, name="run", state=RunState.STARTING)
    assert isinstance(placement.join("run", "inc"), NotReady)
    assert awaited_seconds(database, "run") > 0
    ledger.listening(ENDPOINTS)
    shift_mark(database, -1000)

    assert isinstance(placement.join("run", "inc"), Assigned)
    assert awaited_seconds(database, "run") < 0


def test_an_edge_collector_that_waits_marks_its_run(database: Database, placement: Placement) -> None:
    make_run(database, name="run", config={**CONFIG, "simulators": {"collectors": {"edge": 1}}})

    assert isinstance(placement.place_collector("run"), NotReady)
    assert awaited_seconds(database, "run") > 0


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_game_does_not_wait_for_a_run_that_is_locked_to_mark_it(database: Database) -> None:
    run = make_run(database, name="run")
    impatient = Database(database.url, busy_seconds=30)
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run.id).values(name="run"))

        assert isinstance(Placement(impatient).join("run", "inc"), NotReady)
    impatient.close()
    assert awaited_seconds(database, "run") < 0, "it asks again"
