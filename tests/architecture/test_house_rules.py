"""House rules that no linter knows, as checks of the syntax tree. `# allow: RULE, because ...` escapes one."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ludus", "server", "worker")


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
        lambda path: not path.startswith("server/kit/db/"),
        "a transaction ends at the edge that began it: use Database.write()",
    ),
    Rule(
        "settings",
        frozenset({"Settings"}),
        calls("Settings"),
        lambda path: path not in MAINS,
        "settings are built in mains and handed down",
    ),
    Rule(
        "item",
        frozenset({"item"}),
        calls_method("item"),
        lambda path: path.startswith("worker/learning/algorithms/"),
        "each .item() waits for the device: return tensors, copy once per update",
    ),
    Rule("locals", frozenset({"locals"}), calls("locals"), lambda _path: True, "pass a typed object"),
    Rule("print", frozenset({"print"}), calls("print"), lambda _path: True, "commands use click.echo, processes log"),
    Rule(
        "posix",
        POSIX_ONLY,
        names_what_only_posix_has,
        lambda path: path.startswith("ludus/") and not path.startswith("ludus/collector/"),
        "what users install runs on Windows, too; only collectors share memory as Linux does",
    ),
    Rule(
        "future",
        frozenset({"__future__"}),
        imports_annotations,
        lambda _path: True,
        "annotations are evaluated at run time",
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
    paths = [path for package in (*PACKAGES, "migrations") for path in sorted((ROOT / package).rglob("*.py"))]
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
    ],
)
def test_the_rule_bites_and_can_be_escaped_with_a_reason(name: str, source: str) -> None:
    (rule,) = [rule for rule in RULES if rule.name == name]

    assert list(violations([rule], source)) == [(rule, 1)]
    assert list(violations([rule], f"{source}  # allow: {name}, because this is a test")) == []
    assert list(violations([rule], f"{source}  # allow: {name}")) == [(rule, 1)]
