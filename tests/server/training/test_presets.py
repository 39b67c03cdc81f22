"""Presets are documents that resolve."""

import pytest

from server.training.config import resolve
from server.training.presets import list_presets, read_preset


def test_there_is_a_preset_for_the_first_run() -> None:
    assert "cartpole" in list_presets()


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_resolves(name: str) -> None:
    config = resolve(read_preset(name))

    assert all(behavior.hyperparameters.minibatches_per_epoch >= 1 for behavior in config.behaviors.values())


@pytest.mark.parametrize("name", ["", "nothing", "../presets/cartpole", "__init__"])
def test_a_preset_that_does_not_exist_is_not_found(name: str) -> None:
    with pytest.raises(KeyError):
        read_preset(name)
