"""docs/health.md explains every finding that the code can make, and none that it can't; shipped files have none."""

import ast
import re
from pathlib import Path

import pytest

from server.config.resolution import review
from server.config.rules import futile

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = [
    *(ROOT / "worker" / "trainer" / "health").glob("*.py"),
    ROOT / "ludus" / "play" / "checks" / "facts.py",
    ROOT / "server" / "config" / "rules.py",
]
MAKERS = {"Fact", "Futile"}
HEALTHY = [*(ROOT / "server" / "config" / "presets").glob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]
HEALTHY.remove(ROOT / "examples" / "plugin" / "config.yaml")  # only with the plug-in: tests/ludus/test_plugins.py


def made() -> set[str]:
    """Return the codes in the code."""
    calls = [node for path in PLACES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    first = [node.args[0] for node in calls if isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args]
    return {node.value for node in first if isinstance(node, ast.Constant)}


def test_every_finding_is_explained_and_no_other() -> None:
    table = (ROOT / "docs" / "health.md").read_text().partition("\n## Findings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)

    assert len(rows) == table.count("\n| `")
    assert sorted(code for code, *_ in rows) == sorted(made())


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_configuration_that_is_shipped_has_no_finding(path: Path) -> None:
    config, _ = review(path.read_text(), local=True)

    assert [found.code for section in config.trainers().values() for found in futile(section)] == []
