"""The reasons for which runs wait, computed when they are read: nothing is stored, so nothing is out of date.

A run needs a person when it will not go on by itself:

- it is PAUSED. One that a simulator wakes (`simulators.auto_resume`) counts after `SETTLE_SECONDS`: simulators that
  have received the pause ask again at once, and may wake it in the same second.
- a worker holds it, but it has no simulator, its configuration sets no limit to that (`startup_grace_seconds: null`),
  and `FAIR_CHANCE_SECONDS` have passed. A run with a limit pauses by itself, and counts then.
- it is queued, and for `FAIR_CHANCE_SECONDS` neither a live worker nor a declared pool could serve it: hosts that are
  started on demand take minutes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from ludus.config.run import SimulatorsConfig
from ludus.schemas.states import RunKind, RunState, StopReason
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.scheduling import SchedulingSettings
from server.kit.states import CLAIMABLE
from server.runs.models import LEASED_SQL, Attempt, Event, Run
from server.runs.repository import RunRepository
from server.runs.scheduling.demand import Demand, Offer, Slot, keeps_last_gpu
from server.runs.scheduling.order import Account, InTraining, Obstacle, obstacle
from server.simulators.models import Simulator
from server.simulators.repository import CONNECTED, broken_games
from server.workers.repository import WorkerRepository

SETTLE_SECONDS: Final = 5.0
FAIR_CHANCE_SECONDS: Final = 600.0
NAMED: Final = 5
"""Most runs that a sentence names."""


@dataclass(frozen=True)
class Absence:
    """A run that a worker holds has no simulator."""

    seconds: float
    """For how long."""
    joined: bool
    """Whether the present attempt has had one."""

    @property
    def overdue(self) -> bool:
        """Whether the run needs a person if its configuration sets no limit to the wait for the first one."""
        return not self.joined and self.seconds >= FAIR_CHANCE_SECONDS

    def __str__(self) -> str:
        what = "all simulators have been gone" if self.joined else "no simulator has joined"
        return f"{what} for {span(self.seconds)}"


@dataclass(frozen=True)
class Holder:
    """A run that holds a slot."""

    name: str | None
    """None: it is of a project that the reader does not see."""
    state: RunState
    absence: Absence | None
    project: str | None = None
    """The run's project, where it is not that of the run that waits; said only with the name."""

    def __str__(self) -> str:
        who = "a run of another project" if self.name is None else f"run {self.name}"
        if self.name is not None and self.project is not None:
            who = f"{who} of project {self.project}"
        return f"{who} ({self.state}{f', {self.absence}' if self.absence else ''})"


def held_by(holders: Iterable[Holder]) -> str:
    """Name the runs that hold slots, those without a simulator first: to end one of them costs nothing."""
    ordered = sorted(holders, key=lambda holder: (holder.absence is None, holder.name is None, holder.name or ""))
    named = [str(holder) for holder in ordered[:NAMED]]
    if len(ordered) > NAMED:
        named.append(f"{len(ordered) - NAMED} more")
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def waits_for_a_slot(holders: list[Holder], *, keeps_last_gpu: bool = False) -> str:
    """Return the sentence that all slots that could train a run are taken, with their holders.

    `keeps_last_gpu`: one more is idle, and is kept for a run that demands a GPU.
    """
    if keeps_last_gpu:
        reserved = "the last idle one with GPUs is kept for a while for a run that demands one; the others are"
        return f"A free slot: {reserved} held by {held_by(holders)}."
    slots = "the only slot that can train it is" if len(holders) == 1 else f"all {len(holders)} slots are"
    return f"A free slot: {slots} held by {held_by(holders)}."


def repair(last_words: str | None) -> str:
    """Return the rest of the sentence that a run waits: why its last simulator is gone, if that comes again."""
    return "" if last_words is None else f"; mend this before you start it again: {last_words}"


