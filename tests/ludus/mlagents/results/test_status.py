import json
from typing import Any

import pytest

from ludus.mlagents.results.status import BehaviorStatus, Gauge, SavedModel, timers, training_status
from tests.ludus.mlagents.results.reading import PPO, REAL, SAC, SELF_PLAY


def saved(step: int, reward: float | None, folder: str = "results/p1") -> SavedModel:
    path = f"{folder}/A/A-{step}"
    return SavedModel(step, f"{path}.onnx", reward, 1795167442.5, (f"{path}.pt",))


def shape(value: Any) -> Any:
    """Return the keys, in their order, and the kinds of values."""
    match value:
        case dict():
            return [(key, shape(item)) for key, item in value.items()]
        case list():
            return [shape(value[0])] if value else []
        case _:
            return type(value)


def status_of(name: str) -> tuple[dict[str, BehaviorStatus], dict[str, int]]:
    match name:
        case PPO.name:
            models = [saved(290, 1.9), saved(590, 1.9), saved(720, 1.9)]
            return {"A": BehaviorStatus(models, "results/p1/A.onnx")}, {"gravity": 0, "size": 1}
        case SAC.name:
            return {"A": BehaviorStatus([saved(320, 1.9)], "results/p1/A.onnx")}, {}
        case _:
            return {"A": BehaviorStatus([saved(610, 1.0), saved(910, 1.0)], "results/p1/A.onnx", 1216.9)}, {}


@pytest.mark.parametrize("folder", [PPO, SAC, SELF_PLAY], ids=lambda path: path.name)
def test_keys_kinds_and_order_are_those_of_mlagents(folder: Any) -> None:
    real = json.loads((REAL / folder / "training_status.json").read_text())

    assert shape(training_status(*status_of(folder.name))) == shape(real)


def test_a_run_that_trains_has_no_final_checkpoint() -> None:
    written = training_status({"A": BehaviorStatus([saved(290, None)])}, {})

    assert list(written["A"]) == ["checkpoints"]
    assert written["A"]["checkpoints"][0]["reward"] is None, "no episode had ended"


def test_the_final_checkpoint_is_the_last_one_under_the_name_of_its_copy() -> None:
    written = training_status({"A": BehaviorStatus([saved(290, 1.0), saved(590, 2.0)], "results/p1/A.onnx")}, {})

    assert written["A"]["final_checkpoint"] == {**written["A"]["checkpoints"][-1], "file_path": "results/p1/A.onnx"}


def test_a_behavior_and_a_parameter_of_one_name_share_their_entry() -> None:
    written = training_status({"A": BehaviorStatus([])}, {"A": 2})

    assert written["A"] == {"lesson_num": 2, "checkpoints": []}


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
