"""What the API says of the audit log."""

from pydantic import Field

from server.kit.http.fields import Read, Time
from server.kit.http.listing import ListPage


class AuditRead(Read):
    """One request that changed something, or tried to."""

    id: str
    at: Time
    actor: str = Field(description="Name of the token; `configured token` (LUDUS_API__TOKEN), or `anonymous loopback`.")
    token_id: str | None = Field(description="Null where the token is not one of `/v1/tokens`.")
    project: str
    method: str
    route: str = Field(description="The path as this description has it.")
    target: str = Field(description="The path that was asked for.")
    request_id: str = Field(description="As the log of the server has it, and the answer in `X-Request-Id`.")
    status: int = Field(description="HTTP status of the answer.")
    client: str = Field(description="Address that the request came from.")


class AuditPage(ListPage):
    """Entries, newest first."""

    entries: list[AuditRead]
