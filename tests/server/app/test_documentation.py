import re
from pathlib import Path

import server.app.app  # noqa: F401  # loads every module that adds errors
from ludus.cli.exits import INTERRUPTED, Exit
from server.kit.errors import LudusError
from server.kit.http.errors import status_of

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
FROM_THE_FRAMEWORK = {
    ("404", "route_not_found"),
    ("405", "method_not_allowed"),
    ("422", "invalid_request"),
    ("500", "internal"),
}
OWN = re.compile(r"server\.(?!gateway\.|access\.bootstrap$).*")
"""Modules whose errors the API answers with: those of the gateway answer simulators (proto/README.md), that of the
first token the command line.
"""


def leaves(error: type[LudusError]) -> set[type[LudusError]]:
    children = error.__subclasses__()
    return {leaf for child in children for leaf in leaves(child)} if children else {error}


def test_every_code_is_documented_with_its_status() -> None:
    documented = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE, re.MULTILINE))
    known = {(str(status_of(error)), error.code) for error in leaves(LudusError) if OWN.fullmatch(error.__module__)}

    assert documented == known | FROM_THE_FRAMEWORK


def test_every_exit_code_is_documented() -> None:
    codes = PAGE.partition("## Exit codes")[2]

    assert [int(code) for code in re.findall(r"^\| (\d+) \|", codes, re.MULTILINE)] == [*map(int, Exit), INTERRUPTED]
