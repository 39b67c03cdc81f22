"""Presets are documents that resolve."""

import pytest

from ludus.config.behavior import TRAINERS
from server.config.presets import describe_preset, list_presets, read_preset
from server.config.resolution import resolve, review


def test_there_is_a_preset_for_every_trainer() -> None:
    used = {
        section.trainer_type for name in list_presets() for section in resolve(read_preset(name)).behaviors.values()
    }

    assert used == TRAINERS.keys()


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_resolves_without_a_warning_and_is_described_by_its_first_sentence(name: str) -> None:
    assert review(read_preset(name))[1] == []
    described = describe_preset(name)
    assert described.description[0].isupper()
    assert described.description.endswith(".")
    assert ". " not in described.description
    assert set(described.trainer_types) <= TRAINERS.keys()


@pytest.mark.parametrize("name", ["", "nothing", "../presets/cartpole", "__init__"])
def test_a_preset_that_does_not_exist_is_not_found(name: str) -> None:
    with pytest.raises(KeyError):
        read_preset(name)
