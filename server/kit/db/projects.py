"""Projects: the project of each row, and sessions that see the rows of one project only.

Every query of a session that belongs to a project (`Database.within`) is narrowed here, from every repository:
to those rows of an `Owned` model that are the project's, and to those of an `OfRun` model whose run is. What is added
through such a session belongs to its project. So a row of another project is not found, counted, listed, changed or
deleted, and no query has to remember to ask. Sessions without a project (workers, the controller, the gateway's own
writes) see everything.

Rows that hang on a run by `run_id` (events, metrics, attempts, logs) are reached through their run, which is narrowed.
`OfRun` is for those that can also be named by an id of their own.
"""

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import String, column, event, exists, table
from sqlalchemy.orm import (
    Mapped,
    MappedColumn,
    ORMExecuteState,
    Session,
    UOWTransaction,
    mapped_column,
    with_loader_criteria,
)

from server.kit.db.keyset import opaque

DEFAULT: Final = "default"
"""The project of everything that no other is named for."""
EVERY: Final = "*"
"""Stands for all projects."""
PROJECT: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of projects' names, which stand in a header."""
PROJECT_RULE: Final = "the name of a project: 1 to 64 letters, digits, dots, underscores and hyphens, no sign in front"
_PROJECT: Final = "ludus_project"
_RUNS: Final = table("runs", column("id", String), column("project", String))


class Owned:
    """A model whose rows belong to a project."""

    project: Mapped[str] = mapped_column(String(64), default=DEFAULT, server_default=DEFAULT)


class OfRun:
    """A model whose rows belong to the project of their run."""

    run_id: Mapped[str] = mapped_column(String(40))
    """A model may declare it again, with its foreign key."""


class ProjectSession(Session):
    """A session that may belong to a project."""


def project_of(session: Session) -> str | None:
    """Return the project that a session is narrowed to, None if it sees everything."""
    project: str | None = session.info.get(_PROJECT)
    return project


def info_of(project: str | None) -> dict[Any, Any]:
    """Return the `info` of a session of this project."""
    return {} if project is None else {_PROJECT: project}


@event.listens_for(ProjectSession, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    project = project_of(state.session)
    if project is None or state.is_column_load or state.is_relationship_load:
        return
    state.statement = state.statement.options(*_criteria(project))


@lru_cache(maxsize=256)
def _criteria(project: str) -> tuple[Any, ...]:
    """Return what narrows a statement to a project; to make it again would cost each query some 100 us."""
    return (
        # Lists are walked along their own index; where a project has few rows, `RunRepository` begins with them.
        with_loader_criteria(Owned, lambda model: opaque(_column(model.project)) == project, include_aliases=True),
        with_loader_criteria(
            OfRun,
            lambda model: exists().where(_RUNS.c.id == _column(model.run_id), _RUNS.c.project == project),
            include_aliases=True,
        ),
    )


def _column(attribute: Any) -> Any:
    """Return the column of a model's attribute, or of its declaration: SQLAlchemy looks at the parents once, too."""
    return attribute.column if isinstance(attribute, MappedColumn) else attribute


@event.listens_for(ProjectSession, "before_flush")
def _own(session: Session, _context: UOWTransaction, _instances: Any) -> None:
    project = project_of(session)
    if project is not None:
        for row in session.new:
            if isinstance(row, Owned):
                row.project = project
