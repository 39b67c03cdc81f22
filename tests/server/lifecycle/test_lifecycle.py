"""A run's life as a state machine: users, a worker and the controller in any order, against the table of moves."""

import shutil
import tempfile
from contextlib import nullcontext
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
from hypothesis.strategies import booleans, integers, sampled_from

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.repository import CheckpointRequestRepository
from server.checkpoints.service import request_checkpoint
from server.controller.controller import Controller
from server.controller.notifier import WakeUpNotifier
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.errors import IllegalTransition, LeaseLost, RunEnded
from server.kit.settings import Settings
from server.kit.states import LEASED, TERMINAL, TRANSITIONS, Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunEnding, RunNotPaused, RunService
from server.runs.amendments import AmendmentService, RunChanges
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from server.runs.repository import RunNotRunning, RunRepository
from server.simulators.models import RunClosed
from server.simulators.repository import Placement
from tests.conftest import NEEDS_POSTGRESQL, postgresql_database
from tests.examples import examples
from tests.factories import RecordingWakeUp, make_checkpoint, make_run

MOVES = sorted(RunState)
BUDGET = 2
SETTINGS = Settings()
ENDS = {Intent.STOP: RunState.SUCCEEDED, Intent.CANCEL: RunState.CANCELLED}
"""What becomes of a run that pauses although a user has asked for its end."""


