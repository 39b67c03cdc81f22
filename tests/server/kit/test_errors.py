"""The tree of errors: stable codes, drawn completely in its docstring."""

import inspect

from server.kit import errors
from server.kit.errors import ErrorKind, InvalidConfig, LudusError, Problem


def classes() -> list[type[LudusError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LudusError)]
    return [cls for cls in found if cls is not LudusError]


def test_every_error_has_a_kind_and_a_code_of_its_own() -> None:
    codes = [cls.code for cls in classes()]

    assert len(set(codes)) == len(codes)
    assert all(isinstance(cls.kind, ErrorKind) for cls in classes())


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = inspect.getdoc(errors) or ""

    for cls in classes():
        (line,) = [line for line in drawn.splitlines() if f" {cls.__name__} " in line + " "]
        has_children = any(cls in other.__bases__ for other in classes())
        assert has_children or cls.code in line, cls


def test_an_invalid_configuration_tells_all_its_problems() -> None:
    error = InvalidConfig([Problem("a.b", "unknown_key", "no such key"), Problem("", "empty", "the document is empty")])

    assert str(error) == "a.b: no such key\nthe document is empty"
    assert len(error.problems) == 2
