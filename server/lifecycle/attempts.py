"""The writes of an attempt (`server.runs.attempts`: the fence)."""

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import update

from ludus.schemas.states import RunState, StopReason
from server.assessments.repository import AssessmentWriter
from server.checkpoints.refs import CheckpointRef, keep_best_of
from server.checkpoints.repository import CheckpointRepository, CheckpointRequestRepository, InitialCheckpoints
from server.checkpoints.repository import ref as checkpoint_ref
from server.checkpoints.writer import CheckpointWriter
from server.demonstrations.refs import DemonstrationRef
from server.demonstrations.repository import DemonstrationRepository
from server.demonstrations.repository import ref as demonstration_ref
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.errors import IllegalTransition, LeaseLost, LudusError
from server.kit.states import EVENT_OF, LEASED, TERMINAL, Intent
from server.ladders.matches import MatchWriter
from server.lifecycle.blocked import repair
from server.lifecycle.claims.repository import DEFAULT_RESTART_BUDGET, Claim
from server.lifecycle.leases.repository import (
    LeaseRepository,
    Renewal,
    apply_intent,
    end_attempt,
    end_without_result,
)
from server.metrics.repository import MetricRepository, MetricWriter, PackingRepository
from server.runs.amendments import AmendmentWriter
from server.runs.attempts import AttemptFence, Listening, Moved, Observer, Recorded, Released, Renewed
from server.runs.diagnosis import TimeSpent
from server.runs.environment_parameters import ParameterWriter
from server.runs.events.repository import UNTRACKED, Note, lock_run, move
from server.runs.health import HealthWriter
from server.runs.models import Attempt, Log, Run
from server.runs.profiles import ProfileWriter
from server.runs.repository import RunRepository
from server.simulators.recordings.repository import RecordingWriter
from server.simulators.repository import broken_games
from server.simulators.writer import CollectorWriter, SimulatorWriter


