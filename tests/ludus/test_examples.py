"""The example of a custom simulator is short, and plays."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ludus.sdk import connect
from ludus.sdk.contract.scripted import ScriptedServer, finish_after
from server.config.document import parse_document
from server.config.resolution import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example() -> ModuleType:
    return imported("custom_simulator")


def test_the_example_has_fewer_than_60_lines() -> None:
    assert len((EXAMPLES / "custom_simulator.py").read_text().splitlines()) < 60


def test_agents_of_the_example_come_and_go(example: ModuleType) -> None:
    with ScriptedServer(finish_after(500)) as server:
        ending = connect(example.Field(), run="foragers", server=server.address)

    assert server.violations == []
    assert ending.finished
    assert ending.episodes > 50
    assert 1 <= len(server.streams[0].running["Forager"]) <= example.MOST


def test_the_configuration_of_the_example_names_its_behavior(example: ModuleType) -> None:
    config = resolve(parse_document((EXAMPLES / "forager.yaml").read_text()))

    assert set(config.behaviors) == {example.Field.behaviors[0].name}


def test_the_example_with_pictures_has_continuous_and_discrete_actions_and_plays() -> None:
    lantern = imported("lantern")

    with ScriptedServer(finish_after(200)) as server:
        ending = connect(lantern.Lantern(), run="lantern", server=server.address)

    assert server.violations == []
    assert ending.episodes > lantern.MOTHS
    (spec,) = lantern.Lantern.behaviors
    assert (spec.observations[0].dtype, spec.actions.continuous_size, spec.actions.discrete_branches) == (
        "uint8",
        2,
        (2,),
    )
    assert set(resolve(parse_document((EXAMPLES / "lantern.yaml").read_text())).behaviors) == {spec.name}


def test_the_configuration_of_the_javascript_example_names_its_behavior() -> None:
    config = resolve(parse_document((EXAMPLES / "node" / "catch.yaml").read_text()))

    (behavior,) = config.behaviors
    assert f'name: "{behavior}"' in (EXAMPLES / "node" / "catch.js").read_text()
