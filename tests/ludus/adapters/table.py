"""A game simulation and the client's end of its stream: every turn is encoded and decoded as on the wire."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ludus.adapters.pettingzoo import make_simulation
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, BehaviorBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk import Actions, ResetInfo
from ludus.sdk.session import Session

TICTACTOE = "classic.tictactoe_v3"
FIRST, SECOND = "tictactoe?team=0", "tictactoe?team=1"


def start(seed: int = 5, first: bool = True, **parameters: float) -> ResetInfo:
    return ResetInfo(seed=seed, parameters=parameters, number=0, run_id="run-1", first=first)


class Table:
    """Plays a simulation, turn by turn."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation
        self._session = Session(simulation.behaviors)
        self._layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
        self._step_id = 0

    def reset(self, beginning: ResetInfo | None = None) -> dict[str, BehaviorBatch]:
        beginning = beginning or start()
        self._session.reset(pb.Reset(environment_parameters=dict(beginning.parameters)))
        builder = self._session.new_step()
        self.simulation.reset(builder, beginning)
        return self._told(self._session.requests(builder))

    def act(self, *batches: ActionBatch) -> dict[str, BehaviorBatch]:
        message = encode_actions(self._step_id, batches)
        builder = self._session.new_step()
        self.simulation.step(builder, self._session.actions(message) if batches else Actions())
        return self._told(self._session.requests(builder))

    def choose(self, name: str, *choices: int) -> dict[str, BehaviorBatch]:
        """Answer all agents that one behavior asked for."""
        discrete = np.array(choices, np.int32)[:, None]
        return self.act(ActionBatch(name, None, np.zeros((len(choices), 0), np.float32), discrete))

    def _told(self, requests: Sequence[pb.ConnectRequest]) -> dict[str, BehaviorBatch]:
        if not requests:
            return {}
        (request,) = requests
        self._step_id = request.step.step_id
        return {batch.behavior: batch for batch in decode_step(request.step, self._layouts)}


def tictactoe(count: int = 1, **options: Any) -> Table:
    return Table(make_simulation(TICTACTOE, count, **options))


def decisions(batch: BehaviorBatch) -> Any:
    assert batch.decisions is not None
    return batch.decisions


def terminals(batch: BehaviorBatch) -> Any:
    assert batch.terminals is not None
    return batch.terminals
