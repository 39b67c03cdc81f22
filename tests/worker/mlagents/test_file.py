"""Reading `checkpoint.pt`: what is in it, what is none, and that nothing in it is executed."""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.mlagents.results import RESULTS, Result
from worker.mlagents.file import MLAgentsCheckpoint, Unreadable


@pytest.mark.parametrize(("name", "step"), [*zip(RESULTS, (720, 320, 910), strict=True)])
def test_a_real_checkpoint_is_read_with_its_step(name: str, step: int) -> None:
    file = MLAgentsCheckpoint.read(Result(name).checkpoint)

    assert file.step == step
    assert "Policy/network_body._body_endoder.seq_layers.0.weight" in file.tensors
    assert file.optimizers


def test_parameters_are_in_adams_order_without_buffers_and_doubles() -> None:
    file = MLAgentsCheckpoint.read(Result("ppo-lstm-curiosity-rnd-curriculum").checkpoint)
    adam = file.optimizers["Optimizer:value_optimizer"]

    names = [*file.parameters("Policy"), *file.parameters("Optimizer:critic")]

    assert len(names) == len(adam["param_groups"][0]["params"]) == 35
    for index, one in adam["state"].items():
        assert one["exp_avg"].shape == file.tensors[names[index]].shape
    assert not [name for name in names if "normaliz" in name or ".processors." in name]


class Malicious:
    """Does something when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self._target),)


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    torch.save({"Policy": {}, "evil": Malicious(tmp_path / "executed")}, tmp_path / "checkpoint.pt")

    with pytest.raises(Unreadable, match="cannot be read as a checkpoint of tensors"):
        MLAgentsCheckpoint.read(tmp_path / "checkpoint.pt")

    assert not (tmp_path / "executed").exists()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = Result("selfplay-gail-vail-bc").checkpoint.read_bytes()

    for size in (0, 1, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "checkpoint.pt").write_bytes(content[:size])
        with pytest.raises(Unreadable):
            MLAgentsCheckpoint.read(tmp_path / "checkpoint.pt")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        MLAgentsCheckpoint.read(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (torch.zeros(3), "no module 'Policy'"),
        ({"model": OrderedDict()}, "no module 'Policy'"),
        ({"Policy": {}, "other": 3}, "'other' is no state of a module"),
        ({"Policy": {}, 5: {}}, "'5' is no state of a module"),
    ],
)
def test_what_torch_saved_for_somebody_else_is_refused(tmp_path: Path, contents: Any, reason: str) -> None:
    torch.save(contents, tmp_path / "checkpoint.pt")

    with pytest.raises(Unreadable, match=reason):
        MLAgentsCheckpoint.read(tmp_path / "checkpoint.pt")
