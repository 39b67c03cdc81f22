"""The blocks of docs/sdk.md are games that play as they stand."""

import re
from pathlib import Path

import pytest

from ludus.adapters.python import make_simulation
from ludus.sdk import Simulation, connect
from ludus.sdk.contract.scripted import ScriptedServer, finish_after

PAGE = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
GAMES = ["Maze", "make_poles", "Duel"]


@pytest.mark.parametrize(("block", "game"), list(zip(BLOCKS, GAMES, strict=True)), ids=GAMES)
def test_a_game_of_the_page_plays_in_a_run(tmp_path: Path, block: str, game: str) -> None:
    file = tmp_path / f"page_{game.lower()}.py"
    file.write_text(block)
    simulation: Simulation = make_simulation(f"{file}:{game}")

    with ScriptedServer(finish_after(300)) as server:
        ending = connect(simulation, run="page", server=server.address)

    assert server.violations == []
    assert ending.finished
    assert ending.episodes > 0
