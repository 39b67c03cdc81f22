import json
from typing import Any

import pytest

from ludus.mlagents.results.status import Gauge, timers
from tests.ludus.mlagents.results.reading import PPO, SAC, SELF_PLAY

GAUGES = [
    Gauge("A", "Environment/Cumulative Reward", 1.9, 1.8, 2.0, 3),
    Gauge("A", "Step", 600, 200, 600, 3, summed=True),
]


@pytest.mark.parametrize("folder", [PPO, SAC, SELF_PLAY], ids=lambda path: path.name)
def test_everything_has_the_keys_that_mlagents_gives_it(folder: Any) -> None:
    real = json.loads((folder / "timers.json").read_text())
    written = timers(100.0, 101.0, 111.0, GAUGES, "learn ppo.yaml")

    assert list(written) == list(real)
    assert written["metadata"].keys() == real["metadata"].keys()
    assert all(isinstance(value, str) for value in written["metadata"].values())
    assert written["gauges"].keys() <= real["gauges"].keys()
    for name, gauge in written["gauges"].items():
        assert list(gauge) == list(real["gauges"][name])
    for name, node in written["children"].items():
        assert name in real["children"]
        assert node.keys() <= real["children"][name].keys()


def test_spans_add_up() -> None:
    written = timers(100.0, 101.0, 111.0, [], "")

    assert written["children"]["run_training.setup"]["total"] == 1.0
    assert written["children"]["TrainerController.start_learning"]["total"] == 10.0
    assert written["total"] == 11.0
    assert (written["metadata"]["start_time_seconds"], written["metadata"]["end_time_seconds"]) == ("100", "111")