def waits_for_simulators(absence: Absence, limits: SimulatorsConfig | None, last_words: str | None = None) -> str:
    """Return the sentence that a run waits for simulators; with its `limits`, for how long."""
    sentence = f"Simulators: {absence}{repair(last_words)}."
    if limits is None:
        return sentence
    key = "grace_seconds" if absence.joined else "startup_grace_seconds"
    grace = limits.grace_seconds if absence.joined else limits.startup_grace_seconds
    if grace is None:
        return f"{sentence} It waits without limit (simulators.{key})."
    return f"{sentence} It pauses after {span(grace)} without one (simulators.{key})."


def stays_paused(reason: str | None, paused_seconds: float) -> bool:
    """Return whether a PAUSED run needs a person whatever its configuration says."""
    return reason != StopReason.SIMULATORS_LOST or paused_seconds >= SETTLE_SECONDS


def needs_simulators(kind: str) -> bool:
    """Return whether runs of a kind need simulators."""
    return kind != RunKind.CLONE


def span(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


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
        if unserved:  # for long enough, by the controller's record
            recorded = select(Event.run_id).where(Event.run_id.in_(unserved), Event.type == "no_worker_serves")
            old = func.max(Event.at) <= time - FAIR_CHANCE_SECONDS
            needy.update(self._session.scalars(recorded.group_by(Event.run_id).having(old)))
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
        holdings = self._held()
        running = InTraining(Counter(holding.account for holding in holdings))
        for_group: dict[tuple[str, str], tuple[bool, str | None]] = {}  # many runs share few demands
        obstacles: dict[tuple[Account, str], Obstacle | None] = {}
        query = select(Run.id, Run.project, Run.token_id, Run.owner, Run.demand, Run.waits_for)
        rows = [row for part in parts(run_ids) for row in self._session.execute(query.where(Run.id.in_(part)))]
        sentences: dict[str, str] = {}
        unserved: list[str] = []
        for run_id, project, token_id, owner, demand, recorded in rows:
            group = (demand, project)
            if group not in for_group:
                serving = {slot for slot, offer in offers.items() if offer.serves(Demand.parse(demand))}
                for_group[group] = bool(serving), self._full(Demand.parse(demand), serving, offers, holdings, project)
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
                holders = [holding.holder for holding in holdings if holding.project == project] if served else []
                sentences[run_id] = f"{noted} Trained now: {held_by(holders)}." if holders else noted
                if not served and recorded is not None:
                    unserved.append(run_id)
            elif full is not None:
                sentences[run_id] = full
        return sentences, unserved

    def _full(
        self, demand: Demand, serving: set[str], offers: Mapping[str, Offer], held: Sequence[_Held], project: str
    ) -> str | None:
        """Return the sentence that no slot is free for a demand; None if one is, or if no slot serves it."""
        taken = {holding.worker_id for holding in held}
        free = serving - taken
        is_reserved = False
        if free:
            # No idle slot with fewer GPUs can serve it: the last idle one with GPUs may be kept for others.
            smallest = min(free, key=lambda slot: offers[slot].gpus)
            slots = [Slot(offer, slot not in taken) for slot, offer in offers.items() if slot != smallest]
            is_reserved = keeps_last_gpu(demand, offers[smallest], slots)
        holders = [holding.seen_from(project) for holding in held if holding.worker_id in serving - free]
        if not holders or (free and not is_reserved):
            return None
        return waits_for_a_slot(holders, keeps_last_gpu=is_reserved)

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
        visible = project_of(self._session)
        return [
            _Held(
                row.worker_id,
                Account(row.project, row.token_id, row.owner),
                Holder(row.name if visible in {None, row.project} else None, RunState(row.state), absences.get(row.id)),
            )
            for row in rows
        ]

    def _absences(self, run_ids: Iterable[str]) -> Mapping[str, Absence]:
        """Return those of the runs whose present attempt has no simulator now."""
        absences: dict[str, Absence] = {}
        for part in parts(sorted(run_ids)):
            present = select(Simulator.run_id).where(Simulator.run_id.in_(part), Simulator.state == CONNECTED)
            ids = set(part).difference(self._session.scalars(present.distinct()))
            if not ids:
                continue
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
            for run_id, began, since_left in self._session.execute(query):
                seconds = began if since_left is None else since_left
                absences[run_id] = Absence(seconds, joined=since_left is not None)
        return absences
