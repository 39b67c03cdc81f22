"""Every table of exit codes has the codes that the commands end with."""

import re
from pathlib import Path

import pytest

from ludus.cli.exits import HELP, INTERRUPTED, OUTCOMES, VERDICT_HELP, VERDICTS, Exit

DOCS = Path(__file__).parents[3] / "docs"


def codes_of(page: str, title: str) -> set[int]:
    """Return the codes of the table that follows a title."""
    _, _, rest = (DOCS / page).read_text().partition(title)
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table, title
    cells = [row.split("|")[1] for row in table[0].splitlines()[2:]]
    return {int(code) for cell in cells for code in cell.split(",")}


def test_the_page_of_the_api_has_every_code() -> None:
    assert codes_of("api.md", "## Exit codes of the client commands") == {*Exit, INTERRUPTED}


def test_the_page_of_gates_has_every_code_that_a_gate_ends_with_once_its_run_is_there() -> None:
    stopped = {Exit.RUN_FAILED, Exit.RUN_CANCELLED, Exit.TIMED_OUT, Exit.STALLED}

    assert codes_of("gate.md", "## Exit codes") == {*VERDICTS.values(), *stopped}


@pytest.mark.parametrize(
    ("text", "others"),
    [(HELP, {*VERDICTS.values()} - {*OUTCOMES.values()}), (VERDICT_HELP, {Exit.UNMET, Exit.NO_METRIC, Exit.WARNED})],
)
def test_help_has_every_code_but_those_of_the_other_commands(text: str, others: set[Exit]) -> None:
    assert {int(code) for code in re.findall(r"^ +(\d+)  ", text, re.MULTILINE)} == {*Exit} - others
