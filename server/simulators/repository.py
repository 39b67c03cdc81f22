"""Assigns joining simulators to a run's live attempt, records connections, and why games leave; reads collectors."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, case, delete, func, insert, select, tuple_, type_coerce, update
from sqlalchemy.orm import Session, aliased

from ludus.protocol.codes import CloseCode
from ludus.schemas.states import RunState, StopReason
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.database import Database, after_commit
from server.kit.db.keyset import by_name, compare, opaque, parts, rarest, select_page
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import JsonObject, storable
from server.kit.errors import Unavailable
from server.kit.listing import ListQuery, Operator, Page
from server.kit.states import CLAIMABLE, LEASED, TERMINAL
from server.kit.wake_up import WakeUp
from server.runs.events.repository import UNTRACKED, Note, ask, lock_run, move, record
from server.runs.models import BEING_DELETED, Attempt, Run
from server.runs.repository import RunRepository
from server.simulators.models import NoPlaces, PlacesUnavailable, RunClosed, Simulator, SimulatorNotFound


class CollectorRepository(Repository):
    """Reads collectors."""

    def of_run(self, run: Run) -> list[JsonObject]:
        """Return the values of the live attempt's collectors, local ones first; none without such an attempt."""
        attempt = self._session.get(Attempt, (run.id, run.attempt))
        if attempt is None or attempt.ended_at is not None:
            return []
        local = [
            {"kind": "local", "index": endpoint["index"], "address": endpoint["address"]}
            for endpoint in attempt.endpoints
            if not endpoint.get("edge")
        ]
        edge = [{"kind": "edge", **collector} for collector in attempt.edge_collectors or []]
        serving = _load(self._session, run)
        return [{**collector, "simulators": serving.get(collector["index"], 0)} for collector in (*local, *edge)]


JOINED, CONNECTED, LEFT = "joined", "connected", "left"
AWAITED_SECONDS: Final = 60.0
"""A game counts as waiting for so long after its question, at least."""
RENEW_SHARE: Final = 0.75
"""It is written again that a game waits for a run once less than this share of the time for which it counts is left."""
AWAITED: Final = CLAIMABLE | {RunState.STARTING}
"""States in which it is looked at whether a game waits for a run: by slots, and for slots that are lent."""
_KEYS: Final = select(Simulator.run_id, Simulator.session_id)


@dataclass(frozen=True)
class NotReady:
    """The run has no listening attempt at the moment; ask again."""

    run_id: str
    reason: str
    """A sentence for people."""


@dataclass(frozen=True)
class Assigned:
    """A place in the live attempt."""

    run_id: str
    attempt: int
    number: int
    """Of this simulator in the run, counted from 0 in the order of first joining."""
    endpoints: tuple[JsonObject, ...]
    """Collectors: `{"address": "host:port", "index": 0}`, at least one."""
    load: dict[int, int]
    """Simulators that are joined or connected, per collector index, as far as known."""


@dataclass(frozen=True)
class Progress:
    """How far a run is, for simulators that wait for it."""

    state: str
    attempt: int
    simulators: bool
    """Whether collectors for simulators listen."""
    edge: bool
    """Whether it takes edge collectors."""

    def concerns(self, *, edge: bool) -> bool:
        """Tell whether a simulator, or an edge collector, may be answered something else than to wait."""
        return self.state not in LEASED or (self.edge if edge else self.simulators)


JoinAnswer = NotReady | Assigned


