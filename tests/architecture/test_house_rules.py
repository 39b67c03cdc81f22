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
