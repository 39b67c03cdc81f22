"""Worker hosts."""

from collections.abc import Sequence

from ludus.client.transport import Resource, segment
from ludus.schemas import SelectedWorkers, Worker


class Workers(Resource):
    """Requests about workers."""

    def list(self, filter: str = "", limit: int | None = None) -> Sequence[Worker]:
        """Return the slots of all worker hosts, newest first; `filter` as in `host = box-1`."""
        return [*self._transport.pages(Worker, "/v1/workers", limit, filter=filter)]

    def cordon(self, worker: str) -> Sequence[Worker]:
        """Keep runs away from a slot (`host/pid/start`), or from a host with all of its slots; return the slots."""
        return self._verb(worker, "cordon")

    def uncordon(self, worker: str) -> Sequence[Worker]:
        """Lift the cordon of a slot, or of a host with all of its slots; return the slots."""
        return self._verb(worker, "uncordon")

    def drain(self, worker: str) -> Sequence[Worker]:
        """Cordon a slot or a host, and have its runs save a checkpoint and go to other slots; return the slots.

        It is done when none of the slots has a `run_id`: `selected` returns them again.
        """
        return self._verb(worker, "drain")

    def selected(self, worker: str) -> Sequence[Worker]:
        """Return the slot with this id, or the slots of this host, as they are now."""
        return self.list(f'{"id" if "/" in worker else "host"} = "{worker}"')

    def _verb(self, worker: str, verb: str) -> Sequence[Worker]:
        return self._transport.post(SelectedWorkers, f"/v1/workers/{segment(worker)}:{verb}").workers
