"""Python games of one's own: how they are named, what they may be, and what is said of those that cannot be played."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.adapters.python import is_python_game, make_simulation, split_name
from ludus.sdk import SimulatorError
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.simulation import GameSimulation, ResumableSimulation, Simulation
from tests.ludus.adapters.table import Table, decisions, start
from tests.toys.mazes import Crowd

MAZES = str(Path(__file__).parents[2] / "toys" / "mazes.py")


@pytest.fixture(autouse=True)
def search_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave Python's search path and the modules as they were."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith(("ludus", "gymnasium", "pettingzoo", "numpy", "pygame")):
            del sys.modules[name]


def written(folder: Path, text: str, name: str = "maze.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def random_play(simulation: Simulation, turns: int = 300) -> Table:
    """Choose evenly among what the masks allow; the games raise when something else is done."""
    random, table = np.random.default_rng(1), Table(simulation)
    told = table.reset()
    for _ in range(turns):
        for name, batch in list(told.items()):
            if batch.decisions is not None:
                masks = decisions(batch).action_masks
                assert masks is not None
                told = table.choose(name, *(int(random.choice(np.flatnonzero(mask))) for mask in masks))
    return table


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("maze.py", ("maze.py", None)),
        ("maze.py:Maze", ("maze.py", "Maze")),
        ("games/maze.py:Maze", ("games/maze.py", "Maze")),
        (r"C:\games\maze.py", (r"C:\games\maze.py", None)),
        (r"C:\games\maze.py:Maze", (r"C:\games\maze.py", "Maze")),
        ("my_games.walk:Walk", ("my_games.walk", "Walk")),
    ],
)
def test_a_name_is_a_file_or_a_module_and_perhaps_a_class(name: str, parts: tuple[str, str | None]) -> None:
    assert split_name(name) == parts
    assert is_python_game(name)


@pytest.mark.parametrize("name", ["maze", "CartPole-v1", "my-games:Walk", "my_games.walk", "x:1"])
def test_other_texts_name_no_python_game(name: str) -> None:
    assert not is_python_game(name)


@pytest.mark.parametrize(
    ("game", "behaviors"),
    [("Maze", ["Maze"]), ("make_maze", ["make_maze"]), ("Race", ["Race?team=0", "Race?team=1"]), ("Crowd", ["Walker"])],
)
def test_every_kind_of_game_is_played_and_its_masks_are_kept(game: str, behaviors: list[str]) -> None:
    simulation = make_simulation(f"{MAZES}:{game}", arguments={"size": 5})

    random_play(simulation)

    assert [spec.name for spec in simulation.behaviors] == behaviors


def test_several_games_in_one_process_are_agents_of_one_simulation() -> None:
    assert len(decisions(Table(make_simulation(f"{MAZES}:Maze", 3)).reset()["Maze"]).agent_ids) == 3
    assert make_simulation(f"{MAZES}:Maze", behavior="Runner").behaviors[0].name == "Runner"


def test_a_module_is_found_where_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_games").mkdir()
    written(tmp_path / "own_games", "from tests.toys.mazes import Maze", "walks.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert make_simulation("own_games.walks:Maze").behaviors[0].name == "Maze"


def test_a_file_finds_its_neighbours_and_is_executed_once_however_many_games_it_makes(tmp_path: Path) -> None:
    written(tmp_path, "SIZE = 7", "sizes_of_mazes.py")
    name = written(
        tmp_path,
        "import sizes_of_mazes\nfrom tests.toys import mazes\n"
        "class Large(mazes.Maze):\n    def __init__(self): super().__init__(sizes_of_mazes.SIZE)\n"
        "print('executed')\n",
    )

    simulation: Any = make_simulation(name, 2)

    assert [env.size for env in simulation._envs] == [7, 7]
    assert make_simulation(name, 2).behaviors[0].name == "Large"


def test_a_file_may_have_the_name_of_a_module_that_is_loaded(tmp_path: Path) -> None:
    import json  # noqa: PLC0415

    name = written(tmp_path, "from tests.toys import mazes\nclass Own(mazes.Maze): pass", "json.py")

    assert make_simulation(name).behaviors[0].name == "Own"
    assert sys.modules["json"] is json


def test_pettingzoos_factory_is_preferred_and_named_after_the_file(tmp_path: Path) -> None:
    text = "from tests.toys.mazes import Race\nclass raw_env(Race): pass\ndef env(): return raw_env()"

    assert make_simulation(written(tmp_path, text, "sprint.py")).behaviors[0].name == "sprint?team=0"


@pytest.mark.parametrize(
    ("text", "suffix", "problem"),
    [
        (None, "", "there is no file"),
        ("x = 1", "", "defines no game, that is a gymnasium.Env"),
        ("x = 1", "", "it defines no class and no function"),
        ("class A: pass\ndef b(): pass", "", "it defines the class A and the function b"),
        ("class A: pass", ":Maze", "has no Maze; it defines the class A"),
        ("class A: pass", ":A", "A in {file} is a class, but not a gymnasium.Env"),
        ("def a(): return 'x'", ":a", "makes a str, which is not a gymnasium.Env"),
        ("a = 5", ":a", "a in {file} is a int object; name a class or a function"),
        (
            "from tests.toys.mazes import Maze\nclass A(Maze): pass\nclass B(Maze): pass",
            "",
            "has several games: A, B; write {file}:A",
        ),
        ("class A(:", "", "raises SyntaxError: invalid syntax (maze.py, line 1)"),
        ("from . import x", "", "a file of a package is named as a module, PACKAGE.MODULE:NAME"),
        ("import sys\nsys.exit(3)", "", "raises SystemExit: 3"),
        (
            "from ludus.sdk import Simulation\nclass A(Simulation):\n    def reset(self, builder, start): pass",
            ":A",
            "raises TypeError: Can't instantiate abstract class A",
        ),
    ],
)
def test_what_is_no_game_is_said_with_what_there_is(
    tmp_path: Path, text: str | None, suffix: str, problem: str
) -> None:
    file = str(tmp_path / "maze.py")
    if text is not None:
        written(tmp_path, text)

    with pytest.raises(GameNotMade) as raised:
        make_simulation(file + suffix)

    assert problem.format(file=file) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_games.walk:Walk", "there is no module no_such_games.walk in"),
        ("tests.toys.no_such:Walk", "there is no module tests.toys.no_such in"),
        (
            "tests.toys.mazes:Nothing",
            "tests.toys.mazes has no Nothing; it defines the classes Maze, Race, Crowd, Score",
        ),
    ],
)
def test_a_module_or_class_that_is_not_there_is_named(name: str, problem: str) -> None:
    with pytest.raises(GameNotMade) as raised:
        make_simulation(name)

    assert problem in str(raised.value)


def test_a_module_that_the_game_lacks_is_the_games_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "import not_installed_here", "lacking.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(GameNotMade) as raised:
        make_simulation("lacking:Walk")

    assert "lacking raises ModuleNotFoundError: No module named 'not_installed_here'" in str(raised.value)
    assert raised.value.trace is not None


def test_an_error_in_the_constructor_comes_with_the_games_traceback_alone() -> None:
    with pytest.raises(GameNotMade) as raised:
        make_simulation(f"{MAZES}:Maze", arguments={"size": 1})

    assert "Maze raises ValueError: a maze of 1 cells has no way (mazes.py:" in str(raised.value)
    assert raised.value.trace is not None
    assert raised.value.trace.count("  File ") == 1
    assert f'File "{MAZES}", line' in raised.value.trace


@pytest.mark.parametrize(
    ("game", "options", "problem"),
    [
        ("Crowd", {"behavior": "X"}, "leave out --behavior"),
        ("Crowd", {"count": 2}, "leave out --envs (--count starts more processes)"),
        ("Crowd", {"teams": (0,)}, "leave out --teams"),
        ("Maze", {"teams": (0,)}, "for games with several players"),
        ("Maze", {"arguments": {"wide": 3}}, "unexpected keyword argument 'wide'"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(game: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(GameNotMade, match=r".*") as raised:
        make_simulation(f"{MAZES}:{game}", **options)

    assert problem in str(raised.value)


class TestSeeds:
    def test_a_simulation_takes_the_seed_of_the_command_line(self) -> None:
        simulation: Any = make_simulation(f"{MAZES}:Crowd", seed=77)

        Table(simulation).reset(start(seed=5))

        assert [each.seed for each in simulation._simulation.starts] == [77]

    def test_the_run_can_seed_a_simulation_whenever_it_resets(self) -> None:
        simulation: Any = make_simulation(f"{MAZES}:Crowd", seed_parameter="opening")
        table = Table(simulation)

        table.reset(start(seed=5, opening=9.0, gravity=2.0))
        table.reset(start(seed=5, first=False, opening=9.0, gravity=2.0))
        table.reset(start(seed=5, first=False, gravity=2.0))

        first, again, without = simulation._simulation.starts
        assert first == again == replace(first, seed=9, first=True, parameters={"gravity": 2.0})
        assert (without.seed, without.first) == (5, False)

    def test_a_parameter_that_is_no_seed_is_refused(self) -> None:
        with pytest.raises(SimulatorError, match="which is no seed"):
            Table(make_simulation(f"{MAZES}:Crowd", seed_parameter="opening")).reset(start(opening=0.5))

    def test_a_simulation_that_resumes_still_does_when_it_is_seeded(self, tmp_path: Path) -> None:
        text = (
            "from tests.toys.mazes import Crowd\nfrom ludus.sdk import ResumableSimulation\n"
            "class Back(Crowd, ResumableSimulation):\n"
            "    def position(self): return b'here'\n"
            "    def resume(self, builder, start, position): self.went = position; self.reset(turn, start)\n"
        )
        name = written(tmp_path, text)

        plain, seeded = make_simulation(name), make_simulation(name, seed=3)

        assert isinstance(plain, ResumableSimulation)
        assert isinstance(seeded, ResumableSimulation)
        assert seeded.position() == b"here"


def test_a_simulation_of_the_sdk_is_handed_on_as_it_is() -> None:
    simulation = make_simulation(f"{MAZES}:Crowd")

    assert type(simulation).__name__ == Crowd.__name__
    assert not isinstance(simulation, GameSimulation)
