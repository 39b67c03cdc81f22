"""Tokens: who may do what; and the audit log: who did."""

from collections.abc import Iterator, Sequence

from ludus.client.transport import Transport, segment, without_none
from ludus.schemas import AuditEntry, Identity, Token


class Tokens(Transport):
    """Requests about tokens and the audit log."""

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        project: str | None = None,
        run: str | None = None,
        expires_in_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Token:
        """Make a token: `scopes` of `read`, `run`, `admin` and `simulate`. Its text, `token`, is told this once.

        `project` is this client's unless given (`*`: all); `run` binds a token for `simulate` alone to one run.
        """
        optional = without_none({"project": project, "run": run, "expires_in_seconds": expires_in_seconds})
        body = {"name": name, "scopes": list(scopes), **optional}
        return self._read(Token, self._post("/v1/tokens", body, idempotency_key))

    def create_simulator_token(
        self, run: str, *, name: str | None = None, expires_in_seconds: float | None = None
    ) -> Token:
        """Make a token with which simulators can play in one run, and do nothing else."""
        body = without_none({"name": name, "expires_in_seconds": expires_in_seconds})
        return self._read(Token, self._post(f"/v1/runs/{segment(run)}/simulator_tokens", body))

    def list_tokens(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Token]:  # noqa: A002
        """Iterate over the project's tokens, newest first, also over those that don't hold any more."""
        return self._items(Token, "/v1/tokens", "tokens", {"filter": filter, "order_by": order_by}, limit)

    def get_token(self, token_id: str) -> Token:
        """Return one token, without its secret."""
        return self._read(Token, self._get(f"/v1/tokens/{segment(token_id)}"))

    def own_token(self) -> Identity:
        """Return who this client is to the server, and what it may do."""
        return self._read(Identity, self._get("/v1/tokens/self"))

    def revoke_token(self, token_id: str) -> None:
        """Let a token hold no longer."""
        self._delete(f"/v1/tokens/{segment(token_id)}")

    def audit(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[AuditEntry]:  # noqa: A002
        """Iterate over the requests that changed something in the project, newest first."""
        return self._items(AuditEntry, "/v1/audit", "entries", {"filter": filter, "order_by": order_by}, limit)
