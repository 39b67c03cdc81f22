"""Simulators of runs."""

from collections.abc import Iterator, Sequence

from ludus.client.transport import Resource, segment
from ludus.schemas import Simulator, SimulatorListed


class Simulators(Resource):
    """Requests about simulators."""

    def list(self, run: str, state: str | None = None) -> Sequence[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        wanted = "" if state is None else f'state = "{state}"'
        return [*self._transport.pages(Simulator, f"/v1/runs/{segment(run)}/simulators", filter=wanted)]

    def list_all(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[SimulatorListed]:
        """Iterate over the simulators of all runs of the project, newest first unless `order_by` says otherwise.

        `order_by="left_at desc"` has those that left.
        """
        return self._transport.pages(SimulatorListed, "/v1/simulators", limit, filter=filter, order_by=order_by)
