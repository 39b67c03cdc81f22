"""`clients/cpp` with Debian's compiler and gRPC: the compliance kit, the C ABI from C and Python, a game that learns.

The library is built once. LUDUS_TEST_CPP names a folder where it is built already.
"""

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.sdk.contract.kit import SCENARIOS, Scenario, session, try_client
from ludus.sdk.contract.scripted import Peer, ScriptedServer, assign
from tests.clients.cpp.binding import ACTIONS, ERROR, FINISHED, NOTHING, START, Columns, address, columns, load, moth
from tests.contract.test_fake_server import Server
from tests.e2e.stack import LudusUp

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "clients" / "cpp"
TLS = ROOT / "tests" / "data" / "tls"
SECONDS = 60
BINDING = Path(__file__).parent / "binding.py"

pytestmark = [pytest.mark.cpp, pytest.mark.xdist_group("cpp"), pytest.mark.timeout(300)]


def said(command: Sequence[str | Path], **environment: str) -> str:
    """Return what a program prints that succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library and its examples."""
    folder = Path(os.environ.get("LUDUS_TEST_CPP") or tmp_path_factory.mktemp("cpp"))
    cmake = shutil.which("cmake")
    assert cmake, "install cmake, g++, libgrpc++-dev, libprotobuf-dev, protobuf-compiler-grpc and pkg-config"
    options = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0 -Wall -Wextra -Werror"]
    said([cmake, "-S", SOURCE, "-B", folder, *options])
    said([cmake, "--build", folder, "--parallel", "2"])
    return folder


@pytest.fixture
def c(built: Path) -> Any:
    """The library, for ctypes."""
    return load(built / "libludus.so")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_game_in_cpp_passes_the_kit(built: Path, scenario: Scenario) -> None:
    verdict = try_client(scenario, [str(built / "chase")], SECONDS)

    assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


@pytest.mark.parametrize("scenario", SCENARIOS[::4], ids=lambda scenario: scenario.name)
def test_a_game_in_c_passes_the_kit(built: Path, scenario: Scenario) -> None:
    verdict = try_client(scenario, [str(built / "walk")], SECONDS)

    assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


@pytest.mark.parametrize("scenario", SCENARIOS[:7], ids=lambda scenario: scenario.name)
def test_columns_of_all_kinds_pass_the_kit_through_a_binding(built: Path, scenario: Scenario) -> None:
    verdict = try_client(scenario, [sys.executable, str(BINDING), str(built / "libludus.so")], SECONDS)

    assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


def test_the_game_of_the_page_compiles_and_plays(built: Path, tmp_path: Path) -> None:
    (game,) = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "docs" / "own-engine.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "game.cpp").write_text(game)
    paths = [f"-I{SOURCE / 'include'}", f"-L{built}", f"-Wl,-rpath,{built}"]
    said(
        [
            "g++",
            "-std=c++17",
            "-O0",
            "-Wall",
            "-Werror",
            *paths,
            tmp_path / "game.cpp",
            "-lludus",
            "-o",
            tmp_path / "game",
        ]
    )

    for scenario in SCENARIOS[:5]:
        verdict = try_client(scenario, [str(tmp_path / "game")], SECONDS)
        assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


@contextmanager
def opened(c: Any, server: str) -> Iterator[Any]:
    """Open a client of a binding, with the behavior of `moth`."""
    client = c.ludus_open(b"run", server.encode(), b"", None)
    assert client
    moth(c, client)
    yield client
    c.ludus_close(client)


def error_of(c: Any) -> str:
    """Return the last error of this thread."""
    return f"{c.ludus_last_code().decode()}: {c.ludus_last_error().decode()}"


def seen(rows: int) -> list["array[Any]"]:
    """Return observations of so many agents."""
    return [array("B", [0] * 400 * rows), array("f", [0.0] * 2 * rows)]


def test_mistakes_of_a_game_are_errors_that_name_them_and_cost_nothing(c: Any) -> None:
    agents, twice, nothing = array("i", [1, 2]), array("i", [1, 1]), array("Q", [0, 0])
    blind = Columns(count=2, agents=address(agents), observations=address(nothing))

    with ScriptedServer(session(lambda peer: peer.play(1))) as server, opened(c, server.address) as client:
        asked, kept = columns(seen(2), agents=agents)
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == ERROR
        assert error_of(c) == "not_connected: call ludus_next first"
        assert c.ludus_next(client, 10.0) == START
        mistakes = {
            "unknown_behavior: there is no behavior 1": (1, asked),
            "duplicate_agent: behavior 'Moth': agent 1 is named twice": (0, columns(seen(2), agents=twice)[0]),
            "observation_count: observation 'eye' is NULL": (
                0,
                blind,
            ),
        }
        for words, (behavior, wrong) in mistakes.items():
            assert c.ludus_ask(client, behavior, ctypes.byref(wrong)) == ERROR
            assert error_of(c) == words
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == 0
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == ERROR
        assert error_of(c) == "decision_pending: behavior 'Moth': agent 1 waits for an action already"
        assert c.ludus_end(client, 0, ctypes.byref(asked)) == ERROR
        assert error_of(c).startswith("duplicate_agent: behavior 'Moth': agent 1 has just asked")
        assert c.ludus_next(client, 10.0) == ACTIONS
        assert c.ludus_next(client, 10.0) == FINISHED
        del kept

    assert server.violations == []


