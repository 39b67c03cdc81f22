"""The reasons for which runs wait, computed when they are read: nothing is stored, so nothing is out of date."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from ludus.schemas.states import RunState
from server.config.run import SimulatorsConfig
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.states import CLAIMABLE
from server.lifecycle.blocked.reasons import (
    FAIR_CHANCE_SECONDS,
    Absence,
    Holder,
    absent_for_good,
    held_by,
    needs_simulators,
    paused_for_good,
    waits_for_a_slot,
    waits_for_simulators,
)
from server.runs.models import LEASED_SQL, Attempt, Event, Run
from server.runs.scheduling.demand import Demand, Offer, no_slot_serves
from server.simulators.models import Simulator
from server.simulators.repository import CONNECTED
from server.workers.repository import WorkerRepository

TRAINING = frozenset({RunState.STARTING, RunState.RUNNING})
"""States in which a run wants simulators."""


@dataclass(frozen=True)
class _Held:
    """A slot that a run holds."""

    worker_id: str
    project: str
    holder: Holder

    def seen_from(self, project: str) -> Holder:
        """Return the holder for a run of this project: with its own project where that is another one."""
        return self.holder if self.project == project else replace(self.holder, project=self.project)


class BlockedRepository(Repository):
    """Computes what runs wait for. One object per session, which may be narrowed to a project."""

    def __init__(self, session: Session, alive_seconds: float) -> None:
        """`alive_seconds`: a worker that was silent for longer counts as gone."""
        super().__init__(session)
        self._alive_seconds = alive_seconds

    def tell(self, runs: Sequence[Run], *, with_limits: bool = False) -> None:
        """Set `waits_for` of runs as read from the database to what they wait for now; nothing is written back.

        `with_limits` adds for how long they will, which their configurations say (lists do not read those).
        """
        waiting = [run for run in runs if run.state in CLAIMABLE]
        sentences = self._for_slots([run.id for run in waiting]) if waiting else {}
        training = {run.id: run for run in runs if run.state in TRAINING and needs_simulators(run.kind)}
        for run_id, absence in self._absences(training).items():
            limits = _limits(training[run_id]) if with_limits else None
            sentences[run_id] = waits_for_simulators(absence, limits)
        for run in runs:
            set_committed_value(run, "waits_for", sentences.get(run.id))

    def needs_action(self, run: Run) -> bool:
        """Return whether a run that `tell` was given continues only when a person acts (see `reasons`)."""
        if run.state == RunState.PAUSED:
            paused = self.clock() - run.updated_at
            return paused_for_good(run.stop_reason, _limits(run), paused)
        if run.state in CLAIMABLE:
            return self._unserved(run)
        if run.state not in TRAINING or run.waits_for is None:
            return False
        absence = self._absences([run.id]).get(run.id)
        return absence is not None and absent_for_good(absence, _limits(run))

    def _unserved(self, run: Run) -> bool:
        """Return whether no live worker could serve a run for long enough; the controller records since when."""
        if (
            no_slot_serves(Demand.parse(run.demand), WorkerRepository(self._session).offers(self._alive_seconds))
            is None
        ):
            return False
        recorded = select(func.max(Event.at)).where(Event.run_id == run.id, Event.type == "no_worker_serves")
        since = self._session.scalar(recorded)
        noted = self._session.scalar(select(Run.waits_for).where(Run.id == run.id))
        return noted is not None and since is not None and self.clock() - since >= FAIR_CHANCE_SECONDS

    def _for_slots(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the reasons of waiting runs: the controller's record, or a missing slot; none if a slot is free."""
        slots = WorkerRepository(self._session).alive(self._alive_seconds)
        offers = {slot.id: Offer.of(slot.labels, slot.resources) for slot in slots}
        held = self._held()
        taken = {one.worker_id for one in held}
        for_group: dict[tuple[str, str], tuple[bool, str | None]] = {}  # many runs share few demands
        query = select(Run.id, Run.project, Run.demand, Run.waits_for)
        rows = [row for some in parts(run_ids) for row in self._session.execute(query.where(Run.id.in_(some)))]
        sentences: dict[str, str] = {}
        for run_id, project, demand, noted in rows:
            group = (demand, project)
            if group not in for_group:
                serving = {slot for slot, offer in offers.items() if offer.serves(Demand.parse(demand))}
                all_taken = bool(serving) and serving <= taken
                holders = [one.seen_from(project) for one in held if one.worker_id in serving] if all_taken else []
                for_group[group] = bool(serving), waits_for_a_slot(holders) if all_taken else None
            served, full = for_group[group]
            if noted is not None:
                # With a slot that serves it, the obstacle is a quota: runs of its project are what it waits for.
                own = [one.holder for one in held if one.project == project] if served else []
                sentences[run_id] = f"{noted} Trained now: {held_by(own)}." if own else noted
            elif full is not None:
                sentences[run_id] = full
        return sentences

    def _held(self) -> list[_Held]:
        """Return the slots that runs hold, of all projects; names only of those that this session may see."""
        # Selected as tables: the session would leave the runs of other projects out.
        run, attempt = Run.__table__.c, Attempt.__table__.c
        live = (attempt.run_id == run.id) & (attempt.number == run.attempt) & attempt.ended_at.is_(None)
        query = select(run.id, run.name, run.project, run.state, run.kind, attempt.worker_id)
        rows = self._session.execute(
            query.join_from(Run.__table__, Attempt.__table__, live).where(text(f"runs.{LEASED_SQL}"))
        ).all()
        absences = self._absences([row.id for row in rows if row.state in TRAINING and needs_simulators(row.kind)])
        seen = project_of(self._session)
        return [
            _Held(
                row.worker_id,
                row.project,
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


def _limits(run: Run) -> SimulatorsConfig:
    """Return how long a run waits for simulators. Configurations of earlier releases lack newer keys."""
    return SimulatorsConfig.model_validate(run.config.get("simulators") or {})
