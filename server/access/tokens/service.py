"""Commands on tokens: make one, revoke one."""

from collections.abc import Iterable
from dataclasses import dataclass

from ludus.schemas.tokens import Scope
from server.access.tokens.errors import TokenForLadder, TokenForRun
from server.access.tokens.models import Token
from server.access.tokens.repository import TokenRepository
from server.access.tokens.secrets import draw
from server.kit.db.clock import now
from server.kit.db.database import Session
from server.kit.errors import ProjectForbidden, ScopeMissing
from server.kit.principal import Principal
from server.ladders.repository import LadderRepository
from server.runs.repository import RunRepository


@dataclass(frozen=True, slots=True)
class Made:
    """A token, and its text, which is sent once."""

    token: Token
    text: str

    def __repr__(self) -> str:
        return f"Made({self.token.id!r})"


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
        wanted = frozenset(scopes)
        for scope in sorted(wanted - self._principal.scopes):
            raise ScopeMissing(scope)
        if not self._principal.sees(project):
            raise ProjectForbidden(project, self._principal.project)
        run_id = None if run is None else self._run(run, wanted, project)
        ladder_id = None if ladder is None else self._ladder(ladder, wanted, project)
        if run_id is not None and ladder_id is not None:
            raise TokenForLadder
        new = draw()
        token = Token(
            id=new.token_id,
            name=name or f"simulators-of-{run_id}",
            digest=new.digest,
            scopes=sorted(wanted),
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
        found = RunRepository(self._session).without_config(run)
        if found.project != project:
            raise TokenForRun
        return found.id

    def _ladder(self, ladder: str, scopes: frozenset[Scope], project: str) -> str:
        if scopes != {Scope.READ}:
            raise TokenForLadder
        found = LadderRepository(self._session).get(ladder)
        if found.project != project:
            raise TokenForLadder
        return found.id
