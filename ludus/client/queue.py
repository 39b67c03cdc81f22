"""The queue of waiting runs."""

from ludus.client.transport import Resource
from ludus.schemas import Queue


class Queues(Resource):
    """Requests about the queue."""

    def get(self, demand: str | None = None, pool: str | None = None) -> Queue:
        """Return the runs of all projects that wait for a worker; only those of a demand (`1;a100`) or a pool."""
        wanted = {"demand": demand, "pool": pool}
        return self._transport.get(
            Queue, "/v1/queue", {key: value for key, value in wanted.items() if value is not None}
        )