class Placement:
    """Gives simulators places in runs. Each call is one transaction.

    Waiting simulators cost only reads, but one write now and then for each run: it is taken before runs without games
    (`Run.awaited_until`).
    """

    def __init__(
        self, database: Database, wake_up: WakeUp | None = None, awaited_seconds: float = AWAITED_SECONDS
    ) -> None:
        """`wake_up` wakes workers for a run that continues; without one the controller wakes them.

        A game counts as waiting for `awaited_seconds` after its question, which is more than it takes to the next one.
        """
        self._database = database
        self._wake_up = wake_up
        self._awaited_seconds = awaited_seconds
        self._enough_seconds = RENEW_SHARE * awaited_seconds

    @property
    def database(self) -> Database:
        """Where it looks."""
        return self._database

    def find(self, run: str, project: str | None) -> str:
        """Return the id of a run (id, or the newest of this name) of a project (None: of any). Raises RunNotFound."""
        with self._database.within(project).read() as session:
            return RunRepository(session).id_of(run)

    def projects_of(self, run: str) -> Sequence[str]:
        """Return the projects that have a run of this name; of an id, its run's."""
        with self._database.read() as session:
            by_id = session.scalars(select(Run.project).where(Run.id == run)).all()
            return by_id or session.scalars(select(Run.project).where(Run.name == run).distinct()).all()

    def join(
        self,
        run: str,
        session_id: str,
        label: str = "",
        client: str = "",
        peer: str = "",
        relay: bool = False,  # a column's value, passed by name
    ) -> JoinAnswer:
        """Assign a simulator to the live attempt of a run (id, or name of the newest such run).

        Idempotent per session_id: the same one gets the same number again, in later attempts too. Raises RunNotFound,
        RunClosed.
        """
        with self._database.read() as session:
            row, clock = RunRepository(session).with_clock(run)
            waiting = _waiting(row, _endpoints(session, row))
        if _lost_its_simulators(row):
            return self._wake(row.id)
        if waiting is not None:
            self._mark(row, clock)
            return waiting
        # Many simulators join a run that starts: the run is locked for as long as four messages take.
        with self._database.write(gathers=True) as session:
            locked = lock_run(session, row.id)
            endpoints = _endpoints(session, locked)
            if (waiting := _waiting(locked, endpoints)) is not None:
                return waiting
            number = _enter(session, locked, session_id, label, client, peer, relay=relay)
            return Assigned(locked.id, locked.attempt, number, _for(endpoints), _load(session, locked))

    def place_collector(self, run: str) -> JoinAnswer:
        """Return where an edge collector streams to.

        The first one of an attempt asks its worker to open the places: one small transaction. Raises RunNotFound,
        RunClosed, NoPlaces, PlacesUnavailable.
        """
        with self._database.read() as session:
            row, clock = RunRepository(session).with_clock(run)
            config = session.scalar(select(Run.config).where(Run.id == row.id)) or {}
            collectors = config.get("simulators", {}).get("collectors", {})
            if not collectors.get("edge", 0):
                raise NoPlaces(row.id)
            endpoints = _endpoints(session, row)
            waiting = _waiting(row, endpoints, edge=True)
            attempt = session.get(Attempt, (row.id, row.attempt))
            if waiting is None:
                return Assigned(row.id, row.attempt, 0, _for(endpoints, edge=True), {})
        if _lost_its_simulators(row):
            return self._wake(row.id, edge=True)
        self._mark(row, clock)
        if attempt is not None and attempt.ended_at is None:
            if attempt.places_problem is not None:
                raise PlacesUnavailable(row.id, attempt.places_problem)
            if not attempt.places_asked and collectors.get("local") != 0:  # without local collectors they are open
                self._ask_for_places(row.id, row.attempt)
        return waiting

    def _mark(self, run: Run, clock: float) -> None:
        """Write that a game waits for a run, as it was read at a time, unless it is written for long enough.

        Not if the run is locked, or nothing can be written: the game asks again. The race: the games of a run begin to
        wait together. One of them writes.
        """
        if run.state not in AWAITED or (run.awaited_until or 0.0) >= clock + self._enough_seconds:
            return
        until = func.coalesce(Run.awaited_until, 0.0)
        unmarked = select(Run.id).where(Run.id == run.id, until < now() + self._enough_seconds)
        mark = update(Run).where(Run.id == unmarked.with_for_update(skip_locked=True).scalar_subquery())
        with suppress(Unavailable), self._database.write(once=True) as session:
            session.execute(mark.values(awaited_until=now() + self._awaited_seconds), execution_options=UNTRACKED)

    def _ask_for_places(self, run_id: str, attempt: int) -> None:
        """Ask the trainer of an attempt for places.

        The race: another edge collector asks, or the attempt ends meanwhile. The run is locked, and looked at again.
        """
        with self._database.write() as session:
            lock_run(session, run_id)
            unasked = (Attempt.places_asked.is_not(True), Attempt.ended_at.is_(None))
            same = update(Attempt).where(Attempt.run_id == run_id, Attempt.number == attempt, *unasked)
            if session.scalar(same.values(places_asked=True).returning(Attempt.number)) is not None:
                note = Note("places_requested", "An edge collector asked for a place, the first one of this attempt.")
                ask(session, run_id, note, attempt=attempt)

    def progress(self, run_ids: Collection[str]) -> Mapping[str, Progress]:
        """Return how far those of some runs are that a worker trains, that have ended, or that wait for simulators."""
        answers = {}
        with self._database.read() as session:
            for part in parts(sorted(run_ids)):
                query = select(Run.id, Run.state, Run.attempt, Attempt.endpoints).outerjoin(
                    Attempt, (Attempt.run_id == Run.id) & (Attempt.number == Run.attempt) & Attempt.ended_at.is_(None)
                )
                lost = (Run.state == RunState.PAUSED) & (Run.stop_reason == StopReason.SIMULATORS_LOST)
                query = query.where(Run.id.in_(part), Run.state.in_(LEASED | TERMINAL) | lost)
                for run_id, state, attempt, endpoints in session.execute(query):
                    kinds = {bool(endpoint.get("edge")) for endpoint in endpoints or ()}
                    answers[run_id] = Progress(state, attempt, simulators=False in kinds, edge=True in kinds)
        return answers

    def report(self, run: str, session_id: str, code: str, sentence: str) -> None:
        """Record on a run a problem of a game's machine, which may be why the simulator leaves. Raises RunNotFound."""
        with self._database.write() as session:
            run_id = RunRepository(session).id_of(run)
            data = {"session_id": session_id, "code": code}
            record(session, run_id, Note("simulator_problem", storable(sentence, 4000), "warning", data))
            keep_last_words(session, run_id, session_id, code, sentence)

    def _wake(self, run_id: str, *, edge: bool = False) -> JoinAnswer:
        """Queue a run again that had paused because all its simulators were gone: here is one.

        The race: a user resumes, stops or pauses the run at the same moment. Its row is locked, and looked at again.
        """
        with self._database.read() as session:
            config = session.scalar(select(Run.config).where(Run.id == run_id)) or {}
        if not config.get("simulators", {}).get("auto_resume", True):
            why = "because all simulators had left, and does not resume by itself (simulators.auto_resume is false)"
            return NotReady(run_id, f"Run {run_id} is PAUSED {why}; it continues when a user resumes it.")
        with self._database.write() as session:
            run = lock_run(session, run_id)
            if _lost_its_simulators(run):
                message = "A simulator came back; the run waits for a worker again."
                awaited_until = now() + self._awaited_seconds
                move(session, run, RunState.QUEUED, Note("run_queued", message), awaited_until=awaited_until)
                if self._wake_up is not None:
                    wake = self._wake_up.wake
                    after_commit(session, lambda: wake(run_id))
            waiting = _waiting(run, _endpoints(session, run), edge=edge)
            return waiting or NotReady(run_id, f"Run {run_id} goes on. Ask again.")


