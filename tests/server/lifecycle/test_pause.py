"""Pausing and resuming, by users and by the simulators' absence: what the row says, and who outranks whom."""

import pytest

from ludus.schemas.states import RunState, StopReason
from server.kit.db.database import Database
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import RunEnding, RunNotPaused, RunService
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from server.runs.repository import RunRepository
from server.simulators.repository import Assigned, NotReady, Placement
from tests.factories import CONFIG, RecordingWakeUp, make_checkpoint, make_claim, make_ledger, make_run, read_run


def do(database: Database, verb: str, run: str, wake_up: RecordingWakeUp | None = None) -> Run:
    with database.write() as session:
        return getattr(RunService(session, wake_up or RecordingWakeUp()), verb)(run)  # type: ignore[no-any-return]


def events(database: Database, run: str) -> list[str]:
    with database.read() as session:
        return [event.type for event in EventRepository(session).page(RunRepository(session).id_of(run))]


def paused_for(database: Database, reason: StopReason, **overrides: object) -> AttemptLedger:
    """A run that has paused."""
    ledger = make_ledger(database, name="run", **overrides)
    ledger.checkpoints.add(make_checkpoint(700))
    ledger.move(RunState.PAUSING, reason=reason)
    ledger.move(RunState.PAUSED, reason=reason)
    return ledger


def test_a_live_run_learns_of_the_pause_with_its_next_heartbeat(database: Database) -> None:
    ledger = make_ledger(database, name="run")

    asked = do(database, "pause", "run")
    do(database, "pause", "run")

    assert (asked.state, asked.intent) == (RunState.RUNNING, Intent.PAUSE)
    assert ledger.heartbeat(10, 0).intent is Intent.PAUSE
    assert events(database, "run").count("pause_requested") == 1


