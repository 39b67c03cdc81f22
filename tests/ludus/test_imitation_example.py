"""The imitation example runs, is the same for the same seed, and draws two pictures with titles."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest

from ludus.demonstrations import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "imitation" / "imitation.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    mpl.use("Agg")
    spec = importlib.util.spec_from_file_location("imitation_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    for name, value in {"EXPERT_EPISODES": 12, "PAIRS": 8, "CLONE_STEPS": 120, "GAIL_EPISODES": 12}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_equal_seeds_give_equal_returns_and_files(example: Any, tmp_path: Path) -> None:
    said: list[str] = []
    one = example.experiment(tmp_path / "one", seed=3, say=said.append)
    other = example.experiment(tmp_path / "other", seed=3, say=said.append)

    assert one == other
    assert {name: len(returns) for name, returns in one.items()} == {"expert": 12, "clone": 12, "gail": 12}
    pairs = read(tmp_path / "one" / "pairs.npz")
    assert pairs.steps == 8
    assert pairs.rewards.tolist() == read(tmp_path / "other" / "pairs.npz").rewards.tolist()
    assert read(tmp_path / "one" / "trajectory.npz").complete.tolist() == [True]
    assert said[-1] == f"Pictures and demonstrations are in {tmp_path / 'other'}."


def test_both_pictures_have_titles_and_labels(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    close = example.plt.close

    def look(figure: Any) -> None:
        (axes,) = figure.axes
        drawn.append((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
        close(figure)

    monkeypatch.setattr(example.plt, "close", look)
    example.experiment(tmp_path, seed=1, say=lambda _: None)

    assert drawn == [
        ("Behavioral cloning of 8 decisions on CartPole", "gradient steps", "return"),
        ("GAIL from 8 decisions on CartPole", "episodes", "return"),
    ]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("cloning.png", "gail.png"))


def test_the_progress_bar_shows_the_mean_of_the_last_ten(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bar = example.progress(20, "GAIL", [100.0, *[3.0] * 9, 13.0])

    assert bar.item_show_func(None) == "mean return of the last 10: 4.0"
