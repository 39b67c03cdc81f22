"""Simulators of runs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from ludus.client.started_simulators import SimulatorOptions, StartedSimulators
from ludus.client.transport import Resource, segment
from ludus.schemas import Simulator, SimulatorListed


class Simulators(Resource):
    """Requests about simulators, and simulators on this machine."""

    def start(
        self,
        run: str,
        game: str,
        *,
        gateway: str | None = None,
        show: Callable[[str], Any] | None = None,
        **options: Unpack[SimulatorOptions],
    ) -> StartedSimulators:
        """Start `ludus simulate` on this machine: `count` processes with `envs` games each, until the run's end.

        `game` is that of the command (`gymnasium:CartPole-v1`, `python:maze.py`), `arguments` are its `--env-arg`s;
        `gateway` is by default that of the client. `show` is called, on a thread, with each line that they print.
        They end with the block if they are used as a context, and with this program at the latest.
        """
        gateway = gateway or self._transport.gateway
        return StartedSimulators(game, run, gateway, self._transport.credential, show, **options)

    def list(self, run: str, state: str | None = None) -> Sequence[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        wanted = "" if state is None else f'state = "{state}"'
        return [*self._transport.pages(Simulator, f"/v1/runs/{segment(run)}/simulators", filter=wanted)]

    def list_all(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[SimulatorListed]:
        """Iterate over the simulators of all runs of the project, newest first unless `order_by` says otherwise.

        `order_by="left_at desc"` has those that left.
        """
        return self._transport.pages(SimulatorListed, "/v1/simulators", limit, filter=filter, order_by=order_by)
