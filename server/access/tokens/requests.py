"""API schemas of tokens."""

from typing import Annotated

from pydantic import Field, StringConstraints

from ludus.schemas.tokens import Scope
from ludus.validation import Form
from server.kit.db.projects import PROJECT, PROJECT_RULE
from server.kit.http.fields import Name, Write

MAX_SECONDS = 10 * 365 * 86400.0
Project = Annotated[
    str, StringConstraints(max_length=64), Form(PROJECT_RULE + ", or `*` for all projects", rf"^({PROJECT}|\*)$")
]
Lifetime = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class TokenCreate(Write):
    """A token that is to be made."""

    name: Name
    """For people: its user or purpose."""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))]
    """`read`: read the project; `run`: also create, change and end its contents, and join its runs as a simulator;
    `admin`: also its tokens and its audit log; `simulate`: only join its runs as a simulator.
    """
    project: Project | None = None
    """The project that it is bound to: that of this request; `*` for all projects."""
    run: Name | None = None
    """Id or name of the only run that it is for: to play in (`simulate`), to read (`read`), or both."""
    ladder: Name | None = None
    """Id or name of the only ladder that it is for: to read (`read` alone)."""
    expires_in_seconds: Lifetime | None = None
    """Not given, it holds until it is revoked."""


class SimulatorTokenCreate(Write):
    """A token for the simulators of one run."""

    name: Name | None = None
    """For people; default: a name with the run in it."""
    expires_in_seconds: Lifetime | None = None
    """Not given, it holds until it is revoked."""
