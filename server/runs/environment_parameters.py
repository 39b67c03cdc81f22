"""Users' commands on a live run's environment parameters: read them, change a lesson or a value.

A change is a row first. The run's supervisor finds it with its next heartbeat and hands it to the trainer, which does
it and says so by an event, with old and new. A trainer's checkpoint knows up to which change it has come, so that a
change is neither lost by a crash nor done twice.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import Field, model_validator
from sqlalchemy import ForeignKey, Integer, String, func, select
from sqlalchemy.orm import Mapped, mapped_column

from ludus.config.curriculum import after_end, status_of, value_to_plain
from ludus.config.environment_parameters import (
    Lesson,
    LessonKey,
    LessonUnknown,
    LessonValue,
    ParameterName,
    describe,
    find_lesson,
    with_seed,
)
from ludus.config.problems import Path, join_path, show
from ludus.config.run import RunConfig
from ludus.schemas import EnvironmentParameter
from server.kit.db.base import CLUSTERED, Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.database import Session
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject
from server.kit.errors import InvalidEdit, Problem
from server.kit.http.fields import Write
from server.kit.states import TERMINAL
from server.runs.attempts import AttemptFence
from server.runs.events.repository import Note, ask
from server.runs.models import Run
from server.runs.repository import RunRepository


class RunParameters(Base):
    """The newest report of a run's trainer about its environment parameters."""

    __tablename__ = "run_parameters"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    parameters: Mapped[list[JsonObject]] = mapped_column(Json)
    """The fields of `ludus.schemas.EnvironmentParameter` of each."""
    edit: Mapped[int] = mapped_column(Integer)
    """Number of the newest edit that it has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class ParameterEdit(Base):
    """A request for another lesson or value. Rows stay: a trainer that resumes from before an edit does it again."""

    __tablename__ = "parameter_edits"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    parameter: Mapped[str] = mapped_column(String(200))
    change: Mapped[JsonObject] = mapped_column(Json)
    """`lesson`: its number from 1, `value`: as configurations write it; either or both."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class ParameterRepository(Repository):
    """Environment parameters of runs: their reports and edits."""

    def of_run(self, run_id: str) -> RunParameters | None:
        """Return what the run's newest trainer last said; None before the first has."""
        return self._session.get(RunParameters, run_id)

    def store_report(self, run_id: str, parameters: Sequence[Mapping[str, object]], edit: int) -> None:
        """Store what a trainer reports."""
        plain = [dict(parameter) for parameter in parameters]
        self._session.merge(RunParameters(run_id=run_id, parameters=plain, edit=edit, updated_at=now()))

    def edits(self, run_id: str, after: int = 0) -> Sequence[ParameterEdit]:
        """Return a run's edits with a number above `after`, in their order."""
        query = select(ParameterEdit).where(ParameterEdit.run_id == run_id, ParameterEdit.seq > after)
        return self._session.scalars(query.order_by(ParameterEdit.seq)).all()

    def add(self, run_id: str, parameter: str, change: Mapping[str, object]) -> ParameterEdit:
        """Append an edit to a locked run."""
        seq = self.newest(run_id) + 1
        return self.save(
            ParameterEdit(run_id=run_id, seq=seq, parameter=parameter, change=dict(change), created_at=now())
        )

    def newest(self, run_id: str) -> int:
        """Return the number of a run's newest edit; 0 without any."""
        return self._session.scalar(select(func.max(ParameterEdit.seq)).where(ParameterEdit.run_id == run_id)) or 0


