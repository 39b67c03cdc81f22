"""The reasons for which runs wait, computed when they are read: nothing is stored, so nothing is out of date."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from ludus.config.run import SimulatorsConfig
from ludus.schemas.states import RunState
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.scheduling import SchedulingSettings
from server.kit.states import CLAIMABLE
from server.lifecycle.blocked.reasons import (
    FAIR_CHANCE_SECONDS,
    Absence,
    Holder,
    held_by,
    needs_simulators,
    stays_paused,
    waits_for_a_slot,
    waits_for_simulators,
)
from server.runs.models import LEASED_SQL, Attempt, Event, Run
from server.runs.repository import RunRepository
from server.runs.scheduling.demand import Demand, Offer
from server.runs.scheduling.fit import Slot, keeps_last_gpu
from server.runs.scheduling.order import Account, InTraining, Obstacle, obstacle
from server.simulators.last_words.repository import broken_games
from server.simulators.models import Simulator
from server.simulators.repository import CONNECTED
from server.workers.repository import WorkerRepository

TRAINING = frozenset({RunState.STARTING, RunState.RUNNING})
"""States in which a run wants simulators."""


@dataclass(frozen=True)
class Blocked:
    """Why a run does not go on, in the fields of `ludus.schemas.RunSummary`."""

    waits_for: str | None
    needs_action: bool


@dataclass(frozen=True)
class _Held:
    """A slot that a run holds."""

    worker_id: str
    account: Account
    holder: Holder

    @property
    def project(self) -> str:
        """The project of the run."""
        return self.account.project

    def seen_from(self, project: str) -> Holder:
        """Return the holder for a run of this project: with its own project where that is another one."""
        return self.holder if self.project == project else replace(self.holder, project=self.project)


class BlockedRepository(Repository):
    """Computes what runs wait for. One object per session, which may be narrowed to a project."""

    def __init__(self, session: Session, alive_seconds: float, policy: SchedulingSettings | None = None) -> None:
        """`alive_seconds`: a worker that was silent for longer counts as gone. `policy` has the quotas and pools."""
        super().__init__(session)
        self._alive_seconds = alive_seconds
        self._policy = policy or SchedulingSettings()

    def of(self, runs: Sequence[Run], *, with_limits: bool = False) -> Mapping[str, Blocked]:
        """Return by id what runs wait for now, and which of them need a person. Rows of lists are enough.

        `with_limits` adds for how long they wait.
        """
        waiting = [run.id for run in runs if run.state in CLAIMABLE]
        sentences, unserved = self._for_slots(waiting) if waiting else ({}, [])
        absences = self._absences(run.id for run in runs if run.state in TRAINING and needs_simulators(run.kind))
        paused = {run.id for run in runs if run.state == RunState.PAUSED}
        time = self.clock()
        needy = {run.id for run in runs if run.id in paused and stays_paused(run.stop_reason, time - run.updated_at)}
        needy.update(self._unserved_for_long(unserved) if unserved else ())
        # Configurations are large: a list reads those alone that decide.
        overdue = {run_id for run_id, absence in absences.items() if absence.overdue}
        limits = self._limits({*(absences if with_limits else overdue), *(paused - needy)})
        needy |= {run_id for run_id in paused - needy if not limits[run_id].auto_resume}
        needy |= {run_id for run_id in overdue if limits[run_id].startup_grace_seconds is None}
        broken = broken_games(self._session, [run_id for run_id, absence in absences.items() if absence.joined])
        for run_id, absence in absences.items():
            limit = limits[run_id] if with_limits else None
            sentences[run_id] = waits_for_simulators(absence, limit, broken.get(run_id))
        return {run.id: Blocked(sentences.get(run.id), run.id in needy) for run in runs}

    def _unserved_for_long(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return those of the runs of which the controller has recorded long enough ago that no worker serves them."""
        recorded = select(Event.run_id).where(Event.run_id.in_(run_ids), Event.type == "no_worker_serves")
        recorded = recorded.group_by(Event.run_id).having(func.max(Event.at) <= self.clock() - FAIR_CHANCE_SECONDS)
        return self._session.scalars(recorded).all()

    def _limits(self, run_ids: Iterable[str]) -> Mapping[str, SimulatorsConfig]:
        """Return how long runs wait for simulators. Configurations of earlier releases lack newer keys."""
        configs = RunRepository(self._session).configs(sorted(run_ids))
        return {
            run_id: SimulatorsConfig.model_validate(config.get("simulators") or {})
            for run_id, config in configs.items()
        }

    def _for_slots(self, run_ids: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Return the reasons of waiting runs: the controller's record, or what it is going to record, or a missing
        slot; none if a slot is free. And those runs with a record that no live slot could serve.

        Where no worker lives at all, only the record counts: one may be just starting.
        """
        slots = WorkerRepository(self._session).alive(self._alive_seconds)
        offers = {slot.id: slot.offer for slot in slots}
        held = self._held()
        running = InTraining(Counter(one.account for one in held))
        for_group: dict[tuple[str, str], tuple[bool, str | None]] = {}  # many runs share few demands
        obstacles: dict[tuple[Account, str], Obstacle | None] = {}
        query = select(Run.id, Run.project, Run.token_id, Run.owner, Run.demand, Run.waits_for)
        rows = [row for some in parts(run_ids) for row in self._session.execute(query.where(Run.id.in_(some)))]
        sentences: dict[str, str] = {}
        unserved: list[str] = []
        for run_id, project, token_id, owner, demand, recorded in rows:
            group = (demand, project)
            if group not in for_group:
                serving = {slot for slot, offer in offers.items() if offer.serves(Demand.parse(demand))}
                for_group[group] = bool(serving), self._full(Demand.parse(demand), serving, offers, held, project)
            served, full = for_group[group]
            account, noted = Account(project, token_id, owner), recorded
            if noted is None and offers:
                if (account, demand) not in obstacles:
                    counts = Counter(offers.values())
                    obstacles[account, demand] = obstacle(account, demand, counts, running, self._policy)
                why = obstacles[account, demand]
                noted = None if why is None else why.sentence
            if noted is not None:
                # With a slot that serves it, the obstacle is a quota: runs of its project are what it waits for.
                own = [one.holder for one in held if one.project == project] if served else []
                sentences[run_id] = f"{noted} Trained now: {held_by(own)}." if own else noted
                if not served and recorded is not None:
                    unserved.append(run_id)
            elif full is not None:
                sentences[run_id] = full
        return sentences, unserved

    def _full(
        self, demand: Demand, serving: set[str], offers: Mapping[str, Offer], held: Sequence[_Held], project: str
    ) -> str | None:
        """Return the sentence that no slot is free for a demand; None if one is, or if no slot serves it."""
        taken = {one.worker_id for one in held}
        free = serving - taken
        kept = False
        if free:
            # No idle slot with fewer GPUs can serve it: the last idle one with GPUs may be kept for others.
            smallest = min(free, key=lambda slot: offers[slot].gpus)
            others = [Slot(offer, slot not in taken) for slot, offer in offers.items() if slot != smallest]
            kept = keeps_last_gpu(demand, offers[smallest], others)
        holders = [one.seen_from(project) for one in held if one.worker_id in serving - free]
        if not holders or (free and not kept):
            return None
        return waits_for_a_slot(holders, keeps_last_gpu=kept)

    def _held(self) -> list[_Held]:
        """Return the slots that runs hold, of all projects; names only of those that this session may see."""
        # Selected as tables: the session would leave the runs of other projects out.
        run, attempt = Run.__table__.c, Attempt.__table__.c
        live = (attempt.run_id == run.id) & (attempt.number == run.attempt) & attempt.ended_at.is_(None)
        account = (run.project, run.token_id, run.owner)
        query = select(run.id, run.name, *account, run.state, run.kind, attempt.worker_id)
        rows = self._session.execute(
            query.join_from(Run.__table__, Attempt.__table__, live).where(text(f"runs.{LEASED_SQL}"))
        ).all()
        absences = self._absences([row.id for row in rows if row.state in TRAINING and needs_simulators(row.kind)])
        seen = project_of(self._session)
        return [
            _Held(
                row.worker_id,
                Account(row.project, row.token_id, row.owner),
                Holder(row.name if seen in {None, row.project} else None, RunState(row.state), absences.get(row.id)),
            )
            for row in rows
        ]

    def _absences(self, run_ids: Iterable[str]) -> Mapping[str, Absence]:
        """Return those of the runs whose present attempt has no simulator now."""
        found: dict[str, Absence] = {}
        for some in parts(sorted(run_ids)):
            found |= self._absences_of(set(some))
        return found

    def _absences_of(self, ids: set[str]) -> Mapping[str, Absence]:
        present = select(Simulator.run_id).where(Simulator.run_id.in_(ids), Simulator.state == CONNECTED).distinct()
        ids -= set(self._session.scalars(present))
        if not ids:
            return {}
        newest = select(Attempt.run_id, func.max(Attempt.number).label("attempt")).where(Attempt.run_id.in_(ids))
        live = newest.group_by(Attempt.run_id).subquery()
        # Simulators that have come in this attempt: one that only joined again has the times of an earlier one.
        came = (
            (Simulator.run_id == Attempt.run_id)
            & (Simulator.attempt == Attempt.number)
            & (Simulator.connected_at >= Attempt.started_at)
        )
        query = (
            select(Attempt.run_id, now() - Attempt.started_at, now() - func.max(Simulator.left_at))
            .join(live, (live.c.run_id == Attempt.run_id) & (live.c.attempt == Attempt.number))
            .outerjoin(Simulator, came)
            .group_by(Attempt.run_id, Attempt.started_at)
        )
        return {
            run_id: Absence(began if left is None else left, joined=left is not None)
            for run_id, began, left in self._session.execute(query)
        }