class Life(RuleBasedStateMachine):
    """The model is small: which attempts exist, which one holds the run, and what the row said last."""

    def __init__(self) -> None:
        super().__init__()
        self._database = self.open()
        self._wake_up = RecordingWakeUp()
        self._clock = 0.0
        self._controller = Controller(self._database, self._wake_up, SETTINGS, lambda: self._clock).loop()
        self._ringer = WakeUpNotifier(self._database, self._wake_up, SETTINGS, lambda: self._clock)
        self._ledgers: list[AttemptLedger] = []
        self._epoch = 0
        self._amendments = 0
        self._requests: list[int] = []
        self._saved = 0
        self._final: tuple[Any, ...] | None = None

    def open(self) -> Database:
        """Return a migrated database, without a run that waits for a worker."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""

    def teardown(self) -> None:
        if self._run().state not in TERMINAL:
            with self._database.write() as session:
                RunService(session, self._wake_up).cancel(self._id)
        if self._run().state in LEASED:
            self._ledgers[-1].move(RunState.CANCELLED)
        self._database.close()
        self.close()

    @initialize()
    def create(self) -> None:
        self._id = make_run(self._database).id

    @rule()
    def claim(self) -> None:
        before = self._run()
        claim = RunQueue(self._database).claim("worker", 100)
        assert claim is None or claim.run_id == self._id
        assert (claim is not None) == (before.state in {RunState.QUEUED, RunState.RECOVERING})
        if claim is not None:
            assert claim.attempt == before.attempt + 1
            assert len(claim.amendments) == self._amendments
            self._ledgers.append(AttemptLedger(self._database, claim, restart_budget=BUDGET))

    @precondition(lambda self: self._ledgers)
    @rule(to=sampled_from(MOVES))
    def move(self, to: RunState) -> None:
        before = self._run()
        holds = before.state in LEASED
        wanted = before.intent if to is RunState.PAUSED and before.state != to else None
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
            after = self._run()
            assert after.state == ENDS.get(wanted or "", to), "what a user was promised comes true"
            if after.state == RunState.PAUSED and wanted == Intent.PAUSE:
                assert after.stop_reason == StopReason.USER

    @precondition(lambda self: len(self._ledgers) > 1)
    @rule(to=sampled_from(MOVES))
    def move_by_an_old_attempt(self, to: RunState) -> None:
        with pytest.raises(LeaseLost):
            self._ledgers[0].move(to, reason=StopReason.TRAINER_ERROR)

    @precondition(lambda self: len(self._ledgers) > 1)
    @rule()
    def report_by_an_old_attempt(self) -> None:
        old = self._ledgers[0]
        for write in (
            lambda: old.heartbeat(100, 1),
            lambda: old.event("late", "Too late."),
            lambda: old.checkpoints.add(make_checkpoint(10**6, path="late")),
            lambda: old.amendments.applied(1, [], 0),
            lambda: old.release("trainer_lost", "Late."),
        ):
            with pytest.raises(LeaseLost):
                write()

    @precondition(lambda self: self._ledgers)
    @rule(step=integers(0, 10**6))
    def heartbeat(self, step: int) -> None:
        before = self._run()
        try:
            intent = self._ledgers[-1].heartbeat(100, step).intent
        except LeaseLost:
            assert before.state not in LEASED
        else:
            assert intent == (before.intent or Intent.NONE)
            assert self._run().step == step

    @rule()
    def look_after_all(self) -> None:
        """A round of the controller: the run lives, or waits; nothing but a ring may come of it."""
        before = self._run()
        self._clock += 5.0
        self._controller.tick()
        self._ringer.tick()
        assert self._run().event_seq == before.event_seq

    @precondition(lambda self: self._ledgers)
    @rule()
    def save(self) -> None:
        self._saved += 100
        wanted = self._ledgers[-1].checkpoints.requested()
        try:
            self._ledgers[-1].checkpoints.add(make_checkpoint(self._saved, path=f"{self._id}/{self._saved}"), wanted)
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

    @rule()
    def pause(self) -> None:
        before = self._run()
        try:
            with self._database.write() as session:
                after = RunService(session, self._wake_up).pause(self._id)
        except RunEnded:
            assert before.state in TERMINAL
        except RunEnding:
            assert before.intent in {Intent.STOP, Intent.CANCEL} or before.state == RunState.STOPPING
        else:
            if before.state in LEASED:
                assert (after.state, after.intent) == (before.state, Intent.PAUSE)
            else:
                assert (after.state, after.intent) == (RunState.PAUSED, None)
                assert after.stop_reason == StopReason.USER

    @rule()
    def resume(self) -> None:
        before = self._run()
        rings = len(self._wake_up.woken)
        try:
            with self._database.write() as session:
                after = RunService(session, self._wake_up).resume(self._id)
        except RunEnded:
            assert before.state in TERMINAL
        except RunNotPaused:
            assert before.state not in {RunState.PAUSED, *TERMINAL}
        else:
            assert before.state == RunState.PAUSED
            assert (after.state, after.stop_reason, after.intent) == (RunState.QUEUED, None, None)
            assert after.restarts_without_progress == 0
            assert self._wake_up.woken[rings:] == [self._id]

    @rule()
    def come_back(self) -> None:
        """A simulator joins."""
        before = self._run()
        with pytest.raises(RunClosed) if before.state in TERMINAL else nullcontext():
            Placement(self._database, self._wake_up).join(self._id, "somebody")
        forsaken = before.state == RunState.PAUSED and before.stop_reason == StopReason.SIMULATORS_LOST
        assert self._run().state == (RunState.QUEUED if forsaken else before.state)

    @precondition(lambda self: self._run().state in LEASED and self._run().state != RunState.STOPPING)
    @rule()
    def lose_the_simulators(self) -> None:
        before = self._run()
        for to in (RunState.PAUSING, RunState.PAUSED):
            self._ledgers[-1].move(to, reason=StopReason.SIMULATORS_LOST)
        after = self._run()
        assert after.state == ENDS.get(before.intent or "", RunState.PAUSED)
        if after.state == RunState.PAUSED:
            by_a_user = before.intent == Intent.PAUSE
            assert after.stop_reason == (StopReason.USER if by_a_user else StopReason.SIMULATORS_LOST)

    @rule(step=integers(1, 10**6))
    def change(self, step: int) -> None:
        before = self._run()
        changes = RunChanges(behaviors={"CartPole": {"max_steps": step}})
        try:
            with self._database.write() as session:
                after = AmendmentService(session).change(self._id, changes)
        except RunEnded:
            assert before.state in TERMINAL
        else:
            assert after.state == before.state
            assert after.config["behaviors"]["CartPole"]["max_steps"] == step
            self._amendments += before.config["behaviors"]["CartPole"]["max_steps"] != step

    @rule()
    def ask_for_a_checkpoint(self) -> None:
        before = self._run()
        try:
            with self._database.write() as session:
                request = request_checkpoint(session, self._id)
        except RunEnded:
            assert before.state in TERMINAL
        except RunNotRunning:
            assert before.state not in {RunState.RUNNING, *TERMINAL}
        else:
            assert before.state == RunState.RUNNING
            self._requests = sorted({*self._requests, request.seq})

    @invariant()
    def no_request_is_forgotten(self) -> None:
        """Whoever asked for a checkpoint gets an answer by the time that the run pauses or ends."""
        run = self._run()
        with self._database.read() as session:
            found = [CheckpointRequestRepository(session).get(run.id, seq) for seq in self._requests]
        assert self._requests == list(range(1, len(found) + 1))
        assert sum(each.answered_at is None for each in found) <= (run.state not in {RunState.PAUSED, *TERMINAL})
        assert all((each.checkpoint_id is None) != (each.problem is None) for each in found if each.answered_at)

    @invariant()
    def the_epoch_never_falls(self) -> None:
        attempt = self._run().attempt
        assert attempt >= self._epoch
        self._epoch = attempt

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
        assert [attempt.number for attempt in attempts] == list(range(1, run.attempt + 1))
        live = [attempt.number for attempt in attempts if attempt.ended_at is None]
        assert live == ([run.attempt] if run.state in LEASED else [])

    @invariant()
    def a_finished_run_never_changes(self) -> None:
        run = self._run()
        now = (run.state, run.stop_reason, run.attempt, run.event_seq, run.finished_at, run.updated_at)
        assert self._final in {None, now}
        if run.state in TERMINAL:
            assert run.stop_reason is not None
            assert run.finished_at is not None
            assert run.intent is None
            self._final = now

    def _wish(self, verb: str, goal: RunState) -> None:
        before = self._run()
        with self._database.write() as session:
            after = getattr(RunService(session, RecordingWakeUp()), verb)(self._id)
        if before.state in TERMINAL:
            assert (after.state, after.stop_reason) == (before.state, before.stop_reason)
        elif before.state in LEASED:
            assert after.state == before.state
            assert after.intent in {Intent.CANCEL, verb}, "a pause is outranked"
        else:
            assert (after.state, after.stop_reason) == (goal, StopReason.USER)

    def _lapsed(self, before: Run, *, charged: bool, check: bool = True) -> RunState:
        """Say, and check, what becomes of a run whose attempt did not finish it."""
        if before.intent == Intent.CANCEL:
            expected = RunState.CANCELLED
        elif before.intent == Intent.STOP:
            expected = RunState.SUCCEEDED
        elif before.intent == Intent.PAUSE:
            expected = RunState.PAUSED
        elif charged and before.restarts_without_progress + 1 > BUDGET:
            expected = RunState.FAILED
        else:
            expected = RunState.RECOVERING
        assert not check or self._run().state == expected
        return expected

    def _run(self) -> Run:
        with self._database.read() as session:
            return RunRepository(session).get(self._id)


LIMITS = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
FEWER = settings(LIMITS, max_examples=examples(10))
"""Each run of the tests tries others."""


def test_any_order_of_events_is_a_legal_life(sqlite_template: Path) -> None:
    class OnSQLite(Life):
        def open(self) -> Database:
            self._folder = Path(tempfile.mkdtemp())
            shutil.copy(sqlite_template, self._folder / "ludus.db")
            return Database(f"sqlite:///{self._folder / 'ludus.db'}", synchronous="OFF")

        def close(self) -> None:
            shutil.rmtree(self._folder)

    run_state_machine_as_test(OnSQLite, settings=FEWER)


@pytest.mark.postgres
@NEEDS_POSTGRESQL
def test_any_order_of_events_is_a_legal_life_on_postgresql() -> None:
    with postgresql_database() as url:
        database = Database(url)
        upgrade_database(database)
        database.close()

        class OnPostgreSQL(Life):
            def open(self) -> Database:
                return Database(url)

        run_state_machine_as_test(OnPostgreSQL, settings=LIMITS)
