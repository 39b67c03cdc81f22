"""Names are the field's standard terms: no module, class, function, field, setting, route, command or metric is named
with a word that means something only here.

A word that is found is renamed, not exempted: `USE_INSTEAD` says what a reader would look for.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ludus.cli import ludus

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("ludus", "server", "worker") for path in (ROOT / room).rglob("*.py"))
GENERATED = ROOT / "ludus" / "protocol"

USE_INSTEAD = {
    "admission": "registration",
    "bell": "wake-up",
    "borrow": "share",
    "borrowed": "shared",
    "bury": "reap",
    "bystander": "observer",
    "chore": "task",
    "chorus": "batch",
    "contest": "game series",
    "courier": "sender",
    "deed": "ownership",
    "desk": "service",
    "dialer": "client",
    "dismiss": "release",
    "doomed": "failing",
    "doorbell": "wake-up",
    "epoch": "attempt number (an epoch is a pass over data)",
    "equipment": "device",
    "everybody": "all",
    "foresee": "predict",
    "forsaken": "abandoned",
    "guest": "remote policy",
    "guests": "remote policies",
    "handover": "transfer",
    "heed": "apply",
    "incarnation": "session id",
    "janitor": "cleanup",
    "joiner": "participant",
    "judge": "evaluate, classify or score",
    "keeper": "owner",
    "lane": "policy runner",
    "lanes": "policy runners",
    "learnt": "learned",
    "merit": "score",
    "newborn": "new",
    "nobody": "none",
    "notice": "event",
    "notices": "events",
    "obey": "apply",
    "oppose": "set the opponent",
    "opposition": "opponents",
    "outgrown": "too large",
    "parcel": "message",
    "patience": "time-out",
    "permit": "quota",
    "permits": "quota",
    "pulse": "heartbeat",
    "rater": "rating",
    "receipt": "acknowledgement",
    "recollect": "restore",
    "recollection": "recurrent memory",
    "referee": "match",
    "ringer": "waker",
    "roster": "slots",
    "rosters": "slots",
    "sane": "valid",
    "seat": "participant",
    "seats": "participants",
    "sitting": "session",
    "sittings": "sessions",
    "slope": "gradient",
    "slopes": "gradients",
    "spoiled": "invalid",
    "steward": "controller",
    "straggler": "late collector",
    "superior": "parent",
    "thaw": "unfreeze",
    "trail": "record",
    "trouble": "problem",
    "untold": "unreported",
    "vigil": "watch",
    "warden": "supervisor",
    "weigh": "compare",
    "whoever": "any",
    "wish": "request",
    "wishes": "requests",
}
"""Words that were names here, and the field's words."""

EXEMPT = {"num_epoch", "epochs"}
"""ML-Agents' and PyTorch's names, in which an epoch is a pass over data."""


def words(name: str) -> list[str]:
    """Split a name in snake, kebab, path or camel case into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def wrong_words(name: str) -> list[str]:
    """Return the words of a name that have a better one."""
    return [] if name.strip("_") in EXEMPT else [word for word in words(name) if word in USE_INSTEAD]


def names_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield what a module defines: classes, functions, parameters, variables and attributes, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str() as alias):
                yield alias, node.lineno


def complaints(found: Iterator[tuple[str, str]]) -> list[str]:
    """Return a line for every name with a wrong word, from pairs of place and name."""
    return [
        f"{place}: {name!r}: instead of {word!r} use {USE_INSTEAD[word]!r}"
        for place, name in found
        for word in wrong_words(name)
    ]


def test_names_in_the_source_are_standard_terms() -> None:
    def found() -> Iterator[tuple[str, str]]:
        for path in SOURCES:
            relative = path.relative_to(ROOT)
            yield str(relative), "/".join(relative.with_suffix("").parts)
            if GENERATED not in path.parents:
                yield from ((f"{relative}:{line}", name) for name, line in names_of(path.read_text()))

    assert complaints(found()) == []


def test_names_on_the_wire_are_standard_terms() -> None:
    def found() -> Iterator[tuple[str, str]]:
        for path in sorted((ROOT / "proto").rglob("*.proto")):
            if "mlagents" not in path.parts:  # their names are Unity's
                text = re.sub(r"//.*", "", path.read_text())
                yield from (
                    (path.name, name)
                    for name in re.findall(r"(\w+)\s*=\s*\d+;|(?:message|enum|rpc)\s+(\w+)", text)
                    for name in name
                    if name
                )

    assert complaints(found()) == []


def test_names_of_the_api_are_standard_terms() -> None:
    document = json.loads((ROOT / "tests" / "golden" / "openapi.json").read_text())

    def found() -> Iterator[tuple[str, str]]:
        for path, operations in document["paths"].items():
            yield "route", path
            for operation in operations.values():
                yield from ((path, parameter["name"]) for parameter in operation.get("parameters", []))
        for schema, content in document["components"]["schemas"].items():
            yield "schema", schema
            yield from ((schema, name) for name in content.get("properties", {}))
            yield from ((schema, value) for value in content.get("enum", []) if isinstance(value, str))

    assert complaints(found()) == []


def commands(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a command, its options and the commands below it."""
    yield "command", name
    for parameter in command.params:
        yield from ((name, option) for option in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(command, click.Group):
        for below, child in command.commands.items():
            yield from commands(child, f"{name} {below}")


def test_names_of_commands_and_options_are_standard_terms() -> None:
    assert complaints(commands(ludus, "ludus")) == []


@pytest.mark.parametrize("page", ["metrics.md", "monitoring.md", "settings.md"])
def test_names_of_metrics_and_settings_are_standard_terms(page: str) -> None:
    rows = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / page).read_text(), re.MULTILINE)

    assert len(rows) > 10, "the page lists its names in the first column"
    assert complaints((page, name) for name in rows) == []


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("StewardLoop", "controller"),
        ("_borrowed_steps", "shared"),
        ("/v1/runs/{run_id}/seats", "participants"),
        ("--patience", "time-out"),
        ("LUDUS_WORKER__STRAGGLER_GRACE", "late collector"),
        ("ludus_gateway_permits", "quota"),
        ("HTTPDesk", "service"),
    ],
)
def test_a_private_word_is_noticed_in_any_spelling_of_a_name(name: str, instead: str) -> None:
    assert complaints(iter([("here", name)])) == [f"here: {name!r}: instead of {words_found(name)!r} use {instead!r}"]


def words_found(name: str) -> str:
    [word] = wrong_words(name)
    return word


@pytest.mark.parametrize(
    "source",
    [
        "class Seat: ...",
        "def weigh(): ...",
        "async def obey(): ...",
        "def f(*, wish=1): ...",
        "roster = 1",
        "roster: int = 1",
        "self.roster = 1",
        "for roster in (): ...",
        "import slots as roster",
        "with open('') as roster: ...",
        "lambda roster: 1",
    ],
)
def test_a_private_word_is_noticed_wherever_a_name_is_given(source: str) -> None:
    assert len(complaints((str(line), name) for name, line in names_of(source))) == 1


@pytest.mark.parametrize("name", ["num_epoch", "seated", "planes", "display_name", "noticeable", "plane"])
def test_a_standard_name_is_left_alone(name: str) -> None:
    assert wrong_words(name) == []
