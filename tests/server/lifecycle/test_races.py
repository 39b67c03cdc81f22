"""Two parties want something of a run at the same moment: one wins, the other is told what it finds.

Real concurrency: threads with connections of their own, let go by a barrier, round after round; no sleeps. What every
order must have in common is asserted, not which order it was. On PostgreSQL transactions run side by side and meet at
the row's lock; on SQLite one writes after the other.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.models import CheckpointRequest
from server.checkpoints.repository import CheckpointRequestRepository
from server.checkpoints.service import request_checkpoint
from server.kit.db.database import Database
from server.kit.errors import LeaseLost, LudusError, RunEnded
from server.kit.states import TRANSITIONS, Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunEnding, RunNotPaused, RunService
from server.runs.amendments import AmendmentRepository, AmendmentService, RunChanges
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from server.runs.repository import RunNotRunning, RunRepository
from server.simulators.repository import NotReady, Placement
from tests.factories import RecordingWakeUp, make_checkpoint, make_claim, make_ledger, make_run, read_run

ROUNDS = 8
Act = Callable[[], Any]


def race(*acts: Act) -> list[Any]:
    """Do everything at the same moment; return what each returned, or the error that it was answered with."""
    gate = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(place: int, act: Act) -> None:
        gate.wait(10)
        try:
            results[place] = act()
        except LudusError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a standstill"
    return results


def user(database: Database, verb: str, run: str) -> Act:
    """What a request over HTTP does."""

    def act() -> Run:
        with database.write() as session:
            return getattr(RunService(session, RecordingWakeUp()), verb)(run)  # type: ignore[no-any-return]

    return act


def worker(database: Database, name: str = "worker") -> Act:
    return lambda: RunQueue(database).claim(name, 10)


def ends(ledger: AttemptLedger, to: RunState = RunState.SUCCEEDED) -> Act:
    return lambda: ledger.move(to)


def pauses(ledger: AttemptLedger, reason: StopReason = StopReason.USER) -> Act:
    def act() -> None:
        ledger.move(RunState.PAUSING, reason=reason)
        ledger.move(RunState.PAUSED, reason=reason)

    return act


def paused(database: Database, reason: StopReason) -> str:
    ledger = make_ledger(database)
    ledger.checkpoints.add(make_checkpoint(700, path=f"p/{ledger.run_id}"))
    pauses(ledger, reason)()
    return ledger.run_id


@pytest.fixture
def rounds(database: Database) -> Iterator[Callable[[], range]]:
    """Rounds of a race, each of which must leave every run with a legal story, told without gaps."""
    yield lambda: range(ROUNDS)
    with database.read() as session:
        for run in RunRepository(session).list().items:
            events = EventRepository(session).page(run.id, limit=1000)
            assert [event.seq for event in events] == list(range(1, run.event_seq + 1))
            path = [(event.data["from"], event.data["to"]) for event in events if "to" in event.data]
            assert all(RunState(to) in TRANSITIONS[RunState(from_)] for from_, to in path)
            assert [from_ for from_, _ in path[1:]] == [to for _, to in path[:-1]], "one event for each move"
            numbers = [event.attempt for event in events if event.attempt is not None]
            assert numbers == sorted(numbers), "attempt numbers never fall"


def test_stop_against_claim(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        run = make_run(database).id

        stopped, claim = race(user(database, "stop", run), worker(database))

        after = read_run(database, run)
        if claim is None:
            assert (after.state, stopped.state) == (RunState.SUCCEEDED, RunState.SUCCEEDED)
        else:
            assert (after.state, after.intent) == (RunState.STARTING, Intent.STOP)
            assert stopped.intent == Intent.STOP, "the user was told that it is only asked for"
            AttemptLedger(database, claim).move(RunState.CANCELLED)


def test_pause_against_claim(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        run = make_run(database).id

        asked, claim = race(user(database, "pause", run), worker(database))

        after = read_run(database, run)
        if claim is None:
            assert (after.state, asked.state) == (RunState.PAUSED, RunState.PAUSED)
        else:
            assert (after.state, asked.intent) == (RunState.STARTING, Intent.PAUSE)
            assert AttemptLedger(database, claim).heartbeat(10, 0).intent is Intent.PAUSE
            AttemptLedger(database, claim).move(RunState.CANCELLED)


def test_pause_against_the_end(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)
        run = ledger.run_id

        asked, ended = race(user(database, "pause", run), ends(ledger))

        after = read_run(database, run)
        assert (ended, after.state, after.stop_reason) == (None, RunState.SUCCEEDED, StopReason.COMPLETED)
        assert after.intent is None
        if isinstance(asked, RunEnded):
            assert "is SUCCEEDED: it has ended" in str(asked)
        else:
            assert (asked.state, asked.intent) == (RunState.RUNNING, Intent.PAUSE)


def test_cancel_against_the_end(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)
        run = ledger.run_id

        asked, ended = race(user(database, "cancel", run), ends(ledger))

        assert (ended, read_run(database, run).state) == (None, RunState.SUCCEEDED)
        assert (asked.state, asked.intent) in {(RunState.RUNNING, Intent.CANCEL), (RunState.SUCCEEDED, None)}


def test_cancel_against_the_pause(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)
        run = ledger.run_id

        asked, _ = race(user(database, "cancel", run), pauses(ledger))

        assert read_run(database, run).state == RunState.CANCELLED, "whoever was first: it was promised"
        assert isinstance(asked, Run)


def test_pause_against_stop(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)

        asked, stopped = race(user(database, "pause", ledger.run_id), user(database, "stop", ledger.run_id))

        assert stopped.intent == Intent.STOP
        assert isinstance(asked, RunEnding) or asked.intent == Intent.PAUSE
        assert ledger.heartbeat(10, 0).intent is Intent.STOP, "it outranks the pause in either order"
        ledger.move(RunState.SUCCEEDED)


@pytest.mark.parametrize("reason", [StopReason.USER, StopReason.SIMULATORS_LOST])
def test_of_two_resumes_one_wins(database: Database, rounds: Callable[[], range], reason: StopReason) -> None:
    for _ in rounds():
        run = paused(database, reason)

        answers = race(user(database, "resume", run), user(database, "resume", run))

        kinds = Counter(type(answer) for answer in answers)
        assert kinds == {Run: 1, RunNotPaused: 1}
        (loser,) = [answer for answer in answers if isinstance(answer, RunNotPaused)]
        assert "is QUEUED, not PAUSED: there is nothing to resume" in str(loser)
        AttemptLedger(database, make_claim(database)).move(RunState.CANCELLED)


@pytest.mark.long
def test_resume_against_a_simulator_that_comes_back(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        run = paused(database, StopReason.SIMULATORS_LOST)

        resumed, joined = race(user(database, "resume", run), lambda run=run: Placement(database).join(run, "somebody"))

        assert isinstance(joined, NotReady)
        assert isinstance(resumed, Run | RunNotPaused)
        with database.read() as session:
            queued = [event for event in EventRepository(session).page(run) if event.type == "run_queued"]
        assert len(queued) == 1, "it was queued once"
        assert ("user" in queued[0].message) == isinstance(resumed, Run), "by the one who was told so"
        AttemptLedger(database, make_claim(database)).move(RunState.CANCELLED)


def test_a_users_pause_against_a_simulator_that_comes_back(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        run = paused(database, StopReason.SIMULATORS_LOST)

        asked, _ = race(user(database, "pause", run), lambda run=run: Placement(database).join(run, "somebody"))

        after = read_run(database, run)
        assert (after.state, after.stop_reason, asked.state) == (RunState.PAUSED, StopReason.USER, RunState.PAUSED)


def test_checkpoint_against_pause(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)
        run = ledger.run_id
        saved = ledger.checkpoints.add(make_checkpoint(700, path=f"p/{run}"))

        def ask(run: str = run) -> CheckpointRequest:
            with database.write() as session:
                return request_checkpoint(session, run)

        asked, _ = race(ask, pauses(ledger))

        assert read_run(database, run).state == RunState.PAUSED
        if isinstance(asked, RunNotRunning):
            assert f"its newest checkpoint, {saved}" in str(asked)
        else:
            with database.read() as session:
                assert CheckpointRequestRepository(session).get(run, asked.seq).checkpoint_id == saved


def test_two_changes_follow_one_another(database: Database, rounds: Callable[[], range]) -> None:
    run = make_run(database).id

    def change(value: float) -> Act:
        def act() -> Run:
            changes = RunChanges(behaviors={"CartPole": {"hyperparameters": {"learning_rate": value}}})
            with database.write() as session:
                return AmendmentService(session).change(run, changes)

        return act

    for number in rounds():
        race(change(1e-4 / (2 * number + 1)), change(1e-4 / (2 * number + 2)))

    with database.read() as session:
        found = AmendmentRepository(session).list(run)
    assert [each.seq for each in found] == list(range(1, 2 * ROUNDS + 1))
    values = [(each.changes[0]["old"], each.changes[0]["new"]) for each in found]
    assert [old for old, _ in values[1:]] == [new for _, new in values[:-1]], "each began where the last one ended"
    now = read_run(database, run).config["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"]
    assert now == values[-1][1]


def test_a_lease_that_runs_out_against_the_end_of_the_run(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        ledger = make_ledger(database)
        run = ledger.run_id
        ledger.heartbeat(-1, 0)

        def reap() -> RunState | None:
            with database.write() as session:
                leases = LeaseRepository(session)
                return next((leases.reap(lease, 3) for lease in leases.expired()), None)

        ended, reaped = race(ends(ledger), reap)

        after = read_run(database, run)
        if isinstance(ended, LeaseLost):
            assert (reaped, after.state) == (RunState.RECOVERING, RunState.RECOVERING)
            user(database, "cancel", run)()
        else:
            assert (reaped, after.state) == (None, RunState.SUCCEEDED)


def test_of_four_workers_one_gets_the_run(database: Database, rounds: Callable[[], range]) -> None:
    for _ in rounds():
        make_run(database)

        claims = [each for each in race(*(worker(database, f"w{n}") for n in range(4))) if isinstance(each, Claim)]

        assert len(claims) == 1
        AttemptLedger(database, claims[0]).move(RunState.CANCELLED)
