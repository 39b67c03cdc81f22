"""Tokens and the audit log."""

from collections.abc import Iterator, Sequence

from ludus.client.transport import Resource, segment, without_none
from ludus.schemas import AuditEntry, Identity, NewToken, Token


class Tokens(Resource):
    """Requests about tokens."""

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        project: str | None = None,
        run: str | None = None,
        ladder: str | None = None,
        expires_in_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> NewToken:
        """Create a token with scopes of `read`, `run`, `admin` and `simulate`. Only this answer has its secret.

        `project` is this client's by default (`*`: all). `run` binds a token that has only `simulate` and `read` to one
        run, `ladder` one that has only `read` to one ladder.
        """
        body = without_none(
            name=name,
            scopes=list(scopes),
            project=project,
            run=run,
            ladder=ladder,
            expires_in_seconds=expires_in_seconds,
        )
        return self._transport.post(NewToken, "/v1/tokens", body, idempotency_key)

    def create_for_simulators(
        self, run: str, *, name: str | None = None, expires_in_seconds: float | None = None
    ) -> NewToken:
        """Create a token with which simulators can play in one run, and do nothing else."""
        body = without_none(name=name, expires_in_seconds=expires_in_seconds)
        return self._transport.post(NewToken, f"/v1/runs/{segment(run)}/simulator_tokens", body)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Token]:
        """Iterate over the project's tokens, newest first, with the revoked and expired ones."""
        return self._transport.pages(Token, "/v1/tokens", limit, filter=filter, order_by=order_by)

    def get(self, token_id: str) -> Token:
        """Return one token, without its secret."""
        return self._transport.get(Token, f"/v1/tokens/{segment(token_id)}")

    def current(self) -> Identity:
        """Return the identity and the permissions that the server sees in this client's requests."""
        return self._transport.get(Identity, "/v1/tokens/self")

    def revoke(self, token_id: str) -> None:
        """Revoke a token."""
        self._transport.delete(f"/v1/tokens/{segment(token_id)}")


class AuditLog(Resource):
    """Requests about the audit log."""

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[AuditEntry]:
        """Iterate over the requests that changed something in the project, newest first."""
        return self._transport.pages(AuditEntry, "/v1/audit", limit, field="entries", filter=filter, order_by=order_by)
