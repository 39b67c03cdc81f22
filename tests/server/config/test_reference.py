"""docs/configuration.md is what the models say."""

import runpy
import sys
from pathlib import Path

import pytest

from ludus.config.hyperparameters import (
    CloneHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.network import MemorySettings
from ludus.config.plugins.crossq import CrossQHyperparameters
from ludus.config.plugins.dqn import DQNHyperparameters
from ludus.config.plugins.td3 import TD3Hyperparameters
from ludus.config.plugins.tqc import TQCHyperparameters
from ludus.config.problems import CODES
from ludus.config.rewards import CuriosityConfig, ExtrinsicConfig, GAILConfig, RNDConfig
from ludus.config.run import RunConfig
from ludus.config.values import Section
from ludus.docstrings import field_texts
from server.config.reference import TITLES, render

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == render(page), "run `python -m server.config.reference docs/configuration.md`"


@pytest.mark.long
def test_the_module_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text(encoding="utf-8")
    target = tmp_path / "page.md"
    target.write_text(page.replace(">100<", ">99<").replace("| `missing` |", "| `gone` |"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["reference", str(target)])
    monkeypatch.delitem(sys.modules, "server.config.reference")

    runpy.run_module("server.config.reference", run_name="__main__")

    assert target.read_text(encoding="utf-8") == page


def test_every_section_is_on_the_page() -> None:
    definitions = {"RunConfig", *RunConfig.model_json_schema()["$defs"]}

    assert definitions == {section.__name__ for section in TITLES}


def test_every_section_is_part_of_a_run_or_the_parent_of_one() -> None:
    stray = [
        section.__name__ for section in descendants(Section) if not any(issubclass(each, section) for each in TITLES)
    ]

    assert stray == ["EncoderConfig"], "encoders that have keys are those of plug-ins"


def descendants(section: type[Section]) -> set[type[Section]]:
    """Return all classes derived from a section."""
    below = section.__subclasses__()
    return {*below, *(each for child in below for each in descendants(child))}


def test_every_number_that_is_tuned_has_a_typical_range() -> None:
    tuned = [
        PPOHyperparameters,
        POCAHyperparameters,
        SACHyperparameters,
        DQNHyperparameters,
        TD3Hyperparameters,
        TQCHyperparameters,
        CrossQHyperparameters,
        CloneHyperparameters,
        MemorySettings,
    ]
    signals = [ExtrinsicConfig, CuriosityConfig, GAILConfig, RNDConfig]
    silent = [
        f"{section.__name__}.{key}"
        for section in [*tuned, *signals, BehavioralCloningConfig]
        for key, schema in section.model_json_schema()["properties"].items()
        if {"number", "integer"} & {each.get("type") for each in schema.get("anyOf", [schema])}
        and "Typical: " not in field_texts(section)[key]
    ]

    # A length of time rather than a number to tune: how long imitation lasts.
    assert silent == ["BehavioralCloningConfig.steps"]


def test_every_key_is_described() -> None:
    silent = [
        f"{section.__name__}.{key}"
        for section in TITLES
        for key in section.model_fields
        if not field_texts(section).get(key)
    ]

    assert silent == []


def test_every_code_is_on_the_page() -> None:
    page = render(PAGE.read_text(encoding="utf-8"))

    assert all(f"| `{code}` |" in page for code in CODES)
