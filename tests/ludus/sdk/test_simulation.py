"""A simulation that wraps another one is that one, but for what it changes."""

from ludus.sdk import Actions, ResetInfo, StepBuilder
from ludus.sdk.session import Session
from ludus.sdk.simulation import SimulationWrapper
from tests.toys.catch import Catch


class Halved(SimulationWrapper):
    """Changes the seed alone."""

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        super().reset(builder, ResetInfo(start.seed // 2, start.parameters, start.number, start.run_id, start.first))


def test_a_wrapper_forwards_what_it_does_not_change() -> None:
    game, alike = Catch(), Catch()
    wrapped = Halved(game)
    assert (wrapped.behaviors, wrapped.waits_for_all) == (game.behaviors, game.waits_for_all)

    told = []
    for simulation, seed in ((wrapped, 3), (alike, 1)):
        session = Session(simulation.behaviors)
        builder = session.new_step()
        simulation.reset(builder, ResetInfo(seed, {}, 0, "run", first=True))
        simulation.step(builder, Actions())
        told.append([request.SerializeToString() for request in session.requests(builder)])
        simulation.close()

    assert told[0] == told[1]
    assert game.starts == alike.starts == [ResetInfo(1, {}, 0, "run", first=True)]
    assert game.closed == 1
