"""The imitation example runs, is the same for the same seed, and draws two pictures with titles."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest

from ludus.demonstrations import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "imitation" / "imitation.py"


pytestmark = pytest.mark.xdist_group("imitation example")
"""One process: the experiments are made once."""


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    mpl.use("Agg")
    spec = importlib.util.spec_from_file_location("imitation_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        for name, value in {"EXPERT_EPISODES": 12, "PAIRS": 8, "CLONE_STEPS": 120, "GAIL_EPISODES": 12}.items():
            patch.setattr(module, name, value)
        yield module


@dataclass(frozen=True)
class Made:
    """What an experiment leaves."""

    returns: dict[str, list[float]]
    folder: Path
    said: list[str]
    drawn: list[tuple[str, str, str]]
    """Title and labels of each picture."""


@pytest.fixture(scope="module")
def twice(example: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """Make the same experiment two times."""
    made = []
    for _ in range(2):
        said: list[str] = []
        drawn = []
        close = example.plt.close

        def look(figure: Any) -> None:
            (axes,) = figure.axes
            drawn.append((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))  # noqa: B023  of this turn
            close(figure)  # noqa: B023

        folder = tmp_path_factory.mktemp("imitation") / "made"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(example.plt, "close", look)
            made.append(Made(example.experiment(folder, seed=3, say=said.append), folder, said, drawn))
    return made


def test_equal_seeds_give_equal_returns_and_files(twice: list[Made]) -> None:
    one, other = twice

    assert one.returns == other.returns
    assert {name: len(returns) for name, returns in one.returns.items()} == {"expert": 12, "clone": 12, "gail": 12}
    pairs = read(one.folder / "pairs.npz")
    assert pairs.steps == 8
    assert pairs.rewards.tolist() == read(other.folder / "pairs.npz").rewards.tolist()
    assert read(one.folder / "trajectory.npz").complete.tolist() == [True]
    assert other.said[-1] == f"Pictures and demonstrations are in {other.folder}."


def test_both_pictures_have_titles_and_labels(twice: list[Made]) -> None:
    made = twice[0]

    assert made.drawn == [
        ("Behavioral cloning of 8 decisions on CartPole", "gradient steps", "return"),
        ("GAIL from 8 decisions on CartPole", "episodes", "return"),
    ]
    assert all((made.folder / name).read_bytes().startswith(b"\x89PNG") for name in ("cloning.png", "gail.png"))


def test_the_progress_bar_shows_the_mean_of_the_last_ten(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bar = example.progress(20, "GAIL", [100.0, *[3.0] * 9, 13.0])

    assert bar.item_show_func(None) == "mean return of the last 10: 4.0"
