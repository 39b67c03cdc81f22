"""Everything that can be wrong is one sentence that says what to do, and stands in the guide under its name."""

import re
from pathlib import Path

import pytest

from ludus.games import diagnostics
from ludus.games.diagnostics import failure
from ludus.protocol.codes import CloseCode
from ludus.protocol.side_channels import STATS
from ludus.sdk.errors import Failure

GUIDE = (Path(__file__).parents[3] / "docs" / "unity.md").read_text()
PROBLEMS = [
    diagnostics.never_dialled(Path("Game.exe"), 5005, 60.0, ["HTTP_PROXY"]),
    diagnostics.exited(3, dialled=True, last_lines=""),
    diagnostics.exited(-11, dialled=False, last_lines="it printed:\n    oh"),
    failure("game_quit"),
    failure("second_call_missing", seconds=60.0),
    failure("stopped_calling", seconds=60.0),
    diagnostics.no_editor_plays(5004, 60.0, []),
    failure("foreign_game", port=5005),
    failure("stray_call", port=5005),
    failure("port_taken", port=5005, instead=5006),
    failure("editor_port_taken", port=5004),
    failure("no_port", first=5005, last=65535),
    failure("port_in_arguments", argument="--mlagents-port"),
    failure("reply_too_large", size=5 << 20, limit=4 << 20),
    failure(CloseCode.MESSAGE_TOO_LARGE, details="70 MB"),
    failure("cameras_without_graphics", behavior="Seer?team=0", cameras=2),
    failure("hook_failed", method="pending", error="KeyError: 'x'"),
    failure("channel_of_the_run", channel=STATS),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.code)
def test_a_problem_is_in_the_guide(problem: Failure) -> None:
    assert f"| `{problem.code}` |" in GUIDE


def test_every_problem_is_tried_here() -> None:
    described = set(re.findall(r'return Failure\(\s*"(\w+)"', Path(diagnostics.__file__).read_text()))

    assert {problem.code for problem in PROBLEMS} == described | {*diagnostics.SENTENCES, "exited_early"}


def test_the_proxy_is_named_where_there_is_one() -> None:
    assert "HTTP_PROXY" in PROBLEMS[0].sentence
    assert "proxy" not in diagnostics.never_dialled(Path("Game.exe"), 5005, 60.0, []).sentence


def test_a_signal_is_no_exit_code() -> None:
    assert "was killed by signal 11 before it had dialled" in PROBLEMS[2].sentence


def test_proxies_are_found_whatever_their_case() -> None:
    environment = {"HTTP_PROXY": "http://p", "https_proxy": "http://p", "no_proxy": "x", "grpc_proxy": ""}

    assert diagnostics.proxies_in(environment) == ["HTTP_PROXY", "https_proxy"]


def test_what_the_next_process_would_do_again_is_hopeless() -> None:
    assert diagnostics.is_hopeless(CloseCode.BEHAVIOR_NOT_CONFIGURED)
    assert not diagnostics.is_hopeless(CloseCode.NOT_FINITE)
