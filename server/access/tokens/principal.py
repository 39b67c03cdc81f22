"""Who asks, and what it may do: scopes, and the project in which it acts."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from server.kit.db.projects import DEFAULT, EVERY


class Scope(StrEnum):
    """What a token is for. Each one that people use includes those before it."""

    SIMULATE = "simulate"
    """Join runs as a simulator, at the gateway. Nothing over HTTP."""
    READ = "read"
    """Look at everything of the project."""
    RUN = "run"
    """Create, change and end what belongs to the project, and play in its runs."""
    ADMIN = "admin"
    """Make and revoke the project's tokens, and read its audit log."""


_INCLUDED: Final = {
    Scope.SIMULATE: frozenset({Scope.SIMULATE}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.RUN: frozenset({Scope.RUN, Scope.READ, Scope.SIMULATE}),
    Scope.ADMIN: frozenset(Scope),
}

ANONYMOUS: Final = "anonymous loopback"
"""Name of whoever reaches a development server, which asks for no token."""
CONFIGURED: Final = "configured token"
"""Name of whoever has the token of the server's settings."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose token was checked, or who needs none."""

    name: str
    """Of the token."""
    scopes: frozenset[Scope]
    """With those that are included."""
    project: str = EVERY
    """To which it is bound; `*`: it is not."""
    token_id: str | None = None
    """None: it is not one of the tokens in the database."""
    run_id: str | None = None
    """The only run in which it may play; None: any of the project."""

    def may(self, scope: Scope, *, everywhere: bool = False) -> bool:
        """Whether it has a scope; with `everywhere` on behalf of the whole server."""
        return scope in self.scopes and not (everywhere and self.project != EVERY)

    def sees(self, project: str) -> bool:
        """Whether it may act in a project (`*`: in all of them at once)."""
        return self.project in {EVERY, project}

    @property
    def home(self) -> str:
        """The project in which it acts unless it says otherwise."""
        return DEFAULT if self.project == EVERY else self.project

    def bound(self, project: str) -> "Principal":
        """Return the same one, bound to a project."""
        return replace(self, project=project)


def including(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return these scopes with those that they include."""
    return frozenset(each for scope in scopes for each in _INCLUDED[scope])


def everything(name: str) -> Principal:
    """Return somebody who may do everything in all projects."""
    return Principal(name, frozenset(Scope))
