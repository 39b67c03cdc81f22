"""How commands that play for a run end, and an edge collector without a gateway."""

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.cli.collect import run_until_end
from ludus.cli.exits import Exit
from ludus.protocol.codes import CloseCode
from ludus.sdk.join import RunEnd


@pytest.mark.parametrize(
    ("code", "expected"),
    [(CloseCode.RUN_FINISHED, Exit.OK), (CloseCode.RUN_FAILED, Exit.RUN_FAILED), (CloseCode.RUN_CANCELLED, 5)],
)
def test_the_end_of_a_run_is_printed_and_has_an_exit_code(
    capsys: pytest.CaptureFixture[str], code: CloseCode, expected: int
) -> None:
    async def play() -> RunEnd:
        return RunEnd(code, "the run is over", "run")

    assert run_until_end(play(), "ending") == expected
    assert capsys.readouterr().err == "the run is over\n"


def test_a_gateway_out_of_reach_has_an_exit_code() -> None:
    ended = CliRunner().invoke(ludus, ["collect", "any", "--server", "127.0.0.1:1", "--connect-timeout", "0"])

    assert ended.exit_code == Exit.UNREACHABLE
    assert "nothing listens at 127.0.0.1:1" in ended.stderr
