"""Intents, changes and requests of users reach the trainer, and its answers the database."""

import threading
from pathlib import Path
from typing import BinaryIO

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunKind, RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.repository import CheckpointRequestRepository
from server.checkpoints.service import request_checkpoint
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import Renewal
from server.lifecycle.service import RunService
from server.runs.amendments import AmendmentRepository, AmendmentService, RunChanges
from server.runs.diagnosis import TimeSpent
from server.runs.environment_parameters import ParameterRepository
from server.runs.events.repository import EventRepository, Note, ask
from server.runs.models import Attempt
from server.runs.refs import AmendmentRef
from server.simulators.repository import Placement
from tests.factories import RecordingWakeUp, make_claim, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    Threaded,
    messages_of,
    supervise,
    with_checkpoints,
)
from worker.host.supervisor.loop import Supervisor
from worker.trainer.connection import TrainerConnection
from worker.trainer.messages import Amend, Job


def test_what_users_want_of_parameters_reaches_the_trainer_and_its_word_the_database(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run")
    with database.write() as session:
        ParameterRepository(session).add(run.id, "wall", {"lesson": 2})
    later = threading.Timer(0.7, ask_for, (database, run.id, {"value": 9.5}))
    later.start()

    supervise(database, tmp_path, Threaded(trainers.edits))

    later.join()
    with database.read() as session:
        told = ParameterRepository(session).of_run(run.id)
        assert told is not None
        assert told.edit == 2
        assert told.parameters[0]["waits_for"] == "edit 2"
        assert told.parameters[0]["lesson_name"] == "9.5"
    assert read_run(database, "run").state == RunState.SUCCEEDED


def test_the_wish_of_an_edge_collector_reaches_the_trainer_once_and_its_word_the_database(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run")  # whose configuration says nothing of edge collectors
    asking = threading.Thread(target=lambda: eventually(lambda: asked(database, run.id), "an attempt that is asked"))
    asking.start()

    supervise(database, tmp_path, Threaded(trainers.opens_places))

    asking.join()
    with database.read() as session:
        attempt = session.get_one(Attempt, (run.id, 1))
        assert attempt.places_problem == "no free port"
        assert attempt.edge_collectors == [
            {"index": 1, "host": "desk", "address": "here", "joined_at": 1.0, "lagged_at": None, "waiting_bytes": 0}
        ]
    assert "no free port" in messages_of(database)["places_unavailable"]


def asked(database: Database, run: str) -> bool:
    """Ask for a place as the gateway does; whether there is an attempt that can be asked."""
    Placement(database).place_collector(run)
    with database.read() as session:
        attempt = session.get(Attempt, (run, 1))
        return attempt is not None and bool(attempt.places_asked)


def ask_for(database: Database, run: str, change: dict[str, object]) -> None:
    with database.write() as session:
        ParameterRepository(session).add(run, "wall", change)
        ask(session, run, Note("parameter_change_requested", "A user asked."))


def test_a_supervisor_passes_on_what_users_want_and_pauses(database: Database, tmp_path: Path) -> None:
    run = make_run(database, name="run").id
    change(database, run, 1000)

    def want() -> None:
        def events() -> list[str]:
            with database.read() as session:
                return [event.type for event in EventRepository(session).page(run)]

        def until(event: str, times: int = 1) -> None:
            eventually(lambda: events().count(event) >= times, event)

        until("hyperparameters_changed")
        AttemptLedger(database, claim_of(database, run)).move(RunState.RUNNING)
        change(database, run, 500)
        ask_for_checkpoint(database, run)
        until("checkpoint_declined")
        ask_for_checkpoint(database, run)
        until("checkpoint_saved")
        until("hyperparameters_changed", 2)
        with database.write() as session:
            RunService(session, RecordingWakeUp()).pause(run)

    wanting = threading.Thread(target=want)
    wanting.start()
    expired = supervise(database, tmp_path, Threaded(trainers.serves_requests))
    wanting.join(20)

    assert expired == []
    paused = read_run(database, "run")
    assert (paused.state, paused.stop_reason, paused.stop_detail) == ("PAUSED", "user", "paused on request")
    with database.read() as session:
        requests = CheckpointRequestRepository(session)
        assert requests.get(run, 1).problem == "nothing was learned"
        (stored,) = session.scalars(select(Checkpoint)).all()
        assert requests.get(run, 2).checkpoint_id == stored.id
        told = [event for event in EventRepository(session).page(run) if event.type == "hyperparameters_changed"]
        amended = AmendmentRepository(session).of_run(run)
        moves = [event.type for event in EventRepository(session).page(run) if "to" in event.data]
    assert [(event.data["seq"], event.data["step"]) for event in told] == [(1, 0), (2, 64)]
    assert amended is not None
    assert amended.applied == 2
    assert moves == ["run_claimed", "run_started", "run_pausing", "run_paused"]


def test_a_stop_outranks_a_pause_that_is_under_way(database: Database, tmp_path: Path) -> None:
    run = make_run(database, name="run").id
    later = threading.Thread(target=lambda: stop_once_pausing(database, run))
    later.start()

    supervise(database, tmp_path, Threaded(trainers.pauses_late))

    later.join(20)
    ended = read_run(database, "run")
    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "user")


def stop_once_pausing(database: Database, run: str) -> None:
    eventually(lambda: "begun" in messages_of(database))  # before that, a pause needs no trainer
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause(run)
    eventually(lambda: read_run(database, run).state == RunState.PAUSING)
    with database.write() as session:
        RunService(session, RecordingWakeUp()).stop(run)


def change(database: Database, run: str, max_steps: int) -> None:
    with database.write() as session:
        AmendmentService(session).change(run, RunChanges(behaviors={"CartPole": {"max_steps": max_steps}}))


def ask_for_checkpoint(database: Database, run: str) -> None:
    with database.write() as session:
        request_checkpoint(session, run)


def claim_of(database: Database, run: str) -> Claim:
    """The claim under which a run is held, for what its trainer would have brought about."""
    found = read_run(database, run)
    return Claim(run, found.attempt, RunKind.TRAIN, "run", {}, 0, None, "worker-1")


class StuckStore(FolderStore):
    """A store that opens nothing until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.free = threading.Event(), threading.Event()

    def open(self, path: str, start: int = 0) -> BinaryIO:
        self.asked.set()
        assert self.free.wait(30)
        return super().open(path, start)


@pytest.mark.parametrize(
    ("wish", "state"),
    [("cancel", RunState.CANCELLED), ("stop", RunState.SUCCEEDED), ("pause", RunState.PAUSED), (None, "RECOVERING")],
    ids=["cancel", "stop", "pause", "the worker stops"],
)
def test_what_is_wanted_of_an_attempt_that_still_fetches_its_checkpoint_comes_true_at_once(
    database: Database, tmp_path: Path, wish: str | None, state: RunState
) -> None:
    with_checkpoints(database, FolderStore(tmp_path / "artifacts"), tmp_path, [100])
    store, stops = StuckStore(tmp_path / "artifacts"), threading.Event()
    claim = make_claim(database, lease_seconds=LEASE_SECONDS)
    before = read_run(database, claim.run_id).restarts_without_progress
    settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=BEAT_SECONDS)
    supervisor = Supervisor(
        claim, AttemptLedger(database, claim), store, settings, tmp_path / "scratch", GatewaySettings(), stops.is_set
    )
    supervising = threading.Thread(target=supervisor.run, args=(Threaded(trainers.resumes),))
    supervising.start()
    try:
        assert store.asked.wait(10)
        if wish is None:
            stops.set()
        else:
            with database.write() as session:
                getattr(RunService(session, RecordingWakeUp()), wish)(claim.run_id)

        eventually(lambda: read_run(database, claim.run_id).state == state, 10)
    finally:
        store.free.set()
        supervising.join(20)

    assert read_run(database, claim.run_id).restarts_without_progress == before
    assert not (tmp_path / "scratch").exists()


def test_a_request_is_read_with_the_first_beat_after_it_and_other_beats_read_none(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run").id
    begun, read, asked = [0], dict[int, int](), list[int]()

    class Counted(AttemptLedger):
        def __init__(self, database: Database, claim: Claim) -> None:
            super().__init__(database, claim)
            after = self.amendments.after

            def counted(seq: int) -> tuple[AmendmentRef, ...]:
                found = after(seq)
                read[begun[0]] = len(found)
                return found

            self.amendments.after = counted  # type: ignore[method-assign]

        def heartbeat(self, lease_seconds: float, step: int, time_spent: TimeSpent | None = None) -> Renewal:
            begun[0] += 1
            return super().heartbeat(lease_seconds, step, time_spent)

    def waits_for_an_amendment(connection: TrainerConnection, job: Job) -> None:
        eventually(lambda: begun[0] >= 5, "a few beats without a request")
        change(database, run, 1000)
        asked.append(begun[0])
        eventually(lambda: any(isinstance(each, Amend) for each in connection.commands()), "the trainer has it")
        trainers.finishes(connection, job)

    supervise(database, tmp_path, Threaded(waits_for_an_amendment), ledger=Counted)

    with_request = next(number for number, found in read.items() if found)
    assert with_request <= asked[0] + 1
    assert len([number for number in read if number < with_request]) == 1, "at its start, it reads them in any case"
