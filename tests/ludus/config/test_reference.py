"""The keys in words; `tests/server/config/test_reference.py` compares docs/configuration.md with them."""

import pytest

from ludus.config.network import NetworkSettings
from ludus.config.reference import TITLES, entries, find


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "title", "keys"),
    [
        ("memory.sequence_length", "behaviors.NAME.network_settings.memory", {"sequence_length"}),
        ("behaviors.Walker.network_settings.activation", "behaviors.NAME.network_settings", {"activation"}),
        ("default_settings.time_horizon", "behaviors.NAME with trainer_type: ppo", {"time_horizon"}),
        ("tau", "behaviors.NAME.hyperparameters of dqn", {"tau"}),
        ("seed", "The document", {"seed"}),
        ("network_settings", "behaviors.NAME.network_settings", {*NetworkSettings.model_fields}),
        ("uniform", "environment_parameters.NAME with sampler_type: uniform", {"sampler_type", "sampler_parameters"}),
    ],
)
def test_a_query_is_a_section_a_key_the_end_of_a_path_or_a_variant(query: str, title: str, keys: set[str]) -> None:
    sections = {found: {entry.key for entry in listed} for found, _, listed in find(query)}

    assert sections[title] == keys


@pytest.mark.parametrize("query", ["hidden_unitz", "units", "of", "with"])
def test_what_is_no_key_means_nothing(query: str) -> None:
    assert list(find(query)) == []


def test_the_empty_query_means_everything() -> None:
    assert [section for _, section, _ in find("")] == [*TITLES]


def test_an_entry_has_type_default_and_range_of_its_key() -> None:
    (entry,) = [entry for entry in entries(NetworkSettings) if entry.key == "hidden_units"]

    assert (entry.type, entry.default, entry.range, entry.is_own) == ("whole number", "128", "≥ 1, ≤ 16,384", False)
    assert entry.text.startswith("Width of each hidden layer.")