def test_a_call_that_may_not_wait_returns_at_once_and_loses_nothing(c: Any) -> None:
    """An engine calls it once per frame: also while the gateway holds the call of Join."""
    ready = threading.Event()

    def hold(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        ready.wait(SECONDS)
        return assign(server, request, context)

    with ScriptedServer(session(lambda peer: peer.play(1)), join=hold) as server, opened(c, server.address) as client:
        assert [c.ludus_next(client, 0.0) for _ in range(3)] == [NOTHING] * 3
        ready.set()
        assert c.ludus_next(client, 10.0) == START
        assert c.ludus_next(client, 0.0) == NOTHING
        asked, kept = columns(seen(1), agents=array("i", [5]))
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == 0
        event = NOTHING
        while event == NOTHING:
            event = c.ludus_next(client, 0.001)
        assert event == ACTIONS
        del kept


def test_a_game_that_asks_for_nothing_and_waits_for_ever_is_told(c: Any) -> None:
    with ScriptedServer(session(lambda peer: peer.play(1))) as server, opened(c, server.address) as client:
        assert c.ludus_next(client, 10.0) == START
        assert c.ludus_next(client, -1.0) == ERROR
        assert error_of(c).startswith("nothing_asked: no agent waits for an action")


def test_a_null_client_and_a_run_that_is_missing_are_errors(c: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_RUN", raising=False)

    assert c.ludus_next(None, 1.0) == ERROR
    assert error_of(c) == "usage: the client is NULL"
    assert c.ludus_open(None, b"127.0.0.1:1", None, None) is None
    assert error_of(c).startswith("usage: usage: GAME --run RUN")
    c.ludus_close(None)


def test_a_game_that_leaves_says_so(c: Any) -> None:
    """It half-closes: the server does not take it for one that broke off."""
    left: list[str] = []

    def waiting(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome({"size": 3.5})
        peer.step()
        left.append("played")
        left.extend("sent more" for _ in peer._requests)
        left.append("half-closed")

    with ScriptedServer(waiting) as server, opened(c, server.address) as client:
        assert c.ludus_next(client, 10.0) == START
        assert (c.ludus_parameter(client, b"size", 1.0), c.ludus_parameter(client, b"speed", 2.0)) == (3.5, 2.0)
        assert c.ludus_seed(client) == 45
        asked, kept = columns(seen(1), agents=array("i", [5]))
        assert c.ludus_ask(client, 0, ctypes.byref(asked)) == 0
        assert c.ludus_next(client, 0.5) == NOTHING
        del kept

    assert left == ["played", "half-closed"]


def test_an_address_where_nothing_listens_ends_with_a_sentence_after_the_time_that_was_given(built: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    done = subprocess.run(
        [built / "chase", "--run", "r", "--server", address, "--connect-timeout", "0.5"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"unreachable: {address} could not be reached: ")


def test_tls_is_spoken_with_gateway_and_collector(built: Path) -> None:
    files = ("--tls-certificate", str(TLS / "localhost.pem"), "--tls-key", str(TLS / "localhost.key"))
    with Server("--steps", "5", "--streams", "1", "--host", "localhost", *files) as server:
        said([built / "chase", "--run", "r", "--server", server.address, "--ca-file", TLS / "localhost.pem"])

        assert server.end() == 0, server.said


@pytest.mark.e2e
def test_the_game_of_the_page_learns(built: Path, tmp_path: Path) -> None:
    up = LudusUp(tmp_path / "home")
    try:
        with up.client() as client:
            run = client.runs.create((SOURCE / "examples" / "chase.yaml").read_text())
            said([built / "chase", "--run", run.id, "--server", up.gateway])
            ended = client.runs.wait(run.id, timeout=SECONDS)
            (reward,) = client.metrics.series(run.id, "Environment/Cumulative Reward")
            (moves,) = client.metrics.series(run.id, "Chase/Moves")
    finally:
        up.stop()

    assert ended.state == "SUCCEEDED"
    first, last = reward.values[0] or 0.0, reward.values[-1] or 0.0
    assert last > 0.8 > first
    assert moves.values[-1] < moves.values[0] / 2
