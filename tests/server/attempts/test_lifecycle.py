"""A run's life as a state machine: users, a worker and the steward in any order, against the table of moves."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import booleans, sampled_from

from server.attempts.repository import AttemptLedger, RunQueue
from server.db.database import Database
from server.errors import IllegalTransition, LeaseLost
from server.events.repository import EventRepository
from server.leases.repository import LeaseRepository
from server.runs.models import Run
from server.runs.repository import RunRepository
from server.runs.service import RunService
from server.runs.states import LEASED, TERMINAL, TRANSITIONS, Intent, RunState, StopReason
from tests.factories import RecordingBell, make_checkpoint, make_run

MOVES = sorted(RunState)
BUDGET = 2


class Life(RuleBasedStateMachine):
    """The model is small: which attempts exist, which one holds the run, and what the row said last."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp())
        shutil.copy(self.template, self._folder / "ludus.db")
        self._database = Database(f"sqlite:///{self._folder / 'ludus.db'}", synchronous="OFF")
        self._ledgers: list[AttemptLedger] = []
        self._saved = 0
        self._final: tuple[Any, ...] | None = None

    def teardown(self) -> None:
        self._database.close()
        shutil.rmtree(self._folder)

    @initialize()
    def create(self) -> None:
        self._id = make_run(self._database).id

    @rule()
    def claim(self) -> None:
        before = self._run()
        claim = RunQueue(self._database).claim("worker", 100)
        assert (claim is not None) == (before.state in {RunState.QUEUED, RunState.RECOVERING})
        if claim is not None:
            assert claim.epoch == before.epoch + 1
            self._ledgers.append(AttemptLedger(self._database, claim, restart_budget=BUDGET))

    @precondition(lambda self: self._ledgers)
    @rule(to=sampled_from(MOVES))
    def move(self, to: RunState) -> None:
        before = self._run()
        holds = before.state in LEASED
        reason = StopReason.DIVERGED if to in {RunState.FAILED, RunState.PAUSING, RunState.PAUSED} else None
        try:
            self._ledgers[-1].move(to, reason=reason)
        except LeaseLost:
            assert not holds
        except IllegalTransition:
            assert to not in TRANSITIONS[RunState(before.state)]
        else:
            assert holds
            assert to == before.state or to in TRANSITIONS[RunState(before.state)]
            assert self._run().state == to

    @precondition(lambda self: len(self._ledgers) > 1)
    @rule(to=sampled_from(MOVES))
    def move_by_an_old_attempt(self, to: RunState) -> None:
        with pytest.raises(LeaseLost):
            self._ledgers[0].move(to, reason=StopReason.TRAINER_ERROR)

    @precondition(lambda self: self._ledgers)
    @rule()
    def save(self) -> None:
        self._saved += 100
        try:
            self._ledgers[-1].checkpoint(make_checkpoint(self._saved, path=f"p/{self._saved}"))
        except LeaseLost:
            assert self._run().state not in LEASED
        else:
            assert self._run().restarts_without_progress == 0

    @precondition(lambda self: self._ledgers)
    @rule(orderly=booleans())
    def release(self, orderly: bool) -> None:
        before = self._run()
        try:
            self._ledgers[-1].release("released" if orderly else "trainer_lost", "Gone.")
        except LeaseLost:
            assert before.state not in LEASED
        else:
            self._lapsed(before, charged=not orderly)

    @precondition(lambda self: self._ledgers and self._run().state in LEASED)
    @rule()
    def lose_the_worker(self) -> None:
        self._ledgers[-1].heartbeat(-1, 0)
        before = self._run()
        with self._database.write() as session:
            leases = LeaseRepository(session)
            (lease,) = leases.expired()
            assert leases.reap(lease, BUDGET) == self._lapsed(before, charged=True, check=False)
            assert leases.expired() == []

    @rule()
    def stop(self) -> None:
        self._wish("stop", RunState.SUCCEEDED)

    @rule()
    def cancel(self) -> None:
        self._wish("cancel", RunState.CANCELLED)

    @invariant()
    def the_row_tells_a_legal_story(self) -> None:
        run = self._run()
        with self._database.read() as session:
            events = EventRepository(session).page(self._id, limit=1000)
            attempts = RunRepository(session).attempts(self._id)
        assert [event.seq for event in events] == list(range(1, run.event_seq + 1))
        path = [(event.data["from"], event.data["to"]) for event in events if "to" in event.data]
        assert all(RunState(to) in TRANSITIONS[RunState(from_)] for from_, to in path)
        assert [from_ for from_, _ in path[1:]] == [to for _, to in path[:-1]]
        assert run.state == (path[-1][1] if path else RunState.QUEUED)
        assert [attempt.epoch for attempt in attempts] == list(range(1, run.epoch + 1))
        live = [attempt.epoch for attempt in attempts if attempt.ended_at is None]
        assert live == ([run.epoch] if run.state in LEASED else [])

    @invariant()
    def a_finished_run_never_changes(self) -> None:
        run = self._run()
        now = (run.state, run.stop_reason, run.epoch, run.event_seq, run.finished_at, run.updated_at)
        assert self._final in {None, now}
        if run.state in TERMINAL:
            assert run.stop_reason is not None
            assert run.finished_at is not None
            assert run.intent is None
            self._final = now

    def _wish(self, verb: str, goal: RunState) -> None:
        before = self._run()
        try:
            with self._database.write() as session:
                after = getattr(RunService(session, RecordingBell()), verb)(self._id)
        except IllegalTransition:
            assert before.state in TERMINAL
            return
        if before.state in LEASED:
            assert after.state == before.state
            assert after.intent in {Intent.CANCEL, verb}
        else:
            assert (after.state, after.stop_reason) == (goal, StopReason.USER)

    def _lapsed(self, before: Run, *, charged: bool, check: bool = True) -> RunState:
        """Say, and check, what becomes of a run whose attempt did not finish it."""
        if before.intent == Intent.CANCEL:
            expected = RunState.CANCELLED
        elif before.intent == Intent.STOP:
            expected = RunState.SUCCEEDED
        elif before.restarts_without_progress + charged > BUDGET:
            expected = RunState.FAILED
        else:
            expected = RunState.RECOVERING
        assert not check or self._run().state == expected
        return expected

    def _run(self) -> Run:
        with self._database.read() as session:
            return RunRepository(session).get(self._id)


def test_any_order_of_events_is_a_legal_life(sqlite_template: Path) -> None:
    class Bound(Life):
        template = sqlite_template

    limits = settings(
        max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(Bound, settings=limits)
