"""The source does not grow unnoticed, and functions take at most eight parameters.

A function that needs more takes the object that they come from (`config`, `attempt`), or is two functions. Click passes
every option of a command as a parameter, so that commands are exempt.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("ludus", "server", "worker")
PARAMETERS = 8
BUDGET = ROOT / "tests" / "architecture" / "source_lines.txt"
SLACK = 200
"""Lines by which the budget may lie above the source."""

TOO_MANY_PARAMETERS = {
    "ladders.py:register_player",
    "mirror.py:__init__",
}
"""Functions that still take more: file and name. The list only gets shorter."""


def source_files() -> Iterator[Path]:
    for package in SOURCE:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name)


def test_the_source_has_no_more_lines_than_its_budget_and_the_budget_follows_it_down() -> None:
    lines = sum(path.read_text().count("\n") for path in source_files())
    budget = int(BUDGET.read_text())

    assert lines <= budget, f"{lines} lines: take some away, or raise {BUDGET.name} and say in the commit what they buy"
    assert budget - lines <= SLACK, f"{lines} lines are left: write {lines} into {BUDGET.name}"


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters of a function, without `self` and `cls`, `*args` and `**kwargs`."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in function.decorator_list)


def with_too_many_parameters(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and parameters(node) > PARAMETERS and not is_command(node):
            yield node.name


def test_no_function_takes_more_than_eight_parameters() -> None:
    found = {f"{path.name}:{name}" for path in source_files() for name in with_too_many_parameters(path.read_text())}

    assert found == TOO_MANY_PARAMETERS, "pass the object that they come from, and shorten the list"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", []),
        ("def f(a, b, c, d, e, f, g, h, i): ...", ["f"]),
        ("class A:\n    def __init__(self, a, b, c, d, e, f, g, h): ...", []),
        ("class A:\n    def __init__(self, a, b, c, d, *, e, f, g, h, i): ...", ["__init__"]),
        ("async def f(a, b, c, d, /, e, f, g, h, i): ...", ["f"]),
        ("@click.command('run')\ndef f(a, b, c, d, e, f, g, h, i): ...", []),
    ],
)
def test_the_rule_on_parameters_bites(source: str, found: list[str]) -> None:
    assert list(with_too_many_parameters(source)) == found