class AttemptLedger:
    """The writes of one attempt: its own, and the writers of the features. Each is one fenced transaction; all raise
    LeaseLost.
    """

    def __init__(
        self,
        database: Database,
        claim: Claim,
        restart_budget: int = DEFAULT_RESTART_BUDGET,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.run_id = claim.run_id
        self._attempt = claim.attempt
        self._restart_budget = restart_budget
        self._fence = fence = AttemptFence(database, claim.run_id, claim.attempt, observers)
        self.notify = fence.notify
        self.amendments = AmendmentWriter(fence)
        self.assessment = AssessmentWriter(fence)
        self.checkpoints = CheckpointWriter(
            fence,
            keep_best_of(claim.config),
            scores=lambda session, run_id: MetricRepository(session).scores(run_id),
            rewind=lambda session, run_id: PackingRepository(session).rewind(run_id),
        )
        self.collectors = CollectorWriter(fence)
        self.health = HealthWriter(fence)
        self.matches = MatchWriter(fence)
        self.metrics = MetricWriter(fence)
        self.parameters = ParameterWriter(fence)
        self.profiles = ProfileWriter(fence)
        self.recordings = RecordingWriter(fence)
        self.simulators = SimulatorWriter(fence)

    def demonstrations(self) -> list[DemonstrationRef]:
        """Return the demonstrations that the run's configuration names. Not fenced: they never change."""
        with self._fence.database.read() as session:
            return [
                demonstration_ref(demonstration)
                for demonstration in DemonstrationRepository(session).of_run(self.run_id)
            ]

    def initial_checkpoints(self) -> list[CheckpointRef]:
        """Return the checkpoints that behaviors begin with. Not fenced: which they are never changes."""
        with self._fence.database.read() as session:
            return InitialCheckpoints(session).of_run(self.run_id)

    def newest_checkpoint_of(self, run: str) -> CheckpointRef | None:
        """Return the newest good checkpoint of another run of the project, by its id or name; None if it has none.

        Not fenced. Raises RunNotFound.
        """
        database = self._fence.database
        with database.read() as session:
            project = RunRepository(session).without_config(self.run_id).project
        with database.within(project).read() as session:
            newest = CheckpointRepository(session).newest(RunRepository(session).id_of(run))
            return None if newest is None else checkpoint_ref(newest)

    def heartbeat(self, lease_seconds: float, step: int, time_spent: TimeSpent | None = None) -> Renewal:
        """Renew the lease from now on the database's clock, note the progress, and return what users want.

        This is also the sign of life of the slot. Raises RunNotFound, too.
        """
        began, outcome = time.monotonic(), "ok"
        run_id, attempt = self.run_id, self._attempt
        try:
            with self._fence.database.write(once=True) as session:
                renewal = LeaseRepository(session).renew(run_id, attempt, lease_seconds, step, time_spent)
            if renewal is None:
                self._fence.check()
                raise LeaseLost(run_id, attempt)
        except LudusError as error:
            outcome = error.code
            raise
        else:
            return renewal
        finally:
            self._fence.notify(Renewed(time.monotonic() - began, outcome))

    def rewind_metrics(self) -> None:
        """Set the run's newest metrics back to what this attempt does not supersede, before it appends to them.

        The history is read for that, so that it does not belong into the claim, for which others wait.
        """
        with self._fence.write() as (session, run):
            PackingRepository(session).rewind(run.id)

    def listening(self, endpoints: Sequence[Mapping[str, object]]) -> None:
        """Publish the endpoints of the collectors: `{"address": "host:port", "index": 0}` each."""
        with self._fence.write() as (session, _):
            self._fence.set(session, endpoints=[dict(endpoint) for endpoint in endpoints])
            lists = {"Simulators": [], "Edge collectors": []}  # type: dict[str, list[str]]
            for endpoint in endpoints:
                lists["Edge collectors" if endpoint.get("edge") else "Simulators"].append(str(endpoint["address"]))
            sentences = [f"{who} can connect: {', '.join(where)}." for who, where in lists.items() if where]
            self._fence.record(session, Note("trainer_listening", " ".join(sentences)))
        self._fence.notify(Listening())

    def move(self, to: RunState, *, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Move the run. Moving it to its present state changes nothing; a state without a lease ends the attempt.

        `reason` says why a run ended or pauses; without one SUCCEEDED means `completed` and CANCELLED `user`. An intent
        that a user expressed while the run paused still holds: to pause makes `user` the reason, to stop or cancel ends
        the run. Raises IllegalTransition.
        """
        moved = Moved(to, reason, detail)
        if reason is None:
            reason = {RunState.SUCCEEDED: StopReason.COMPLETED, RunState.CANCELLED: StopReason.USER}.get(to)
        if to is RunState.FAILED and reason is None:
            raise ValueError("a run never fails without a reason")
        with self._fence.write() as (session, run):
            if run.state == to:
                return
            if to not in EVENT_OF:
                raise IllegalTransition(run.id, run.state, to)  # no transition leads there
            level = "error" if to is RunState.FAILED else "info"
            intent = run.intent
            if to is RunState.PAUSED and intent == Intent.PAUSE:
                reason = StopReason.USER
            if to is RunState.PAUSED and reason == StopReason.SIMULATORS_LOST and detail:
                detail += repair(broken_games(session, [run.id]).get(run.id))
            message = detail or f"The run is {to}" + (f" ({reason})." if reason else ".")
            move(session, run, to, Note(EVENT_OF[to], message, level), reason=reason, detail=detail)
            if to not in LEASED:
                outcome = {RunState.PAUSED: "paused", RunState.RECOVERING: "released"}.get(to, str(reason))
                end_attempt(session, run, outcome, detail)
            if to is RunState.PAUSED or to in TERMINAL:
                CheckpointRequestRepository(session).settle(run.id, to)
            if to is RunState.PAUSED:
                apply_intent(session, run, intent)
        self._fence.notify(moved)

    def event(self, type: str, message: str, *, level: str = "info", data: Mapping[str, object] | None = None) -> None:  # noqa: A002
        """Append an event to the run."""
        with self._fence.tell(Note(type, message, level, data or {})):
            pass
        self._fence.notify(Recorded(type))

    def self_play(self, learning_team: int, elo: Mapping[str, float]) -> None:
        """Record the learning team of self-play, and the rating of each behavior's learning policy."""
        values = {"self_play": {"learning_team": learning_team, "elo": dict(elo)}, "stored_updated_at": now()}
        with self._fence.write() as (session, run):
            session.execute(update(Run).where(Run.id == run.id).values(**values), execution_options=UNTRACKED)

    def log(self, name: str, path: str, size: int) -> None:
        """Enter a log file of this attempt in the artifact store, or its new size. Allowed after the end, too."""
        with self._fence.database.write() as session:
            run = lock_run(session, self.run_id)
            if session.get(Attempt, (run.id, self._attempt)) is None:
                raise LeaseLost(run.id, self._attempt)
            row = Log(run_id=run.id, attempt=self._attempt, name=name, path=path, size=size, updated_at=now())
            session.merge(row)

    def release(self, outcome: str, detail: str) -> None:
        """End the attempt and leave the run to another worker, or FAILED when the restart budget is spent.

        Every outcome is charged to that budget but `released`, a worker's orderly shutdown.
        """
        charged = outcome != "released"
        with self._fence.write() as (session, run):
            end_without_result(session, run, outcome, detail, self._restart_budget, counts=charged)
        self._fence.notify(Released(outcome, detail))
