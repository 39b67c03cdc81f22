"""The principal of a request: its scopes, and the project in which it acts."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ludus.schemas.tokens import Scope
from server.kit.db.projects import DEFAULT, EVERY

_INCLUDED: Final = {
    Scope.SIMULATE: frozenset({Scope.SIMULATE}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.RUN: frozenset({Scope.RUN, Scope.READ, Scope.SIMULATE}),
    Scope.ADMIN: frozenset(Scope),
}

ANONYMOUS: Final = "anonymous loopback"
"""Name of the principal on a development server, which demands no token."""
CONFIGURED: Final = "configured token"
"""Name of the principal with the token of the server's settings."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a checked token, or a client that needs none."""

    name: str
    """Of the token."""
    scopes: frozenset[Scope]
    """With those that are included."""
    project: str = EVERY
    """To which it is bound; `*`: it is not."""
    token_id: str | None = None
    """None: it is not one of the tokens in the database."""
    run_id: str | None = None
    """The only run that it is for; None: any of the project."""
    ladder_id: str | None = None
    """The only ladder that it is for; None: any of the project."""
    session_id: str | None = None
    """The browser's session that stands for the token; None: the request has the token itself."""
    chosen_project: str | None = None
    """The project that was chosen for the session; None: none was."""

    def may(self, scope: Scope, *, everywhere: bool = False) -> bool:
        """Whether it has a scope; with `everywhere` on behalf of the whole server."""
        return scope in self.scopes and not (everywhere and self.project != EVERY)

    @property
    def binding(self) -> tuple[str, str] | None:
        """Return the path parameter (`run` or `ladder`) and the id that it is bound to; None: it is not bound."""
        if self.run_id is not None:
            return "run", self.run_id
        return None if self.ladder_id is None else ("ladder", self.ladder_id)

    def sees(self, project: str) -> bool:
        """Whether it may act in a project (`*`: in all of them at once)."""
        return self.project in {EVERY, project}

    @property
    def home(self) -> str:
        """The project in which it acts unless it says otherwise."""
        return self.chosen_project or (DEFAULT if self.project == EVERY else self.project)

    @property
    def credential_id(self) -> str | None:
        """Id of the session or the token with whose end its open requests end; None: they never do."""
        return self.session_id or self.token_id

    def bound(self, project: str) -> "Principal":
        """Return the same one, bound to a project."""
        return replace(self, project=project)


def including(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return these scopes with those that they include."""
    return frozenset(included for scope in scopes for included in _INCLUDED[scope])


def everything(name: str) -> Principal:
    """Return a principal with every scope in all projects."""
    return Principal(name, frozenset(Scope))
