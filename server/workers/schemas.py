"""What the API says of workers."""

from typing import Any

from pydantic import Field

from server.kit.http.fields import Read, Time
from server.kit.http.listing import ListPage


class WorkerRead(Read):
    """One slot of a worker host."""

    id: str
    host: str
    pid: int
    version: str
    labels: list[str]
    resources: dict[str, Any] = Field(description='For instance `{"gpus": ["GPU-5d2f..."]}`.')
    run_id: str | None = Field(description="What it works on.")
    started_at: Time
    heartbeat_at: Time
    last_claim_at: Time | None
    stopped_at: Time | None


class WorkerPage(ListPage):
    """Workers, also those that stopped or fell silent."""

    workers: list[WorkerRead]
