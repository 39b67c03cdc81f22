"""House rules that no linter knows, as checks of the syntax tree. `# allow: RULE, because ...` escapes one.

Everything public says what it is for. The source does not grow unnoticed, and functions take at most eight parameters:
one that needs more takes the object that they come from (`config`, `attempt`), or is two functions. Click passes every
option of a command as a parameter, so that commands are exempt.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from ludus.docstrings import field_texts
from server.kit.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ludus", "server", "worker")
Function = ast.FunctionDef | ast.AsyncFunctionDef
PARAMETERS = 8
BUDGET = Path(__file__).with_name("source_lines.txt")
SLACK = 200
"""Lines by which the budget may lie above the source."""

TOO_MANY_PARAMETERS = {
    "client.py:register_player",
    "mirror.py:__init__",
}
"""Functions that still take more: file and name. The list only gets shorter."""


@dataclass(frozen=True)
class Rule:
    """Something that must not be written, except in some places."""

    name: str
    """As it is written in the escape comment."""
    words: frozenset[str]
    """Without one of them in its text no file breaks the rule, and it need not be parsed."""
    matches: Callable[[ast.AST], bool]
    applies: Callable[[str], bool]
    """Whether the rule holds in this file (path from the root, with slashes)."""
    why: str


def calls(name: str) -> Callable[[ast.AST], bool]:
    """Match `name(...)`."""
    return lambda node: isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def calls_method(name: str) -> Callable[[ast.AST], bool]:
    """Match `anything.name(...)`."""
    return lambda node: isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def in_the_source(path: str) -> bool:
    return not path.startswith("tests/")


POSIX_ONLY = frozenset(
    {
        *(
            "add_signal_handler",
            "killpg",
            "setsid",
            "setpgid",
            "getpgid",
            "fork",
            "forkpty",
            "waitpid",
            "mkfifo",
            "getuid",
        ),
        *(
            "geteuid",
            "chown",
            "fchmod",
            "memfd_create",
            "sendmsg",
            "recvmsg",
            "sched_getaffinity",
            "AF_UNIX",
            "SIGKILL",
        ),
        *("SIGHUP", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGQUIT", "WNOHANG", "SO_REUSEPORT"),
    }
)


def names_what_only_posix_has(node: ast.AST) -> bool:
    """Match `anything.name` for names that Windows lacks."""
    return isinstance(node, ast.Attribute) and node.attr in POSIX_ONLY


def imports_annotations(node: ast.AST) -> bool:
    """Match `from __future__ import annotations`."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def sleeps(node: ast.AST) -> bool:
    """Match `sleep(...)` and `anything.sleep(...)`, but not the `asyncio.sleep(0)` that lets other tasks run."""
    if not isinstance(node, ast.Call) or (node.args and ast.unparse(node.args[0]) == "0"):
        return False
    return "sleep" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))


MAINS = (
    "server/commands.py",
    "server/app/health.py",
    "worker/host/commands.py",
    "server/kit/db/migrate.py",
    "migrations/env.py",
)

RULES = [
    Rule(
        "commit",
        frozenset({"commit"}),
        calls_method("commit"),
        lambda path: in_the_source(path) and not path.startswith("server/kit/db/"),
        "a transaction ends at the edge that began it: use Database.write()",
    ),
    Rule(
        "settings",
        frozenset({"Settings"}),
        calls("Settings"),
        lambda path: in_the_source(path) and path not in MAINS,
        "settings are built in mains and handed down",
    ),
    Rule(
        "item",
        frozenset({"item"}),
        calls_method("item"),
        lambda path: path.startswith("worker/learning/algorithms/"),
        "each .item() waits for the device: return tensors, copy once per update",
    ),
    Rule("locals", frozenset({"locals"}), calls("locals"), in_the_source, "pass a typed object"),
    Rule("print", frozenset({"print"}), calls("print"), in_the_source, "commands use click.echo, processes log"),
    Rule(
        "posix",
        POSIX_ONLY,
        names_what_only_posix_has,
        lambda path: path.startswith("ludus/") and not path.startswith(("ludus/collector/", "ludus/child_process.py")),
        "what users install runs on Windows, too: such calls are in ludus.child_process, and in the collector",
    ),
    Rule(
        "future",
        frozenset({"__future__"}),
        imports_annotations,
        lambda _path: True,
        "annotations are evaluated at run time",
    ),
    Rule(
        "sleep",
        frozenset({"sleep("}),
        sleeps,
        lambda path: (
            path.startswith("tests/") and path not in ("tests/waiting.py", "tests/worker/host/supervisor/test_loop.py")
        ),
        "a test waits for an event, or looks until a deadline: use tests.waiting",
    ),
]


def violations(rules: list[Rule], source: str) -> Iterator[tuple[Rule, int]]:
    """Yield the rules that are broken without saying why, and the numbers of the lines."""
    rules = [rule for rule in rules if any(word in source for word in rule.words)]
    if not rules:
        return
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        for rule in rules:
            if rule.matches(node):
                number = getattr(node, "lineno", 1)
                if f"# allow: {rule.name}, because " not in lines[number - 1]:
                    yield rule, number


