"""Attempts: how a worker gets a run, what it writes while it holds it, and how it loses it.

Every write of an attempt carries its epoch. It locks the run's row first, and is refused with LeaseLost when the run
has a newer epoch or the attempt was ended, so that a worker that was thought dead can't disturb its successor. A lease
that has run out may still be renewed until the reaper has taken the run away: lateness harms nobody before that.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from server.assessments.repository import AssessmentRepository
from server.checkpoints.merit import keep_best_of, merit
from server.checkpoints.refs import CheckpointRef, NewCheckpoint
from server.checkpoints.repository import CheckpointRepository, InitialCheckpoints, ref
from server.checkpoints.retention.repository import RetentionRepository
from server.config.assessment import checkpoints_of
from server.config.problems import show
from server.config.run import RunConfig
from server.demonstrations.refs import DemonstrationRef
from server.demonstrations.repository import DemonstrationRepository
from server.demonstrations.repository import ref as demonstration_ref
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.texts import storable, storable_json
from server.kit.errors import CheckpointNotFound, IllegalTransition, LeaseLost
from server.kit.settings import SchedulingSettings
from server.ladders.matches.repository import MatchLedger
from server.ladders.refs import PlayedMatch
from server.metrics.points import MetricPoint
from server.metrics.repository import MetricRepository
from server.runs.amendments.refs import AmendmentRef
from server.runs.amendments.repository import AmendmentRepository
from server.runs.attempts.claim import DEFAULT_RESTART_BUDGET, Claim
from server.runs.checkpoint_requests.repository import CheckpointRequestRepository
from server.runs.environment_parameters.repository import ParameterRepository
from server.runs.events.repository import UNTRACKED, Note, lock_run, move, record
from server.runs.leases.repository import end_attempt, heed, lapse
from server.runs.models import CLAIMABLE_SQL, Attempt, Log, Run
from server.runs.scheduling.demand import Offer
from server.runs.scheduling.repository import WaitingRuns
from server.runs.scheduling.turn import by_turn
from server.runs.states import EVENT_OF, LEASED, TERMINAL, Intent, RunKind, RunState, StopReason
from server.simulators.models import Simulator
from server.simulators.repository import LEFT, SimulatorRepository
from server.workers.models import Worker

Result = TypeVar("Result")

PEACEFUL = frozenset({"left", "run_finished", "run_cancelled", "run_failed", "run_paused", "run_moved"})
"""Codes of sessions that the simulator or the run ended; all others are worth a warning."""


class RunQueue:
    """Hands runs to workers. Each call is one transaction."""

    def __init__(self, database: Database, policy: SchedulingSettings | None = None) -> None:
        self._database = database
        self._policy = policy or SchedulingSettings()

    def claim(
        self,
        worker_id: str,
        lease_seconds: float,
        hint: str | None = None,
        offer: Offer | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> Claim | None:
        """Claim the best run that waits and that a slot with this offer may run; None when there is none.

        Which one is best, `server.runs.scheduling.turn` says; `hint` is the run that the wake-up named; `fingerprint`
        (`worker.host.fingerprint`) is kept with the attempt.
        The race: many workers are woken for one run, and users cancel it meanwhile. Claims happen one after the other,
        so that quotas hold; the chosen run is locked, passed over if it is busy, and taken by one conditional UPDATE on
        its state and epoch.
        """
        with self._database.write() as session:
            runs = WaitingRuns(session)
            runs.take_turn()
            order = by_turn(runs.heads(), runs.running(), offer or Offer(), self._policy, now=runs.clock(), hint=hint)
            for one in order:
                run = runs.lock(one.run_id)
                if run is not None:
                    return _begin(session, run, worker_id, lease_seconds, fingerprint)
            return None

    def waiting(self) -> bool:
        """Say whether any run waits for a worker."""
        with self._database.read() as session:
            return session.scalar(select(Run.id).where(text(CLAIMABLE_SQL)).limit(1)) is not None


class AttemptLedger:
    """What the supervisor of one attempt writes. Each method is one fenced transaction; all raise LeaseLost."""

    def __init__(self, database: Database, claim: Claim, restart_budget: int = DEFAULT_RESTART_BUDGET) -> None:
        self._database = database
        self._claim = claim
        self._restart_budget = restart_budget

    def demonstrations(self) -> list[DemonstrationRef]:
        """Return what the run's configuration names. Not fenced: it never changes."""
        with self._database.read() as session:
            return [demonstration_ref(each) for each in DemonstrationRepository(session).of_run(self._claim.run_id)]

    def initial_checkpoints(self) -> list[CheckpointRef]:
        """Return the checkpoints that behaviors begin with. Not fenced: which they are never changes."""
        with self._database.read() as session:
            return InitialCheckpoints(session).of_run(self._claim.run_id)

    def policies(self) -> dict[str, dict[str, Any]]:
        """Return how the policies were trained that the run assesses, by checkpoint, as far as those still exist.

        Not fenced: that never changes.
        """
        config = RunConfig.model_validate(self._claim.config)
        if config.assessment is None:
            return {}
        with self._database.read() as session:
            assessed = AssessmentRepository(session)
            found = {}
            for each in checkpoints_of(config.assessment).values():
                with suppress(CheckpointNotFound):
                    found[each] = assessed.policy(each, config.assessment.behavior)
            return found

    def assessed(self) -> dict[str, Any] | None:
        """Return what earlier attempts have counted of an assessment; None if nothing."""
        with self._database.read() as session:
            row = AssessmentRepository(session).find(self._claim.run_id)
            return None if row is None else dict(row.state)

    def assess(self, games: int, result: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Store where an assessment stands. More games than before refill the restart budget."""

        def write(session: Session, run: Run) -> None:
            if AssessmentRepository(session).store(run.id, self._claim.epoch, games, result, state):
                session.execute(update(Run).where(Run.id == run.id).values(restarts_without_progress=0))

        self._fenced(write)

    def parameter_edits(self, after: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Return number, parameter and change of the run's edits behind one of them. Not fenced: they never change."""
        with self._database.read() as session:
            edits = ParameterRepository(session).edits(self._claim.run_id, after)
            return [(edit.seq, edit.parameter, edit.change) for edit in edits]

    def amendments(self, after: int) -> tuple[AmendmentRef, ...]:
        """Return the amendments of the run's configuration behind one of them. Not fenced: they never change."""
        with self._database.read() as session:
            return AmendmentRepository(session).refs(self._claim.run_id, after)

    def amended(self, seq: int, changes: Sequence[Mapping[str, Any]], step: int) -> None:
        """Note that the trainer goes on with an amendment, from `step` agent steps of all behaviors on."""

        def write(session: Session, run: Run) -> None:
            AmendmentRepository(session).applied(run.id, seq)
            words = ", ".join(f"{each['path']} from {show(each['old'])} to {show(each['new'])}" for each in changes)
            data = {"seq": seq, "step": step, "changes": [dict(each) for each in changes]}
            self._record(session, run, Note("hyperparameters_changed", f"Changed {words} at step {step}.", data=data))

        self._fenced(write)

    def checkpoint_wanted(self) -> int | None:
        """Return the number of the request for a checkpoint that waits for its answer; None without one. Not fenced."""
        with self._database.read() as session:
            pending = CheckpointRequestRepository(session).pending(self._claim.run_id)
            return None if pending is None else pending.seq

    def checkpoint_declined(self, request: int, why: str) -> None:
        """Answer a request for a checkpoint that can't be written."""

        def write(session: Session, run: Run) -> None:
            CheckpointRequestRepository(session).answer(run.id, request, problem=why)
            data = {"request": request}
            note = Note(
                "checkpoint_declined", f"No checkpoint was written on request: {why.rstrip('.')}.", "warning", data
            )
            self._record(session, run, note)

        self._fenced(write)

    def parameters(self, parameters: Sequence[Mapping[str, Any]], edit: int) -> None:
        """Publish where the run's environment parameters are, and up to which edit its trainer has come."""
        self._fenced(lambda session, run: ParameterRepository(session).told(run.id, parameters, edit))

    def heartbeat(self, lease_seconds: float, step: int) -> Intent:
        """Renew the lease from now on the database's clock, note the progress, and return what is wanted."""

        def write(session: Session, run: Run) -> Intent:
            self._set_attempt(session, lease_expires_at=now() + lease_seconds, heartbeat_at=now(), step=step)
            if run.step != step:
                session.execute(update(Run).where(Run.id == run.id).values(step=step, updated_at=now()))
            alive = {"heartbeat_at": now(), "run_id": run.id}
            session.execute(update(Worker).where(Worker.id == self._claim.worker_id).values(**alive))
            return Intent(run.intent) if run.intent else Intent.NONE

        return self._fenced(write)

    def listening(self, endpoints: Sequence[Mapping[str, Any]]) -> None:
        """Publish where the collectors listen: `{"address": "host:port", "index": 0}` each."""

        def write(session: Session, run: Run) -> None:
            self._set_attempt(session, endpoints=[dict(endpoint) for endpoint in endpoints])
            addresses = ", ".join(str(endpoint["address"]) for endpoint in endpoints)
            self._record(session, run, Note("trainer_listening", f"Simulators can connect: {addresses}."))

        self._fenced(write)

    def move(self, to: RunState, *, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Move the run. Moving it to where it is changes nothing; a state without a lease ends the attempt.

        `reason` says why a run ended or pauses; without one SUCCEEDED means `completed` and CANCELLED `user`. What a
        user asked for while the run paused still holds: to pause makes `user` the reason, to stop or cancel ends it.
        Raises IllegalTransition.
        """
        if reason is None:
            reason = {RunState.SUCCEEDED: StopReason.COMPLETED, RunState.CANCELLED: StopReason.USER}.get(to)
        if to is RunState.FAILED and reason is None:
            raise ValueError("a run never fails without a reason")

        def write(session: Session, run: Run) -> None:
            if run.state == to:
                return
            if to not in EVENT_OF:
                raise IllegalTransition(run.id, run.state, to)  # nothing ever moves there
            level = "error" if to is RunState.FAILED else "info"
            intent, why = run.intent, reason
            if to is RunState.PAUSED and intent == Intent.PAUSE:
                why = StopReason.USER
            note = Note(EVENT_OF[to], _sentence(to, why, detail), level)
            move(session, run, to, note, reason=why, detail=detail)
            if to not in LEASED:
                outcome = {RunState.PAUSED: "paused", RunState.RECOVERING: "released"}.get(to, str(why))
                end_attempt(session, run, outcome, detail)
            if to is RunState.PAUSED or to in TERMINAL:
                CheckpointRequestRepository(session).settle(run.id, to)
            if to is RunState.PAUSED:
                heed(session, run, intent)

        self._fenced(write)

    def event(self, type: str, message: str, *, level: str = "info", data: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Append an event to the run."""
        self._fenced(lambda session, run: self._record(session, run, Note(type, message, level, data or {})))

    def self_play(self, learning_team: int, elo: Mapping[str, float]) -> None:
        """Note whose turn it is in self-play, and how each behavior's policy that learns is rated."""
        values = {"self_play": {"learning_team": learning_team, "elo": dict(elo)}, "updated_at": now()}

        def write(session: Session, run: Run) -> None:
            session.execute(update(Run).where(Run.id == run.id).values(**values), execution_options=UNTRACKED)

        self._fenced(write)

    def metrics(self, points: Sequence[MetricPoint]) -> None:
        """Append points of metrics. Handing the same points in twice is safe."""
        self._fenced(lambda session, run: MetricRepository(session).append(run.id, self._claim.epoch, points))

    def resume_matches(self, newest: Mapping[str, int]) -> None:
        """Take back what earlier attempts played beyond the checkpoint that this one goes on from.

        `newest`: the number of each behavior's newest match that the checkpoint counts.
        """
        self._fenced(lambda session, run: MatchLedger(session).resume(run.id, self._claim.epoch, newest))

    def matches(self, played: Sequence[PlayedMatch]) -> None:
        """Enter finished matches into the ledger. Handing the same ones in twice is safe."""
        self._fenced(lambda session, run: MatchLedger(session).append(run.id, self._claim.epoch, played))

    def checkpoint(self, checkpoint: NewCheckpoint, request: int | None = None) -> str:
        """Enter a published checkpoint; return its id. One beyond the attempt's start refills the restart budget.

        `request` is the number of the request that it answers.
        """

        def write(session: Session, run: Run) -> str:
            rule, scores = keep_best_of(self._claim.config), MetricRepository(session).scores(run.id)
            better = merit(rule, scores, checkpoint.metrics.values())
            row, new = CheckpointRepository(session).add(run.id, self._claim.epoch, checkpoint, scores, better)
            if request is not None:
                CheckpointRequestRepository(session).answer(run.id, request, checkpoint_id=row.id)
            if not new:
                return row.id
            attempt = session.get_one(Attempt, (run.id, self._claim.epoch))
            progress = {"restarts_without_progress": 0} if checkpoint.step > attempt.resume_step else {}
            data = {"checkpoint_id": row.id, "step": checkpoint.step, "reason": checkpoint.reason, "size": row.size}
            data |= {} if request is None else {"request": request}
            message = f"Saved a checkpoint at step {checkpoint.step} ({checkpoint.reason})."
            self._record(session, run, Note("checkpoint_saved", message, data=data), **progress)
            return row.id

        return self._fenced(write)

    def has_checkpoints(self) -> bool:
        """Say whether the run has any checkpoint that retention has not deleted, a damaged one perhaps. Not fenced."""
        with self._database.read() as session:
            return CheckpointRepository(session).stored(self._claim.run_id) > 0

    def retire_checkpoints(self, keep: int) -> list[str]:
        """Give up what is neither one of the newest `keep` (0 keeps all) nor kept for another reason; return the ids.

        The janitor removes the files.
        """
        return self._fenced(lambda session, run: RetentionRepository(session).retire_beyond(run, keep))

    def resume_instead(self, damaged: str, why: str) -> CheckpointRef | None:
        """Give up on a checkpoint that can't be restored; return the next best, or None if no good one is left."""

        def write(session: Session, run: Run) -> CheckpointRef | None:
            checkpoints = CheckpointRepository(session)
            checkpoints.mark_damaged(checkpoints.get(run.id, damaged), why)
            row = checkpoints.newest(run.id)
            resume = {"resumed_from": row.id if row else None, "resume_step": row.step if row else 0}
            self._set_attempt(session, **resume)
            MetricRepository(session).rewind(run.id)
            message = f"Checkpoint {damaged} cannot be restored: {why}."
            note = Note("checkpoint_damaged", message, "error", {"checkpoint_id": damaged, **resume})
            self._record(session, run, note)
            return ref(row) if row else None

        return self._fenced(write)

    def simulator_connected(
        self,
        incarnation: str,
        *,
        number: int,
        collector: int,
        behaviors: Sequence[str] = (),
        peer: str = "",
        label: str = "",
        client: str = "",
    ) -> None:
        """Note that a collector serves a simulator."""

        def write(session: Session, run: Run) -> None:
            columns: dict[str, Any] = {"number": number, "collector": collector, "behaviors": list(behaviors)}
            texts = {"peer": storable(peer, 200), "label": storable(label, 200), "client": storable(client, 100)}
            columns |= {"agents": 0} | {name: text for name, text in texts.items() if text}
            SimulatorRepository(session).connected(run.id, self._claim.epoch, incarnation, **columns)
            data = {"incarnation": incarnation, "number": number, "collector": collector, "peer": peer}
            data["behaviors"] = list(behaviors)
            message = f"Simulator {number} connected from {peer or 'an unknown address'}."
            self._record(session, run, Note("simulator_connected", message, data=data))

        self._fenced(write)

    def simulator_plays(self, incarnation: str, behaviors: Sequence[str], agents: int) -> None:
        """Note what a simulator's first step has shown: all its behaviors, and how many agents play."""

        def write(session: Session, run: Run) -> None:
            SimulatorRepository(session).plays(run.id, self._claim.epoch, incarnation, behaviors, agents)

        self._fenced(write)

    def simulator_left(self, incarnation: str, *, code: str, reason: str, steps: int, peer: str = "") -> None:
        """Note that a simulator's session ended, or was refused before it began (then nobody knows its incarnation).

        Handing the same end in twice leaves one event.
        """

        def write(session: Session, run: Run) -> None:
            data: dict[str, Any] = {"incarnation": incarnation, "code": code, **({"peer": peer} if peer else {})}
            known = session.get(Simulator, (run.id, incarnation), populate_existing=True)
            if known is None:
                note = Note("simulator_refused", f"Refused a simulator: {reason}", "warning", data)
                self._record(session, run, note)
                return
            if known.state == LEFT and (known.leave_code, known.steps) == (storable(code, 64), steps):
                return
            ended = known.state != LEFT
            simulators = SimulatorRepository(session)
            simulators.left(run.id, self._claim.epoch, incarnation, code=code, reason=reason, steps=steps)
            data |= {"number": known.number, "steps": steps}
            level = "info" if code in PEACEFUL else "warning"
            what = ("simulator_left", "left") if ended else ("simulator_refused", "was refused")
            self._record(session, run, Note(what[0], f"Simulator {known.number} {what[1]}: {reason}", level, data))

        self._fenced(write)

    def log(self, name: str, path: str, size: int) -> None:
        """Enter a log file of this attempt in the artifact store, or its new size. Allowed after the end, too."""
        with self._database.write() as session:
            run = lock_run(session, self._claim.run_id)
            if session.get(Attempt, (run.id, self._claim.epoch)) is None:
                raise LeaseLost(run.id, self._claim.epoch)
            row = Log(run_id=run.id, epoch=self._claim.epoch, name=name, path=path, size=size, updated_at=now())
            session.merge(row)

    def release(self, outcome: str, detail: str, *, counts: bool | None = None) -> None:
        """End the attempt and leave the run to another worker, or FAILED when the restart budget is spent.

        `counts` says whether this restart is charged: by default all are but `released`, a worker's orderly shutdown.
        """

        charged = outcome != "released" if counts is None else counts

        def write(session: Session, run: Run) -> None:
            lapse(session, run, outcome, detail, self._restart_budget, counts=charged)

        self._fenced(write)

    def _fenced(self, write: Callable[[Session, Run], Result]) -> Result:
        """Do a write in one transaction, with the run locked and this attempt's right to it proven."""
        with self._database.write() as session:
            run = lock_run(session, self._claim.run_id)
            attempt = session.get(Attempt, (run.id, self._claim.epoch))
            if attempt is None or attempt.ended_at is not None or run.epoch != self._claim.epoch:
                raise LeaseLost(run.id, self._claim.epoch)
            return write(session, run)

    def _set_attempt(self, session: Session, **values: Any) -> None:
        session.execute(
            update(Attempt)
            .where(Attempt.run_id == self._claim.run_id, Attempt.epoch == self._claim.epoch)
            .values(**values)
        )

    def _record(self, session: Session, run: Run, note: Note, **changes: Any) -> None:
        record(session, run.id, note, epoch=self._claim.epoch, **changes)


def _begin(
    session: Session, run: Run, worker_id: str, lease_seconds: float, fingerprint: Mapping[str, Any] | None
) -> Claim:
    """Open the next attempt of a locked run."""
    epoch = run.epoch + 1
    newest = CheckpointRepository(session).newest(run.id)
    resume = ref(newest) if newest is not None else None
    step = resume.step if resume else 0
    message = f"Worker {worker_id} took the run" + (f" and resumes it at step {step}." if resume else ".")
    data = {"worker_id": worker_id, "resumed_from": resume.id if resume else None}
    move(session, run, RunState.STARTING, Note(EVENT_OF[RunState.STARTING], message, data=data), epoch=epoch, step=step)
    session.add(
        Attempt(
            run_id=run.id,
            epoch=epoch,
            worker_id=worker_id,
            lease_expires_at=now() + lease_seconds,
            heartbeat_at=now(),
            step=step,
            resumed_from=resume.id if resume else None,
            resume_step=step,
            fingerprint=None if fingerprint is None else storable_json(fingerprint),
            started_at=now(),
        )
    )
    session.flush()
    if epoch > 1:
        MetricRepository(session).rewind(run.id)
    working = {"run_id": run.id, "last_claim_at": now(), "heartbeat_at": now()}
    session.execute(update(Worker).where(Worker.id == worker_id).values(working))
    amendments = AmendmentRepository(session).refs(run.id)
    return Claim(run.id, epoch, RunKind(run.kind), run.name, run.config, run.seed, resume, worker_id, amendments)


def _sentence(to: RunState, reason: StopReason | None, detail: str | None) -> str:
    return detail or f"The run is {to}" + (f" ({reason})." if reason else ".")
