"""Simulators of runs."""

from collections.abc import Sequence

from ludus.client.transport import Resource, segment
from ludus.schemas import Simulator


class Simulators(Resource):
    """Requests about simulators."""

    def list(self, run: str, state: str | None = None) -> Sequence[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        parameters = {} if state is None else {"filter": f'state = "{state}"'}
        path = f"/v1/runs/{segment(run)}/simulators"
        return [*self._transport.pages(Simulator, path, "simulators", parameters)]
