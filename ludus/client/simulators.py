"""Simulators of runs."""

from collections.abc import Sequence

from ludus.client.transport import Resource, segment
from ludus.schemas import Simulator


class Simulators(Resource):
    """Requests about simulators."""

    def list(self, run: str, state: str | None = None) -> Sequence[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        wanted = "" if state is None else f'state = "{state}"'
        return [*self._transport.pages(Simulator, f"/v1/runs/{segment(run)}/simulators", filter=wanted)]
