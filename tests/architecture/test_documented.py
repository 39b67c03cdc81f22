"""Everything public says what it is for: modules, classes, functions, settings and the protocol."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from server.kit.docstrings import field_texts
from server.kit.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def python_files() -> list[Path]:
    return [
        path
        for package in ("ludus", "server", "worker")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public names without a docstring, methods of public classes included. Overrides may be silent."""
    if not ast.get_docstring(tree):
        yield "the module"
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, Definition) or node.name.startswith("_"):
                continue
            name = f"{prefix}{node.name}"
            silent = any(
                ast.unparse(decorator).split(".")[-1] in {"override", "overload"} for decorator in node.decorator_list
            )
            if not ast.get_docstring(node) and not silent:
                yield name
            if isinstance(node, ast.ClassDef):
                pending.append((f"{name}.", node))


def test_everything_public_is_documented() -> None:
    silent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        for name in undocumented(ast.parse(path.read_text()))
    ]

    assert silent == []


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