class SimulatorRepository(Repository):
    """Rows of simulators."""

    COLUMNS = by_name(
        Simulator.state,
        Simulator.label,
        Simulator.number,
        Simulator.attempt,
        Simulator.leave_code,
        Simulator.joined_at,
    )
    """Columns of the list of one run."""
    COLUMNS_OF_ALL = by_name(
        Simulator.state, Simulator.run_id, Simulator.leave_code, Simulator.joined_at, Simulator.left_at
    )
    """Columns of the list of all runs."""

    def list(self, run_id: str, query: ListQuery) -> Page[Simulator]:
        """Return a page of a run's simulators, connected and past."""
        statement = select(Simulator).where(Simulator.run_id == run_id)
        return select_page(self._session, statement, query, self.COLUMNS, Simulator.session_id)

    def list_all(self, query: ListQuery) -> Page[Simulator]:
        """Return a page of the simulators of all runs. By `left_at`, those that have not left are left out."""
        statement = select(Simulator).where(Simulator.run_id.not_in(BEING_DELETED))
        project = project_of(self._session)
        of_project = _KEYS.where(Simulator.run_id.in_(select(Run.id).where(Run.project == project)))
        rare = None if project is None else rarest(self._session, [of_project])
        if rare is None:  # in a small project, counting the hits of a common condition would read all other projects
            rare = rarest(self._session, self._hits(query))
        indexed = {query.order.field, "state"}
        if rare is not None:
            statement = statement.where(tuple_(Simulator.run_id, Simulator.session_id).in_(rare))
            indexed = set()
        columns = {
            field: column if field in indexed else opaque(column) for field, column in self.COLUMNS_OF_ALL.items()
        }
        if query.order.field == "left_at":  # the column itself, never null here: its index has the order
            statement = statement.where(Simulator.left_at.is_not(None))
            columns["left_at"] = type_coerce(columns["left_at"], Simulator.left_at.type)
        return select_page(self._session, statement, query, columns, Simulator.key)

    def _hits(self, query: ListQuery) -> Iterator[Select[str, str]]:
        """Select run and session id of those that each condition leaves by itself."""
        for condition in query.conditions:
            if condition.operator is not Operator.NE and condition.field != query.order.field:
                yield _KEYS.where(compare(self.COLUMNS_OF_ALL, condition))

    def get(self, run_id: str, session_id: str) -> Simulator:
        """Return one simulator. Raises SimulatorNotFound."""
        simulator = self._session.get(Simulator, (run_id, session_id))
        if simulator is None:
            raise SimulatorNotFound(run_id, session_id)
        return simulator

    def connected(self, run_id: str, attempt: int, session_id: str, **columns: object) -> None:
        """Record that a collector serves a simulator, whether or not it had joined first."""
        values = columns | {"state": CONNECTED, "attempt": attempt, "connected_at": now(), "left_at": None, "steps": 0}
        row = {"run_id": run_id, "session_id": session_id, "joined_at": now(), **values}
        for column in (Simulator.leave_code, Simulator.leave_reason):  # a game may have reported its end before this
            values[column.key] = case((Simulator.state == JOINED, column), else_=None)
        self._session.execute(
            upsert(self._session, Simulator)
            .values(row)
            .on_conflict_do_update(index_elements=[Simulator.run_id, Simulator.session_id], set_=values)
        )

    def plays(self, run_id: str, attempt: int, session_id: str, behaviors: Sequence[str], agents: int) -> None:
        """Record the behaviors and agents of a simulator in this attempt."""
        self._session.execute(
            update(Simulator)
            .where(Simulator.run_id == run_id, Simulator.session_id == session_id, Simulator.attempt == attempt)
            .values(behaviors=list(behaviors), agents=agents)
        )

    def left(self, run_id: str, attempt: int, session_id: str, *, code: str, reason: str, steps: int) -> None:
        """Record that a simulator's session in this attempt ended."""
        self._session.execute(
            update(Simulator)
            .where(Simulator.run_id == run_id, Simulator.session_id == session_id)
            .where(Simulator.attempt == attempt, Simulator.state != LEFT)
            .values(
                state=LEFT, left_at=now(), leave_code=storable(code, 64), leave_reason=storable(reason), steps=steps
            )
        )

    def forget(self, days: float, limit: int) -> int:
        """Delete at most `limit` simulators that left so many days ago, the longest gone first; return how many."""
        sessions_left = select(Simulator.run_id, Simulator.session_id).where(
            Simulator.left_at < now() - days * DAY_SECONDS
        )
        of_run = defaultdict[str, list[str]](list)
        for run_id, session_id in self._session.execute(sessions_left.order_by(Simulator.left_at).limit(limit)):
            of_run[run_id].append(session_id)
        for run_id, sessions in of_run.items():
            for part in parts(sessions):
                of_them = (Simulator.run_id == run_id, Simulator.session_id.in_(part), Simulator.left_at.is_not(None))
                self._session.execute(delete(Simulator).where(*of_them))
        return sum(map(len, of_run.values()))

    def count_connected(self, run_id: str, attempt: int) -> int:
        """Return how many simulators play in an attempt."""
        query = select(func.count()).where(
            Simulator.run_id == run_id, Simulator.attempt == attempt, Simulator.state == CONNECTED
        )
        return self._session.scalar(query) or 0

    def mark_disconnected(self, run_id: str, attempt: int, code: str, reason: str) -> None:
        """Record that all simulators of an attempt are gone, because the attempt is."""
        self._session.execute(
            update(Simulator)
            .where(Simulator.run_id == run_id, Simulator.attempt == attempt, Simulator.state != LEFT)
            .values(state=LEFT, left_at=now(), leave_code=code, leave_reason=reason)
        )