class ParameterWriter:
    """Reads edits of environment parameters, and publishes where the parameters are."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def edits(self, after: int) -> list[tuple[int, str, JsonObject]]:
        """Return number, parameter and change of the edits behind `after`. Not fenced: edits never change."""
        with self._fence.database.read() as session:
            edits = ParameterRepository(session).edits(self._fence.run_id, after)
            return [(edit.seq, edit.parameter, edit.change) for edit in edits]

    def publish(self, parameters: Sequence[Mapping[str, object]], edit: int) -> None:
        """Store where the parameters are, and the number of the last edit that the trainer has applied.

        Raises LeaseLost.
        """
        with self._fence.write() as (session, run):
            ParameterRepository(session).store_report(run.id, parameters, edit)


class EnvironmentParameterChange(Write):
    """Another lesson for a parameter, or another value for its present lesson, or both."""

    lesson: LessonKey | None = None
    """The lesson to begin: its name, or its number from 1."""
    value: LessonValue | None = None
    """A number or a sampler, in place of what the lesson has in the configuration; it stays the lesson's. A sampler
    without a seed gets one of the run's.
    """

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.lesson is None and self.value is None:
            raise ValueError("give a lesson, a value, or both")
        return self


class EnvironmentParametersUpdate(Write):
    """Changes of a run that has not ended."""

    parameters: dict[ParameterName, EnvironmentParameterChange] = Field(
        min_length=1, max_length=1000, examples=[{"wall_height": {"lesson": "HighWall"}, "gravity": {"value": 9.81}}]
    )
    """By the parameter's name."""


class ParameterService:
    """Environment parameters of runs. The session's owner commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._runs = RunRepository(session)
        self._parameters = ParameterRepository(session)

    def read(self, run: str) -> tuple[list[EnvironmentParameter], Sequence[ParameterEdit]]:
        """Return where a run's parameters are, and the edits that are pending. Raises RunNotFound.

        Of a run that has ended: where they were at its end, and the edits that it has not come to.
        """
        run_row = self._runs.get(run)
        reported = self._parameters.of_run(run_row.id)
        if reported is None:
            statuses, edit = _initial(run_row.parsed_config), 0
        else:
            statuses, edit = [EnvironmentParameter(**parameter) for parameter in reported.parameters], reported.edit
        if run_row.state in TERMINAL:
            statuses = [after_end(status) for status in statuses]
        return statuses, self._parameters.edits(run_row.id, edit)

    def edit(self, run: str, wanted: Mapping[str, EnvironmentParameterChange], where: Path = ("parameters",)) -> Run:
        """Ask for changes, all or none; mistakes are reported below the path `where`.

        Raises RunNotFound, RunEnded, InvalidEdit.
        """
        config = self._runs.get(run).parsed_config
        hint = "; `starting_lesson` in its configuration says with which lesson a parameter begins"
        locked = self._runs.lock_live(run, hint)
        lessons = config.lessons()
        if problems := [
            problem for name, change in wanted.items() for problem in _problems(where, name, change, lessons)
        ]:
            raise InvalidEdit(problems)
        for name, change in wanted.items():
            self._ask(locked, name, change, lessons[name])
        return locked

    def _ask(self, run: Run, name: str, wanted: EnvironmentParameterChange, lessons: Sequence[Lesson]) -> None:
        change: JsonObject = {}
        words = []
        if wanted.lesson is not None:
            index = find_lesson(lessons, wanted.lesson)
            change["lesson"] = index + 1
            words.append(f"lesson {index + 1} of {len(lessons)} {lessons[index].name!r}")
        if wanted.value is not None:
            value = with_seed(wanted.value, (run.seed + self._parameters.newest(run.id)) % 2**31)
            change["value"] = value_to_plain(value)
            words.append(f"the value {describe(value)}")
        edit = self._parameters.add(run.id, name, change)
        message = f"A user asked for {' with '.join(words)} of parameter '{name}'."
        data = {"parameter": name, "seq": edit.seq, **change}
        ask(self._session, run.id, Note("parameter_change_requested", message, data=data))


def _problems(
    where: Path, name: str, change: EnvironmentParameterChange, lessons: Mapping[str, Sequence[Lesson]]
) -> list[Problem]:
    if name not in lessons:
        names = ", ".join(list(lessons)[:20]) or "none"
        message = f"the run has no environment parameter {show(name)}; there is {names}"
        return [Problem(join_path((*where, name)), "not_found", message)]
    if change.lesson is not None:
        try:
            find_lesson(lessons[name], change.lesson)
        except LessonUnknown as error:
            return [Problem(join_path((*where, name, "lesson")), "not_found", str(error))]
    return []


def _initial(config: RunConfig) -> list[EnvironmentParameter]:
    """Describe the parameters of a run that no trainer has begun."""
    first = config.first_lessons()
    return [
        status_of(name, lessons, first[name], lessons[first[name]].value) for name, lessons in config.lessons().items()
    ]
