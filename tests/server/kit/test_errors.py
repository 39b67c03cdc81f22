"""The tree of errors: stable codes, and sentences that name attributes."""

from dataclasses import fields
from string import Formatter

import server.app.app
import server.gateway.main  # noqa: F401  # these two load every module that adds errors
from server.kit.errors import ErrorKind, InvalidConfig, LudusError, Problem


def descendants(error: type[LudusError]) -> set[type[LudusError]]:
    return {*error.__subclasses__(), *(each for child in error.__subclasses__() for each in descendants(child))}


def test_every_error_has_a_kind_and_those_of_the_base_a_code_of_their_own() -> None:
    codes = [
        cls.code for cls in descendants(LudusError) if cls.__module__ == LudusError.__module__ and "code" in vars(cls)
    ]

    assert len(set(codes)) == len(codes)
    assert all(isinstance(cls.kind, ErrorKind) for cls in descendants(LudusError))


def test_sentences_name_only_attributes() -> None:
    for cls in descendants(LudusError):
        named = {name for _, name, _, _ in Formatter().parse(getattr(cls, "sentence", "")) if name}

        assert named <= {each.name for each in fields(cls)}, cls  # type: ignore[arg-type]  # every error is a dataclass


def test_an_invalid_configuration_tells_all_its_problems() -> None:
    error = InvalidConfig([Problem("a.b", "unknown_key", "no such key"), Problem("", "empty", "the document is empty")])

    assert str(error) == "a.b: no such key\nthe document is empty"
    assert len(error.problems) == 2
