"""docs/metrics.md explains every metric that the code can write, and none that it can't."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = "Environment|Evaluation|Policy|Losses|Performance|Resources|Self-play"
NAME = re.compile(rf"^({GROUPS})/\S.*$")


def literals(tree: ast.AST) -> Iterator[str]:
    """Yield the string literals of a module; what an f-string fills in becomes `*`."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


@cache
def written() -> frozenset[str]:
    """Return the names in the code."""
    places = [*(ROOT / "worker").rglob("*.py"), ROOT / "ludus" / "schemas" / "__init__.py"]
    sources = [path.read_text() for path in places]
    trees = [ast.parse(source) for source in sources if re.search(rf"({GROUPS})/", source)]
    return frozenset(text for tree in trees for text in literals(tree) if NAME.match(text))


@cache
def explained() -> frozenset[str]:
    """Return the names in the page, variable parts as `*`."""
    names = re.findall(rf"`((?:{GROUPS})/[^`]+)`", (ROOT / "docs" / "metrics.md").read_text())
    return frozenset(re.sub(r"SIGNAL|PARAMETER|(?<=Branch )N", "*", name) for name in names)


def matches(name: str, pattern: str) -> bool:
    """Say whether a name is the pattern, whose `*` stands for any text."""
    return name == pattern or re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None


def test_every_metric_is_explained() -> None:
    assert {name for name in written() if not any(matches(name, one) for one in explained())} == set()


def test_every_explained_metric_exists() -> None:
    assert {name for name in explained() if not any(matches(name, one) for one in written())} == set()
