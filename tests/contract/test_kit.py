"""`ludus contract` judges a client in words: what was expected, what came, and where the page says so."""

import sys
from pathlib import Path

import grpc
import psutil
import pytest
from click.testing import CliRunner, Result
from websockets.frames import Frame, Opcode

from ludus.cli import ludus
from ludus.protocol import simulation_pb2 as pb
from ludus.sdk import SimulatorError, connect
from ludus.sdk.contract import websocket
from ludus.sdk.contract.kit import (
    FRAME_LENGTHS,
    RUN,
    SCENARIOS,
    WEBSOCKET_SCENARIOS,
    Scenario,
    evaluate,
    later_message,
    serve,
)
from ludus.sdk.contract.scripted import TICKET, ScriptedServer, finish_after
from tests.ludus.collector.stack import SPEC, Simulator
from tests.toys.catch import Catch
from tests.waiting import eventually
from tests.websockets import Refused, dial, message_of

ROOT = Path(__file__).parents[2]
NAMED = {scenario.name: scenario for scenario in SCENARIOS}
PLAYS = "plays until the run is finished"
CLIENT = """
import argparse, os, sys
from ludus.sdk import SimulatorError, connect
from tests.toys.catch import Catch

parser = argparse.ArgumentParser()
parser.add_argument("--run")
parser.add_argument("--server")
given = parser.parse_args()
assert (given.run, given.server) == (os.environ["LUDUS_RUN"], os.environ["LUDUS_SIMULATOR_SERVER"])
assert not [name for name in os.environ if name.lower().endswith("_proxy") or name == "LUDUS_TOKEN"]
try:
    sys.exit(0 if connect(Catch(), run=given.run, server=given.server).finished else 1)
except SimulatorError as error:
    sys.exit(str(error))
"""


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients in processes of their own import the game of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def kit(*arguments: str) -> Result:
    return CliRunner().invoke(ludus, ["contract", *arguments])


def python(program: str, *arguments: str) -> list[str]:
    return ["--", sys.executable, "-c", program, *arguments]


def problems(scenario: Scenario, server: ScriptedServer, succeeded: bool = True) -> list[str]:
    return [*evaluate(scenario, server, succeeded=succeeded, ending="exit code 0")]


def test_the_scenarios_can_be_listed() -> None:
    listed = kit("--list")

    assert listed.exit_code == 0
    assert listed.stdout.splitlines() == [*NAMED, *(scenario.name for scenario in WEBSOCKET_SCENARIOS)]


@pytest.mark.long
@pytest.mark.parametrize("places", [(), ("--run", "{run}", "--server={server}")])
def test_a_client_gets_the_address_by_options_places_and_variables_and_no_proxy_or_token(
    places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("LUDUS_TOKEN", "mine")

    done = kit("--only", PLAYS, "--only", "gives up when there is no such run", *python(CLIENT, *places))

    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.partition("  (")[0] for line in lines] == [
        f"OK   {PLAYS}",
        "OK   gives up when there is no such run",
        "2 of 2 OK",
    ]


def test_a_failure_says_what_was_expected_what_came_where_the_rule_stands_and_the_last_words() -> None:
    done = kit("--only", PLAYS, *python("print('no game here'); raise SystemExit(3)"))

    assert done.exit_code == 1
    verdict, words, total = done.stdout.splitlines()
    assert verdict.startswith(
        f"FAIL {PLAYS}. The client calls Join with the run 'contract', protocol version 1 and its own name, plays, and "
        "ends with exit code 0 after Close(run_finished) (proto/README.md, section 1. In short). But Join was called "
        "0 times instead of once; Connect was called 0 times instead of once; the client ended with exit code 3 "
        "instead of 0"
    )
    assert words.strip() == "| no game here"
    assert total == "0 of 1 OK"


@pytest.mark.long
def test_a_client_that_hangs_fails_and_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    below = tmp_path / "pid"
    program = f"""
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
open({str(below)!r}, "w").write(str(below.pid))
time.sleep(600)
"""
    done = kit("--only", PLAYS, "--timeout", "3", *python(program))

    assert done.exit_code == 1
    assert "the client still ran after 3 s, and was ended; the server waited for Join" in done.stdout
    assert "| started" in done.stdout
    pid = int(below.read_text())
    eventually(lambda: not alive(pid), "the process below the client has ended")


