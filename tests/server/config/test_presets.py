"""Presets are documents that resolve."""

import pytest

from ludus.config.behavior import TRAINERS
from server.config.presets import describe_preset, list_presets, read_preset
from server.config.resolution import resolve, review


def test_there_is_a_preset_for_the_first_run() -> None:
    assert "cartpole" in list_presets()


def test_there_is_a_preset_for_every_trainer() -> None:
    used = {
        section.trainer_type for name in list_presets() for section in resolve(read_preset(name)).behaviors.values()
    }

    assert used == TRAINERS.keys()


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_resolves_without_a_warning(name: str) -> None:
    config, warnings = review(read_preset(name))

    assert warnings == []
    assert all(section.hyperparameters.batch_size >= 1 for section in config.behaviors.values())


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_is_described_by_the_sentence_that_it_begins_with(name: str) -> None:
    described = describe_preset(name)

    assert described.description[0].isupper()
    assert described.description.endswith(".")
    assert ". " not in described.description
    assert set(described.trainer_types) <= TRAINERS.keys()


@pytest.mark.parametrize("name", ["", "nothing", "../presets/cartpole", "__init__"])
def test_a_preset_that_does_not_exist_is_not_found(name: str) -> None:
    with pytest.raises(KeyError):
        read_preset(name)