def _lost_its_simulators(run: Run) -> bool:
    return run.state == RunState.PAUSED and run.stop_reason == StopReason.SIMULATORS_LOST


def _waiting(run: Run, endpoints: Sequence[JsonObject], *, edge: bool = False) -> NotReady | None:
    """Return why a simulator, or an edge collector, can't be placed in this run now, or None; `endpoints` are those of
    its live attempt. Raises RunClosed.
    """
    state = RunState(run.state)
    if state in TERMINAL:
        raise RunClosed(run.id, state)
    if state is RunState.PAUSED:
        return NotReady(run.id, f"Run {run.id} is PAUSED ({run.stop_reason}); it continues when a user resumes it.")
    if state is RunState.PAUSING:  # its collectors end all sessions: no new one is sent there
        return NotReady(run.id, f"Run {run.id} is PAUSING; wait here.")
    if state not in LEASED:
        why = f": {run.waits_for}" if run.waits_for else "; no worker trains it at the moment."
        return NotReady(run.id, f"Run {run.id} is {state}{why}")
    if not _for(endpoints, edge=edge):
        if not edge and _for(endpoints, edge=True):
            why = "its games connect through edge collectors only: start `ludus collect` where they are."
        else:
            why = "its trainer does not listen for edge collectors yet." if edge else "its trainer does not listen yet."
        return NotReady(run.id, f"Run {run.id} is {state}; {why}")
    return None


