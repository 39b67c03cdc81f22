"""Documents mean here what they mean to ML-Agents 1.1.0, which wrote the golden file itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.config.environment_parameters import ConstantSampler
from ludus.config.run import RunConfig
from ludus.config.values import OWN, Section
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig

TESTS = Path(__file__).parents[2]
GOLDEN = json.loads((TESTS / "golden" / "mlagents_configs.json").read_text(encoding="utf-8"))
FILES = {path.name: path.read_text(encoding="utf-8") for path in (TESTS / "data" / "configs").glob("*.yaml")}
TEXTS = {**FILES, **{name: each["text"] for name, each in GOLDEN["documents"].items()}}
ANSWERS = {**GOLDEN["files"], **GOLDEN["documents"]}
LENIENT = {
    "hyperparameters without a trainer": "`trainer_type` is ppo wherever it isn't given",
    "a template of another trainer": "what another trainer doesn't have is not inherited",
}
"""Documents that only ML-Agents refuses, and what they mean here."""
RESOLVED = sorted(name for name, answer in ANSWERS.items() if "options" in answer)
REFUSED = sorted(ANSWERS.keys() - RESOLVED - LENIENT.keys())


def test_the_golden_file_is_about_all_files_that_there_are() -> None:
    assert FILES.keys() == GOLDEN["files"].keys()


def test_refused_documents_are_named_so() -> None:
    named = {name for name in GOLDEN["documents"] if name.startswith("refused")}

    assert set(REFUSED) == {*named, "ppo-SoccerTwos.yaml"}


@pytest.mark.parametrize("name", RESOLVED)
def test_a_document_resolves_to_the_values_of_ml_agents(name: str) -> None:
    config = resolve(TEXTS[name], local=True)

    assert dict(leaves(ours(config))) == dict(leaves(theirs(ANSWERS[name]["options"])))


@pytest.mark.parametrize("name", [name for name in RESOLVED if "seeds" in ANSWERS[name]])
def test_samplers_get_the_seeds_that_ml_agents_gives_them(name: str) -> None:
    config = resolve(TEXTS[name], local=True).with_seed(100)

    for parameter, seeds in ANSWERS[name]["seeds"].items():
        for lesson, seed in zip(config.lessons()[parameter], seeds, strict=True):
            # A plain number has no seed here; ML-Agents counts it, and so do the seeds after it.
            assert isinstance(lesson.value, float) or lesson.value.sampler_parameters.seed == seed


@pytest.mark.parametrize("name", REFUSED)
def test_a_document_that_ml_agents_refuses_is_refused_and_a_key_that_it_names_is_named(name: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolve(TEXTS[name], local=True)

    _, option, rest = ANSWERS[name]["refused"].partition("The option ")
    named = [problem.path.rpartition(".")[2] for problem in caught.value.problems if problem.code != "missing"]
    assert not option or named == [rest.split()[0]]


@pytest.mark.parametrize("name", LENIENT)
def test_a_document_that_only_ml_agents_refuses_has_a_meaning(name: str) -> None:
    assert "refused" in ANSWERS[name]
    assert resolve(TEXTS[name], local=True).behaviors.keys() == {"A"}


# What both sides are compared as. Everything that is not said here has to be equal.


def ours(config: RunConfig) -> dict[str, Any]:
    """Return a configuration in ML-Agents' form: without Ludus' keys, each parameter as a curriculum."""
    plain = without_own(config)
    for behavior in behaviors(plain):
        behavior["reward_signals"] = {key: each for key, each in behavior["reward_signals"].items() if each is not None}
    plain["environment_parameters"] = {
        name: {"curriculum": [lesson_in_full(lesson) for lesson in lessons]}
        for name, lessons in config.lessons().items()
    }
    return plain


def without_own(value: Any) -> Any:
    """Return sections as mappings, without the keys that only Ludus has."""
    match value:
        case Section():
            fields = type(value).model_fields
            return {
                key: without_own(getattr(value, key)) for key, field in fields.items() if field.json_schema_extra != OWN
            }
        case dict():
            return {key: without_own(item) for key, item in value.items()}
        case list():
            return [without_own(item) for item in value]
        case _:
            return value


def lesson_in_full(lesson: Any) -> dict[str, Any]:
    """Return a lesson with its number as a sampler, as ML-Agents writes it."""
    plain: dict[str, Any] = without_own(lesson)
    if isinstance(lesson.value, float):
        constant = {"sampler_type": "constant", "sampler_parameters": {"value": lesson.value}}
        plain["value"] = without_own(ConstantSampler.model_validate(constant))
    return plain


def theirs(options: dict[str, Any]) -> dict[str, Any]:
    """Return ML-Agents' options without what it writes and does not use."""
    options = json.loads(json.dumps(options))
    options["environment_parameters"] = options["environment_parameters"] or {}
    for behavior in behaviors(options):
        for name, signal in behavior["reward_signals"].items():
            signal.pop("encoding_size", None)  # already in network_settings.hidden_units
            if name == "extrinsic":
                del signal["network_settings"]  # extrinsic rewards have no network
            else:
                signal["network_settings"]["memory"] = None  # dropped when the signal is made
    return options


def behaviors(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all sections of behaviors, the template too."""
    template = options["default_settings"]
    return [*options["behaviors"].values(), *([] if template is None else [template])]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and values, numbers as floats, truth values apart from numbers."""
    match tree:
        case dict():
            yield path, "{}"
            for key, value in tree.items():
                yield from leaves(value, f"{path}.{key}")
        case list():
            yield path, "[]"
            for index, value in enumerate(tree):
                yield from leaves(value, f"{path}.{index}")
        case bool():
            yield path, str(tree)
        case int():
            yield path, float(tree)
        case _:
            yield path, tree