def test_no_file_breaks_a_rule() -> None:
    paths = [path for package in (*PACKAGES, "migrations", "tests") for path in sorted((ROOT / package).rglob("*.py"))]
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}

    found = [
        f"{path}:{number}: {rule.name}: {rule.why}"
        for path, source in files.items()
        for rule, number in violations([rule for rule in RULES if rule.applies(path)], source)
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("commit", "session.commit()"),
        ("settings", "x = Settings()"),
        ("item", "loss.item()"),
        ("locals", "save(locals())"),
        ("print", "print(1)"),
        ("posix", "loop.add_signal_handler(number, stop)"),
        ("future", "from __future__ import annotations"),
        ("sleep", "time.sleep(0.5)"),
    ],
)
def test_the_rule_bites_and_can_be_escaped_with_a_reason(name: str, source: str) -> None:
    (rule,) = [rule for rule in RULES if rule.name == name]

    assert list(violations([rule], source)) == [(rule, 1)]
    assert list(violations([rule], f"{source}  # allow: {name}, because this is a test")) == []
    assert list(violations([rule], f"{source}  # allow: {name}")) == [(rule, 1)]


def source_files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name)


def test_the_source_has_no_more_lines_than_its_budget_and_the_budget_follows_it_down() -> None:
    lines = sum(path.read_text().count("\n") for path in source_files())
    budget = int(BUDGET.read_text())

    assert lines <= budget, f"{lines} lines: take some away, or raise {BUDGET.name} and say in the commit what they buy"
    assert budget - lines <= SLACK, f"{lines} lines are left: write {lines} into {BUDGET.name}"


PARTS = "benchmarks clients deploy docker docs examples ludus migrations proto server tests worker"
FILES = "CHANGELOG.md Makefile README.md constraints.txt docker-compose.yml pyproject.toml"
HIDDEN = ".ci .dockerignore .env.example .github .gitignore"


def test_the_top_level_has_the_rooms_of_the_house_and_nothing_that_a_program_left_there() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("an archive of the source has no list of its files")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert {name.partition("/")[0] for name in listed.splitlines()} == {*f"{PARTS} {FILES} {HIDDEN}".split()}


def parameters(function: Function) -> int:
    """Count the parameters of a function, without `self` and `cls`, `*args` and `**kwargs`."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_command(function: Function) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in function.decorator_list)


def with_too_many_parameters(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and parameters(node) > PARAMETERS and not is_command(node):
            yield node.name


@pytest.fixture(scope="module")
def trees() -> dict[str, tuple[list[str], list[str]]]:
    """Return the functions with too many parameters and the public names without a docstring, by file.

    Each file is parsed once, and its tree is forgotten.
    """
    return {
        path.relative_to(ROOT).as_posix(): (list(with_too_many_parameters(tree)), list(undocumented(tree)))
        for path in source_files()
        for tree in [ast.parse(path.read_text())]
    }


def test_no_function_takes_more_than_eight_parameters(trees: dict[str, tuple[list[str], list[str]]]) -> None:
    found = {f"{path.rpartition('/')[2]}:{name}" for path, (names, _) in trees.items() for name in names}

    assert found == TOO_MANY_PARAMETERS, "pass the object that they come from, and shorten the list"


def test_everything_public_is_documented(trees: dict[str, tuple[list[str], list[str]]]) -> None:
    assert [f"{path}: {name}" for path, (_, names) in trees.items() for name in names] == []


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
    assert list(with_too_many_parameters(ast.parse(source))) == found


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public names without a docstring, methods of public classes included. Overrides may be silent."""
    if not ast.get_docstring(tree):
        yield "the module"
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            name = f"{prefix}{node.name}"
            silent = any(
                ast.unparse(decorator).split(".")[-1] in {"override", "overload"} for decorator in node.decorator_list
            )
            if not ast.get_docstring(node) and not silent:
                yield name
            if isinstance(node, ast.ClassDef):
                pending.append((f"{name}.", node))


def test_every_setting_is_described() -> None:
    def silent(model: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from silent(field.annotation, f"{prefix}{name}.")
            elif name not in field_texts(model):
                yield f"{prefix}{name}"

    assert list(silent(Settings, "")) == []


def test_every_part_of_the_protocol_is_commented() -> None:
    """A comment stands above or on the line of every message, field, enum, value and rpc."""
    declaration = re.compile(r"^\s*(message|enum|service|rpc)\b|^\s*(repeated |optional |map<)?[\w.]+[^=]* = \d+")
    silent = []
    for path in sorted((ROOT / "proto" / "ludus").rglob("*.proto")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            commented = "//" in line or lines[number - 1].lstrip().startswith("//") or lines[number - 1].endswith("*/")
            if declaration.match(line) and not commented:
                silent.append(f"{path.name}:{number + 1}: {line.strip()}")

    assert silent == []
