"""Commands on stored configurations."""

import json
from collections.abc import Iterator

import pytest

from ludus.schemas import ConfigChange
from server.config.presets import read_preset
from server.config.resolution import resolve
from server.kit.db.database import Database
from server.kit.errors import ConfigNotFound, InvalidConfig
from server.runs.stored_configs.repository import ConfigRepository
from server.runs.stored_configs.service import ConfigService, digest


@pytest.fixture
def configs(database: Database) -> Iterator[ConfigService]:
    with database.write() as session:
        yield ConfigService(ConfigRepository(session))


def test_a_configuration_is_stored_as_sent_and_resolved(configs: ConfigService) -> None:
    text = "# mine\nbehaviors: {A: {max_steps: 1e3}}"

    stored, created = configs.store("walker", text, "first try")

    assert created
    assert stored.version == 1
    assert stored.source == text
    assert stored.document == {"behaviors": {"A": {"max_steps": "1e3"}}}
    assert stored.resolved == resolve(text).model_dump(mode="json")
    assert stored.description == "first try"


@pytest.mark.parametrize(
    "equal",
    [
        {"behaviors": {"A": {}}},
        b"behaviors: {A: {trainer_type: ppo}}",
        "behaviors: {A: {hyperparameters: {batch_size: 1024}}}",
    ],
)
def test_what_resolves_to_the_newest_version_is_that_version(configs: ConfigService, equal: object) -> None:
    configs.store("walker", "behaviors: {A: {max_steps: 5}}")
    newest, _ = configs.store("walker", "behaviors: {A: {}}")

    again, created = configs.store("walker", equal)  # type: ignore[arg-type]

    assert not created
    assert again is newest


def test_the_source_of_a_mapping_is_its_json(configs: ConfigService) -> None:
    document = {"behaviors": {"Läufer": {}}}

    source = configs.store("walker", document)[0].source

    assert json.loads(source) == document
    assert "Läufer" in source


def test_the_source_of_bytes_is_their_text(configs: ConfigService) -> None:
    assert configs.store("walker", b"\xef\xbb\xbfbehaviors: {A: {}}")[0].source == "behaviors: {A: {}}"


def test_an_invalid_configuration_is_not_stored(configs: ConfigService) -> None:
    with pytest.raises(InvalidConfig):
        configs.store("walker", "behaviors: {A: {max_step: 5}}")

    with pytest.raises(ConfigNotFound):
        configs.prepare(name="walker")


def test_two_versions_are_compared_resolved(configs: ConfigService) -> None:
    configs.store("walker", "behaviors: {A: {}}")
    configs.store("walker", "behaviors: {A: {hyperparameters: {learning_rate_schedule: constant}}}")

    path = "behaviors.A.hyperparameters"
    expected = [
        ConfigChange(path=f"{path}.{value}_schedule", kind="changed", old="linear", new="constant")
        for value in ("learning_rate", "beta", "epsilon")
    ]
    assert configs.diff("walker", 1, 2) == expected
    assert configs.diff("walker", 1, None) == expected
    assert configs.diff("walker", 2, None) == []


def test_a_run_is_prepared_from_a_document(configs: ConfigService) -> None:
    prepared = configs.prepare(read_preset("cartpole"), overrides={"behaviors.CartPole.max_steps": "2e5"})

    assert prepared.config.behaviors["CartPole"].max_steps == 200_000
    assert (prepared.name, prepared.version) == (None, None)


def test_a_run_is_prepared_from_a_stored_configuration(configs: ConfigService) -> None:
    configs.store("walker", "behaviors: {A: {max_steps: 5}}")
    configs.store("walker", "behaviors: {A: {max_steps: 6}}")

    newest = configs.prepare(name="walker")
    first = configs.prepare(name="walker", version=1)

    assert (newest.name, newest.version, newest.config.max_steps) == ("walker", 2, 6)
    assert (first.name, first.version, first.config.max_steps) == ("walker", 1, 5)


def test_overrides_of_a_stored_configuration_act_on_what_was_written(configs: ConfigService) -> None:
    configs.store("walker", "behaviors: {A: {}}")

    overrides = {"behaviors.A.hyperparameters.learning_rate_schedule": "constant"}
    prepared = configs.prepare(name="walker", overrides=overrides)

    assert prepared.config.behaviors["A"].hyperparameters.beta_schedule == "constant"
    assert configs.diff("walker", 1, None) == []


def test_a_run_needs_a_document_or_a_name(configs: ConfigService) -> None:
    with pytest.raises(InvalidConfig) as neither:
        configs.prepare()
    with pytest.raises(InvalidConfig) as both:
        configs.prepare("behaviors: {A: {}}", name="walker")

    assert [problem.code for problem in neither.value.problems] == ["missing"]
    assert [problem.code for problem in both.value.problems] == ["contradiction"]


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_what_no_run_can_do_yet_is_stored_with_its_values_but_not_prepared(configs: ConfigService) -> None:
    document = {"behaviors": {"A": {"self_play": {"save_steps": 10}}}, "checkpoint_settings": {"resume": True}}

    stored, _ = configs.store("frozen", document)

    assert stored.resolved["behaviors"]["A"]["self_play"]["team_change"] == 50
    for prepare in (lambda: configs.prepare(document), lambda: configs.prepare(name="frozen")):
        with pytest.raises(InvalidConfig) as caught:
            prepare()
        assert [problem.path for problem in caught.value.problems] == ["checkpoint_settings.resume"]


def test_parameters_of_a_stored_configuration_keep_the_order_in_which_they_were_written(configs: ConfigService) -> None:
    drawn = {"sampler_type": "uniform", "sampler_parameters": {}}
    configs.store("drawn", {"behaviors": {"A": {}}, "environment_parameters": {"zeta": drawn, "a": drawn}})

    prepared = configs.prepare(name="drawn")

    assert list(prepared.config.environment_parameters) == ["zeta", "a"]
