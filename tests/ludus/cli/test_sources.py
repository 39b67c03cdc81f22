"""What `ludus simulate` sends its processes, and who plays in them."""

from pathlib import Path

import pytest
import torch

from ludus.adapters.pettingzoo import make_simulation
from ludus.cli.simulate import Plan
from ludus.cli.sources import Source, try_to_make, with_scripted
from ludus.config.network import NetworkSettings
from tests.ludus.adapters.table import FIRST, TICTACTOE, Table, decisions
from worker.learning.networks.actor import Actor
from worker.onnx.export import export_onnx


def test_a_plan_survives_its_way_to_another_process() -> None:
    source = Source("pettingzoo", "my_games.duel", {"limit": 3, "names": ["a"]}, "Duel", True, [0, 1], "opening")
    plan = Plan(True, source, 4, {1: "random"}, 7, "127.0.0.1:1", "run", "label", None, 300.0, None)

    assert Plan.from_json(plan.to_json()) == plan


def test_a_game_is_made_as_the_source_says() -> None:
    source = Source("pettingzoo", "tests.toys.arena:arena", {"limit": 3}, behavior="Pit", teams=(0, 0, 1, 1))

    simulation = source.make(count=2)

    assert [spec.name for spec in simulation.behaviors] == ["Pit?team=0", "Pit?team=1"]


def test_an_exported_model_can_play_a_team_in_the_simulator(tmp_path: Path) -> None:
    simulation = make_simulation(TICTACTOE)
    spec, path = simulation.behaviors[1], tmp_path / "champion.onnx"
    export_onnx(Actor(spec, NetworkSettings(), torch.Generator().manual_seed(1)), spec, path)

    table = Table(with_scripted(simulation, {1: str(path)}))

    assert [spec.name for spec in table.simulation.behaviors] == [FIRST]
    assert decisions(table.reset()[FIRST]).action_masks.sum() == 9
    assert table.choose(FIRST, 4) == {}, "the model's turn"
    (told,) = table.act().values()
    mask = decisions(told).action_masks[0]
    assert (mask.sum(), mask[4]) == (7, 0), "it took a cell that was free"


@pytest.mark.parametrize(("library", "agents"), [("gymnasium-vec", 3), ("gymnasium", 1)])
def test_a_vector_is_tried_with_the_number_of_environments_that_will_play(library: str, agents: int) -> None:
    simulation = try_to_make(Source(library, "CartPole-v1"), 3)

    assert len(decisions(Table(simulation).reset()["CartPole"]).agent_ids) == agents
