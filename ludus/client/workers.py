"""Worker hosts."""

from collections.abc import Sequence

from ludus.client.transport import Resource
from ludus.schemas import Worker


class Workers(Resource):
    """Requests about workers."""

    def list(self) -> Sequence[Worker]:
        """Return the slots of all worker hosts."""
        return [*self._transport.pages(Worker, "/v1/workers")]
