"""The notebook of docs/client.md, typed block by block on a real stack: each output is what the page shows."""

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import LudusUp

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
CELLS = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


def typed(cell: str, names: dict[str, Any]) -> str:
    """Execute a cell as a notebook does, and return its output: what it prints, and the value of a last expression."""
    body = ast.parse(cell).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                printed.write(f"{value!r}\n")
    return printed.getvalue()


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("stack")
@pytest.mark.timeout(600)
def test_the_notebook_of_the_page_has_the_outputs_that_it_shows(
    stack: LudusUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUDUS_SERVER", stack.api)
    monkeypatch.setenv("LUDUS_SIMULATOR_SERVER", stack.gateway)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        outputs = [(cell, typed(cell, names)) for cell, _ in CELLS]
    finally:
        for game in names.get("games", []):
            game.end()
        names["client"].close()
    assert outputs == CELLS
    assert len(CELLS) > 8
