"""Games that others wrote learn by the command lines of docs/games.md, on a whole stack (`make games`)."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.stack import LudusUp, environment
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "games.md").read_text()
REWARD = "Environment/Cumulative Reward"

pytestmark = [pytest.mark.learning, pytest.mark.hours, pytest.mark.games, pytest.mark.timeout(3600)]


class Game(NamedTuple):
    """A preset of the page, and what its run reaches in minutes."""

    preset: str
    chance: float
    """The mean return of the first summary lies below this, where hardly anything is learned yet."""
    bar: float
    """The mean return that a later summary reaches."""
    steps: int
    """Agent steps within which it does."""


GAMES = (
    Game("doom", 0.0, 60.0, 30_000),
    Game("minigrid", 0.5, 0.9, 100_000),
    Game("minigrid_memory", 0.5, 0.8, 450_000),
    Game("knights_archers_zombies", 0.75, 2.0, 400_000),
    Game("half_cheetah", 0.0, 1000.0, 250_000),
    Game("multiwalker", -95.0, -75.0, 200_000),
    Game("simple_spread", -21.5, -20.0, 200_000),
    Game("stars", 0.0, 8.0, 60_000),
)

WITHOUT_A_BAR = {"pong", "walker_walk"}
"""Presets with a bar of their own, which take an hour or hours: tests/learning/test_envpool.py. Nobody has seen that of
walker_walk learn yet."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    """A stack with the leases of a user's, on which one game after the other learns."""
    up = LudusUp(tmp_path_factory.mktemp("ludus"))
    yield up
    up.stop()


def test_each_game_of_the_page_is_trained_here_or_named_as_one_without_a_bar() -> None:
    presets = re.findall(r"^ludus config preset (\w+) \| ludus run create - --name \1$", PAGE, re.MULTILINE)

    assert {*presets} - {game.preset for game in GAMES} == WITHOUT_A_BAR


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.preset)
def test_a_game_gets_better_than_chance_by_the_commands_of_its_page(stack: LudusUp, game: Game, tmp_path: Path) -> None:
    (commands,) = re.findall(rf"^(ludus config preset {game.preset} .*\nludus simulate .*)$", PAGE, re.MULTILINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "output.txt").open("wb") as output, stack.client() as client:
        player = subprocess.Popen(
            ["sh", "-ec", commands],
            cwd=ROOT,
            env=environment(LUDUS_SERVER=stack.api, LUDUS_SIMULATOR_SERVER=stack.gateway, PATH=path),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            returns: list[tuple[int, float]] = []

            def ended() -> bool:
                assert player.poll() is None, f"the game ended: {(tmp_path / 'output.txt').read_text()}"
                if any(client.runs.list(f'name = "{game.preset}"')):
                    for series in client.metrics.series(game.preset, REWARD, points=5000):
                        returns[:] = [*zip(series.steps, series.values, strict=True)]
                return bool(returns) and (max(value for _, value in returns) >= game.bar or returns[-1][0] > game.steps)

            eventually(ended, f"{game.bar} within {game.steps} steps: {returns}", 3000)
            client.runs.cancel(game.preset)
        finally:
            os.killpg(player.pid, signal.SIGTERM)
            player.wait(60)

    assert returns[0][1] < game.chance
    assert max(value for _, value in returns) >= game.bar, returns
