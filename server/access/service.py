"""Commands on tokens and sessions, and their request bodies: make a token, sign in."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints

from ludus.schemas.tokens import Scope
from ludus.validation import Form
from server.access.checker import seconds_left
from server.access.models import BrowserSession, Token
from server.access.repository import LIFETIME_SECONDS, SessionRepository, TokenForLadder, TokenForRun, TokenRepository
from server.access.secrets import SessionCookie, draw
from server.kit.db.clock import now
from server.kit.db.database import Session
from server.kit.db.projects import PROJECT, PROJECT_RULE
from server.kit.errors import ProjectForbidden, ScopeMissing
from server.kit.http.fields import Name, Write
from server.kit.principal import Principal
from server.ladders.repository import LadderRepository
from server.runs.repository import RunRepository

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


class SessionCreate(Write):
    """A session of a browser that is to be made."""

    token: Annotated[SecretStr, Field(min_length=1, max_length=1000)]
    """The token that the session stands for."""
    project: Project | None = None
    """In which its requests act, unless they name another: the token's, or `default`, if not given; `*` for all."""


@dataclass(frozen=True, slots=True)
class Made:
    """A token, and its text, which is sent once."""

    token: Token
    text: str = field(repr=False)


class TokenService:
    """Commands on tokens within the caller's transaction. A principal grants no scope that it lacks."""

    def __init__(self, session: Session, principal: Principal) -> None:
        self._session = session
        self._principal = principal
        self._tokens = TokenRepository(session)

    def create(
        self,
        name: str | None,
        scopes: Iterable[Scope],
        *,
        project: str,
        run: str | None = None,
        ladder: str | None = None,
        seconds: float | None = None,
    ) -> Made:
        """Make a token that holds for so many seconds (None: until it is revoked), bound to a run or a ladder if given.

        Raises ScopeMissing, ProjectForbidden, RunNotFound, LadderNotFound, NameAmbiguous, TokenForRun and
        TokenForLadder (bound to one, and for more than it can be).
        """
        granted = frozenset(scopes)
        for scope in sorted(granted - self._principal.scopes):
            raise ScopeMissing(scope)
        if not self._principal.sees(project):
            raise ProjectForbidden(project, self._principal.project)
        run_id = None if run is None else self._run(run, granted, project)
        ladder_id = None if ladder is None else self._ladder(ladder, granted, project)
        if run_id is not None and ladder_id is not None:
            raise TokenForLadder
        new = draw()
        token = Token(
            id=new.token_id,
            name=name or f"simulators-of-{run_id}",
            digest=new.digest,
            scopes=sorted(granted),
            project=project,
            run_id=run_id,
            ladder_id=ladder_id,
            created_by=self._principal.name,
            created_at=now(),
            expires_at=None if seconds is None else now() + seconds,
        )
        return Made(self._tokens.save(token), new.text)

    def _run(self, run: str, scopes: frozenset[Scope], project: str) -> str:
        if not scopes <= {Scope.SIMULATE, Scope.READ}:
            raise TokenForRun
        row = RunRepository(self._session).without_config(run)
        if row.project != project:
            raise TokenForRun
        return row.id

    def _ladder(self, ladder: str, scopes: frozenset[Scope], project: str) -> str:
        if scopes != {Scope.READ}:
            raise TokenForLadder
        row = LadderRepository(self._session).get(ladder)
        if row.project != project:
            raise TokenForLadder
        return row.id


def open_session(
    session: Session, principal: Principal, project: str, configured: str | None
) -> tuple[SessionCookie, float]:
    """Make a session of a principal that acts in a project; return its cookie, and the seconds for which it holds.

    `configured` is the token of the server's settings. Raises TokenRefused: the token was revoked just now.
    """
    cookie, seconds, configured_digest = SessionCookie.draw(), LIFETIME_SECONDS, None
    if principal.token_id is not None:
        seconds = min(seconds, seconds_left(TokenRepository(session).find(principal.token_id)))
    else:
        assert configured is not None, "only the token of the settings is not in the database"
        configured_digest = cookie.digest_of_configured(configured)
    row = BrowserSession(
        id=cookie.session_id,
        digest=cookie.digest,
        token_id=principal.token_id,
        configured_digest=configured_digest,
        project=project,
    )
    SessionRepository(session).add(row, seconds)
    return cookie, seconds