@pytest.mark.long
def test_the_failure_that_the_page_shows_is_what_a_client_gets_that_does_not_name_the_reset() -> None:
    forgetful = """
import ludus.sdk.session as session
encode = session.encode_step
session.encode_step = lambda step_id, batches, stats, reset_id: encode(step_id, batches, stats, 0)
"""
    page = " ".join((ROOT / "proto" / "README.md").read_text().split())

    done = kit("--only", "begins new episodes after a reset", "--timeout", "6", *python(forgetful + CLIENT))

    shown, last_words = done.stdout.splitlines()[:2]
    told = " ".join(f"{shown.partition('  (')[0]} {last_words}".split())
    assert told.replace("after 6 s", "after 60 s") in page.replace(" (60.2 s)", "")
    assert f"each of {len(SCENARIOS)} scenarios" in page
    assert f"{len(SCENARIOS) + len(WEBSOCKET_SCENARIOS)} if it has WebSockets" in page


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not yet reaped does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--", "./no-such-client"), 1, "./no-such-client cannot be started: No such file or directory"),
        (("--only", "dances", "--", "true"), 2, "'dances' is not one of"),
        (("--timeout", "0", "--", "true"), 2, "is not in the range"),
        (
            ("--only", "answers pings", "--", "true", "{run}"),
            2,
            "is for clients with WebSockets: CMD has no {websocket}",
        ),
        ((), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_tried_is_said(arguments: tuple[str, ...], code: int, problem: str) -> None:
    done = kit(*arguments)

    assert done.exit_code == code
    assert problem in done.stderr


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("scenario", SCENARIOS + WEBSOCKET_SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_client_that_does_nothing_passes_no_scenario(scenario: Scenario, succeeded: bool) -> None:
    with serve(scenario) as server:
        pass

    assert problems(scenario, server, succeeded)


@pytest.mark.parametrize("framing", [websocket.pinged, websocket.fragmented], ids=lambda framing: framing.__name__)
@pytest.mark.parametrize("pong", [None, b"", websocket.PING[1:]], ids=["none", "empty", "shorter"])
def test_a_client_that_does_not_answer_a_ping_with_its_bytes_is_told_so(
    framing: websocket.Framing, pong: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.3)
    violations: list[str] = []
    request = pb.JoinRequest(run=RUN, session_id="one", protocol_version=1)

    with (
        ScriptedServer(finish_after(3)) as server,
        websocket.WebSocketDoor(server.address, framing=framing, violation=violations.append) as door,
        dial(door.url.removeprefix("ws://"), "Join", {}) as culprit,
    ):
        send = culprit.protocol.send_frame

        def send_frame(frame: Frame) -> None:
            if frame.opcode is not Opcode.PONG:
                send(frame)
            elif pong is not None:
                send(Frame(Opcode.PONG, pong))

        monkeypatch.setattr(culprit.protocol, "send_frame", send_frame)
        culprit.send(request.SerializeToString())
        if framing is websocket.fragmented:  # the answer itself comes before the server looks at the pong
            message_of(culprit)
        with pytest.raises(Refused, match="did not answer a ping of 125 bytes"):
            message_of(culprit)

    assert len(violations) == 1


def test_the_frames_are_as_long_as_they_should_be() -> None:
    assert tuple(later_message(length).ByteSize() for length in FRAME_LENGTHS) == FRAME_LENGTHS


def test_a_client_that_calls_nothing_is_told_so_and_nothing_about_what_it_would_have_sent() -> None:
    (asked_for_relay,) = [scenario for scenario in SCENARIOS if "relay" in scenario.name]
    with serve(asked_for_relay) as server:
        problems = [*evaluate(asked_for_relay, server, succeeded=False, ending="exit code 1")]

    assert problems == [
        "Join was called 0 times instead of 2 times",
        "Connect was called 0 times instead of once",
        "the client ended with exit code 1 instead of 0",
    ]


def test_a_client_that_breaks_a_rule_is_told_the_code_and_the_sentence_of_a_real_server() -> None:
    with serve(NAMED[PLAYS]) as server:
        culprit = joined(server.address)
        culprit.hello(SPEC, ticket=TICKET)
        culprit.step([0, 1])
        culprit.receive()

        culprit.step_id = 0
        culprit.step([1])

        assert receive_close(culprit).code == "step_order"
        culprit.leave()
    assert problems(NAMED[PLAYS], server)[0] == "stream 0: step_order: step 1 came after step 1; ids must grow"


def test_a_client_that_ends_episodes_that_were_reset_is_told_so() -> None:
    scenario = NAMED["begins new episodes after a reset"]
    with serve(scenario) as server:
        culprit = joined(server.address)
        culprit.hello(SPEC, ticket=TICKET)
        for _ in range(6):
            culprit.step([0])
            message = culprit.receive()
        assert message.HasField("reset")
        step = culprit.make_step([], ended=[0])
        step.reset_id = 1

        culprit.send(step)

        assert receive_close(culprit).code == "run_failed"
        culprit.leave()
    assert problems(scenario, server) == ["stream 0: a step ends episodes of agents 0, which never began"]


def test_a_client_with_another_session_id_each_time_is_told_so() -> None:
    scenario = NAMED["waits for a run that is not ready"]
    with serve(scenario) as server:
        for _ in range(3):
            joined(server.address).leave()

    assert "3 session ids came, and it must be the same in all calls of Join" in problems(scenario, server)


def test_a_client_that_names_itself_wrongly_is_told_so() -> None:
    with serve(NAMED[PLAYS]) as server:
        joined(server.address).leave()  # it does not give its name

    assert "`client` was empty" in problems(NAMED[PLAYS], server)


def joined(address: str) -> Simulator:
    """Return a client that has called Join."""
    simulator = Simulator(address, ticket=TICKET)
    request = pb.JoinRequest(run=RUN, session_id=simulator.session_id, protocol_version=1)
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary("/ludus.v1.SimulationService/Join")(request.SerializeToString(), timeout=60)
    return simulator


def receive_close(culprit: Simulator) -> pb.Close:
    """Return the Close, and end the stream as clients do then."""
    while not (response := culprit.receive()).HasField("close"):
        pass
    culprit.half_close()
    return response.close


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_python_client(scenario: Scenario) -> None:
    with serve(scenario) as server:
        try:
            succeeded = connect(Catch(), run=RUN, server=server.address).finished
        except SimulatorError:
            succeeded = False

    assert [*evaluate(scenario, server, succeeded=succeeded, ending="an error")] == []