def _endpoints(session: Session, run: Run) -> Sequence[JsonObject]:
    """Return where the collectors of a run's live attempt listen."""
    if run.state not in LEASED:
        return []
    query = select(Attempt.endpoints).where(
        Attempt.run_id == run.id, Attempt.number == run.attempt, Attempt.ended_at.is_(None)
    )
    return session.scalars(query).one_or_none() or []


def _for(endpoints: Sequence[JsonObject], *, edge: bool = False) -> tuple[JsonObject, ...]:
    """Return the endpoints for simulators, or those for edge collectors."""
    return tuple(endpoint for endpoint in endpoints if bool(endpoint.get("edge")) is edge)


def _enter(session: Session, run: Run, session_id: str, label: str, client: str, peer: str, *, relay: bool) -> int:
    """Enter a simulator in a locked run; return its number, the same each time."""
    same = (Simulator.run_id == run.id, Simulator.session_id == session_id)
    former = session.execute(select(Simulator.number, Simulator.state).where(*same)).one_or_none()
    values: JsonObject = {"attempt": run.attempt, "relayed": relay}
    if former is not None:
        values |= {} if former.state == CONNECTED else {"state": JOINED, "leave_code": None, "leave_reason": None}
        values |= {"peer": storable(peer, 200)} if peer else {}
        session.execute(update(Simulator).where(*same).values(values), execution_options=UNTRACKED)
        return int(former.number)
    texts = {"label": storable(label, 200), "client": storable(client, 100), "peer": storable(peer, 200)}
    values |= {"run_id": run.id, "session_id": session_id, "number": run.simulator_seq, "joined_at": now(), **texts}
    session.execute(insert(Simulator).values(state=JOINED, **values))
    next_one = update(Run).where(Run.id == run.id).values(simulator_seq=Run.simulator_seq + 1)
    session.execute(next_one, execution_options=UNTRACKED)
    return run.simulator_seq


def _load(session: Session, run: Run) -> dict[int, int]:
    query = select(Simulator.collector, func.count()).where(
        Simulator.run_id == run.id, Simulator.attempt == run.attempt, Simulator.state == CONNECTED
    )
    rows = session.execute(query.group_by(Simulator.collector))
    return {collector: count for collector, count in rows if collector is not None}


DISCONNECTED: Final = "disconnected"
"""Code of a simulator whose connection broke; one that has reported the end of its game left for that reason."""
ENDS_OF_GAMES: Final = frozenset({"game_crashed", "bad_game", "exited", "restarts_exhausted"})
"""Codes of reports after which a game is gone, by an error of its own."""
REFUSALS: Final = frozenset(code.value for code in CloseCode if not code.rejoin) - {
    *(CloseCode.RUN_FINISHED, CloseCode.RUN_CANCELLED, CloseCode.RUN_FAILED, CloseCode.SUPERSEDED)
}
"""Codes of simulators that would be refused again."""
_other = aliased(Simulator)


def keep_last_words(session: Session, run_id: str, session_id: str, code: str, sentence: str) -> None:
    """Make a report the reason for which a simulator leaves or has left, if it is the end of its game.

    A reason that the server gave itself stays.
    """
    if code in ENDS_OF_GAMES:
        same = (Simulator.run_id == run_id, Simulator.session_id == session_id)
        unexplained = Simulator.leave_code.is_(None) | (Simulator.leave_code == DISCONNECTED)
        why = {"leave_code": code, "leave_reason": storable(sentence, 4000)}
        session.execute(update(Simulator).where(*same, unexplained).values(why), execution_options=UNTRACKED)


def broken_games(session: Session, run_ids: Collection[str]) -> Mapping[str, str]:
    """Return why the last simulator of each run left: of those runs where it would leave again for the same reason."""
    newest = select(func.max(_other.left_at)).where(_other.run_id == Simulator.run_id).scalar_subquery()
    ended = (Simulator.leave_code.in_(ENDS_OF_GAMES | REFUSALS), Simulator.left_at == newest)
    query = select(Simulator.run_id, Simulator.leave_reason).where(*ended)
    words: dict[str, str] = {}
    for part in parts(sorted(run_ids)):
        rows = session.execute(query.where(Simulator.run_id.in_(part)))
        words |= {run_id: " ".join((reason or "").split()) for run_id, reason in rows}
    return words
