"""Command lines of `ludus fake-server` and `ludus contract` that are wrong, and what they list."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.sdk.contract.kit import SCENARIOS, WEBSOCKET_SCENARIOS

TLS = Path(__file__).parents[2] / "data" / "tls"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--tls-key", str(TLS / "localhost.key")), "belong together"),
        (("--parameter", "size=large"), "'large' is not a number"),
        (("--script", "no_such.jsonl"), "cannot be read"),
        (("--script", __file__), "line 1 is no action"),
        (("--ending", "well"), "is not one of"),
        (("--steps", "0"), "is not in the range"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = CliRunner().invoke(ludus, ["fake-server", "--port", "0", *arguments])

    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())


def test_the_scenarios_are_listed() -> None:
    assert CliRunner().invoke(ludus, ["contract", "--list"]).stdout.splitlines() == [
        each.name for each in (*SCENARIOS, *WEBSOCKET_SCENARIOS)
    ]
