"""What the tests of configurations share."""

from collections.abc import Mapping
from typing import Any

import pytest

from server.errors import InvalidConfig, Problem
from server.training.config import resolve


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


def behavior(**keys: Any) -> dict[str, Any]:
    """Make a document with one behavior, `A`."""
    return {"behaviors": {"A": keys}}