def test_a_pause_frees_the_worker_and_ends_the_wish(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    do(database, "pause", "run")

    ledger.move(RunState.PAUSING, reason=StopReason.USER)
    ledger.move(RunState.PAUSED, reason=StopReason.USER, detail="paused on request")

    run = read_run(database, "run")
    assert (run.state, run.stop_reason, run.intent) == (RunState.PAUSED, StopReason.USER, None)
    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(run.id)
    assert (attempt.outcome, attempt.lease_expires_at) == ("paused", None)


@pytest.mark.parametrize("reason", [StopReason.USER, StopReason.SIMULATORS_LOST])
def test_a_paused_run_is_queued_again_and_goes_on_from_its_newest_checkpoint(
    database: Database, wake_up: RecordingWakeUp, reason: StopReason
) -> None:
    paused_for(database, reason)

    resumed = do(database, "resume", "run", wake_up)

    assert (resumed.state, resumed.stop_reason, resumed.intent) == (RunState.QUEUED, None, None)
    assert wake_up.woken == [resumed.id]
    claim = make_claim(database)
    assert (claim.attempt, claim.resume and claim.resume.step) == (2, 700)


def test_a_run_that_no_worker_holds_pauses_at_once(database: Database) -> None:
    make_ledger(database, name="lost").release("trainer_lost", "Gone.")
    make_run(database, name="waiting")
    assert read_run(database, "lost").state == RunState.RECOVERING

    for name in ("waiting", "lost"):
        paused = do(database, "pause", name)
        assert (paused.state, paused.stop_reason) == (RunState.PAUSED, StopReason.USER)
        assert events(database, name)[-1] == "run_paused"


def test_pausing_a_paused_run_changes_nothing(database: Database) -> None:
    paused_for(database, StopReason.USER)
    before = events(database, "run")

    assert do(database, "pause", "run").state == RunState.PAUSED
    assert events(database, "run") == before


def test_a_run_that_lost_its_simulators_stays_paused_once_a_user_wants_so(database: Database) -> None:
    paused_for(database, StopReason.SIMULATORS_LOST)

    do(database, "pause", "run")

    assert read_run(database, "run").stop_reason == StopReason.USER
    answer = Placement(database).join("run", "somebody")
    assert isinstance(answer, NotReady)
    assert read_run(database, "run").state == RunState.PAUSED


def test_a_pause_that_was_asked_for_is_no_loss_of_simulators(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    do(database, "pause", "run")

    ledger.move(RunState.PAUSING, reason=StopReason.SIMULATORS_LOST)
    ledger.move(RunState.PAUSED, reason=StopReason.SIMULATORS_LOST)

    assert read_run(database, "run").stop_reason == StopReason.USER


@pytest.mark.parametrize(
    ("verb", "goal"), [("stop", RunState.SUCCEEDED), ("cancel", RunState.CANCELLED)], ids=["stop", "cancel"]
)
def test_what_outranks_a_pause_comes_true_although_the_run_pauses_first(
    database: Database, verb: str, goal: RunState
) -> None:
    ledger = make_ledger(database, name="run")
    do(database, "pause", "run")
    ledger.move(RunState.PAUSING, reason=StopReason.USER)

    do(database, verb, "run")
    ledger.move(RunState.PAUSED, reason=StopReason.USER)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (goal, StopReason.USER)
    assert events(database, "run")[-2] == "run_paused"


@pytest.mark.parametrize("verb", ["stop", "cancel"])
def test_a_run_that_is_about_to_end_does_not_pause(database: Database, verb: str) -> None:
    make_ledger(database, name="run")
    do(database, verb, "run")

    with pytest.raises(RunEnding, match=f"a request to {verb} it came before"):
        do(database, "pause", "run")


def test_resuming_what_is_not_paused_says_what_it_is(database: Database) -> None:
    make_run(database, name="run")
    with pytest.raises(RunNotPaused, match="is QUEUED, not PAUSED: there is nothing to resume"):
        do(database, "resume", "run")

    AttemptLedger(database, make_claim(database)).move(RunState.RUNNING)
    do(database, "pause", "run")
    with pytest.raises(RunNotPaused, match="is RUNNING, not PAUSED: it is about to pause; wait for PAUSED"):
        do(database, "resume", "run")


@pytest.mark.parametrize("orderly", [True, False])
def test_a_run_that_was_to_pause_is_paused_when_its_worker_is_lost(database: Database, orderly: bool) -> None:
    ledger = make_ledger(database, name="run")
    ledger.checkpoints.add(make_checkpoint(700))
    do(database, "pause", "run")

    ledger.release("released" if orderly else "trainer_lost", "Gone.")

    run = read_run(database, "run")
    assert (run.state, run.stop_reason, run.intent) == (RunState.PAUSED, StopReason.USER, None)
    assert run.stop_detail == "Gone. Its newest checkpoint is of step 700."


def test_a_simulator_that_comes_back_wakes_the_run_and_a_worker(database: Database, wake_up: RecordingWakeUp) -> None:
    paused_for(database, StopReason.SIMULATORS_LOST)

    answer = Placement(database, wake_up).join("run", "somebody")

    assert isinstance(answer, NotReady)
    assert read_run(database, "run").state == RunState.QUEUED
    assert read_run(database, "run").awaited_until is not None, "it goes before runs without a game"
    assert wake_up.woken == [read_run(database, "run").id]


def test_a_run_that_shall_not_go_on_by_itself_waits_for_a_user(database: Database, wake_up: RecordingWakeUp) -> None:
    paused_for(database, StopReason.SIMULATORS_LOST, config={**CONFIG, "simulators": {"auto_resume": False}})

    answer = Placement(database, wake_up).join("run", "somebody")

    assert isinstance(answer, NotReady)
    assert "simulators.auto_resume is false" in answer.reason
    assert (read_run(database, "run").state, wake_up.woken) == (RunState.PAUSED, [])
    assert do(database, "resume", "run").state == RunState.QUEUED


def test_nobody_is_sent_to_a_run_that_is_pausing(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.listening([{"address": "127.0.0.1:4000", "index": 0}])
    assert isinstance(Placement(database).join("run", "early"), Assigned)

    ledger.move(RunState.PAUSING, reason=StopReason.USER)

    assert isinstance(Placement(database).join("run", "late"), NotReady)


def test_a_run_that_a_user_paused_is_woken_by_nobody(database: Database, wake_up: RecordingWakeUp) -> None:
    paused_for(database, StopReason.USER)

    answer = Placement(database, wake_up).join("run", "somebody")

    assert isinstance(answer, NotReady)
    assert "PAUSED (user); it continues when a user resumes it" in answer.reason
    assert (read_run(database, "run").state, wake_up.woken) == (RunState.PAUSED, [])
