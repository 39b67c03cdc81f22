"""What the tests of configurations share."""

from collections.abc import Mapping
from typing import Any

import pytest

from ludus.config.behavior import BehaviorConfig, PPOConfig
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig, Problem


def problems_of(document: str | bytes | Mapping[str, Any]) -> list[Problem]:
    """Resolve a document that has mistakes, and return them."""
    with pytest.raises(InvalidConfig) as caught:
        resolve(document)
    return list(caught.value.problems)


def problem_of(document: str | bytes | Mapping[str, Any]) -> Problem:
    """Resolve a document that has one mistake, and return it."""
    (problem,) = problems_of(document)
    return problem


def codes_of(document: str | bytes | Mapping[str, Any]) -> dict[str, str]:
    """Resolve a document that has mistakes, and return the codes by path."""
    return {problem.path: problem.code for problem in problems_of(document)}


def ppo_of(document: str | bytes | Mapping[str, Any], name: str = "A") -> PPOConfig:
    """Resolve a document, and return its behavior that is trained by PPO."""
    config = resolve(document).behaviors[name]
    assert isinstance(config, PPOConfig)
    return config


def config_of(document: str | bytes | Mapping[str, Any]) -> BehaviorConfig:
    """Resolve a document with a behavior `A`, and return that."""
    return resolve(document).behaviors["A"]


def behavior(**keys: Any) -> dict[str, Any]:
    """Make a document with one behavior, `A`."""
    return {"behaviors": {"A": keys}}


DEMONSTRATION = "dem_0123456789abcdefghjkmnpqrs"
"""An id of a demonstration as a server makes them."""
