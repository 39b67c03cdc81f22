"""`ludus fake-server` plays the server for authors of clients: it serves good ones, and names what the others get wrong
as a real server does."""

import asyncio
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.contract import MAX_UNADMITTED_STEPS
from ludus.protocol.options import REASON_METADATA
from ludus.sdk import (
    CannotConnect,
    CloseCode,
    connect,
)
from ludus.sdk.contract.fake_server import Behaviour, FakeServer
from tests.ludus.collector.stack import SPEC, Simulator
from tests.ludus.collector.test_native import MISTAKES
from tests.toys.catch import Catch
from tests.toys.mazes import Crowd
from tests.toys.wanderers import Wanderers
from tests.waiting import eventually
from tests.websockets import join as join_over_websockets

NODE = Path(__file__).parents[2] / "examples" / "node"
TLS = Path(__file__).parents[1] / "data" / "tls"
SECONDS = 60


class Server:
    """The command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "fake-server", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("listening at "), first + self.process.stdout.read()
        self.address = first.split()[2]
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(line.rstrip("\n") for line in self.process.stdout)

    def end(self) -> int:
        """Wait for the end of a command that ends by itself; return its exit code."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    @property
    def violations(self) -> list[str]:
        return [line.removeprefix("VIOLATION: ") for line in self.said if line.startswith("VIOLATION")]

    def heard(self, part: str) -> int:
        return sum(part in line for line in self.said)

    def wait_for(self, *parts: str) -> None:
        """Wait until a line with all `parts` was printed; what a client got may arrive here later."""
        eventually(lambda: any(all(part in line for part in parts) for line in self.said), f"it says {parts}", SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ["closed with run_finished: the fake run has ended after 40 steps"]),
        (
            ("--reset-every", "7", "--parameter", "gravity=2"),
            ["sent: Reset 3, environment parameters {'gravity': 5.0}"],
        ),
        (("--split", "--unknown-messages", "--delay", "0.01"), []),
        (
            ("--wait", "3", "--relay", "--token", "secret"),
            ["answered: wait, 3 of 3", "answered: assignment of simulator 0, 127.0.0.1:1", "asks for relay"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_client_that_keeps_the_contract_is_served_and_told_of(arguments: tuple[str, ...], said: list[str]) -> None:
    with Server("--steps", "40", "--streams", "1", *arguments) as server:
        ending = connect(Catch(), run="catch", server=server.address, token="secret", label="a paddle")

        assert server.end() == 0
    assert ending.code is CloseCode.RUN_FINISHED
    assert server.violations == []
    assert server.heard("Join: run 'catch', session id ")
    assert server.heard("label 'a paddle'")
    assert server.heard("Hello: behavior 'Catcher' sees float32 [3]; 0 continuous actions, branches [3]")
    assert server.heard("step 1: Catcher: agents 0, 1, 2 ask, rewards 0, 0, 0")
    assert server.heard("ended (1 terminated, 0 truncated), rewards ") or server.heard("terminated, 0 truncated)")
    for sentence in said:
        assert server.heard(sentence), sentence
    assert server.said[-1].startswith("1 streams, ")


@pytest.mark.long
def test_masks_are_kept_by_random_actions_and_by_those_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "left.jsonl"
    script.write_text('{"discrete": [0]}\n{"discrete": [1]}\n')
    for arguments in ((), ("--script", str(script))):
        with Server("--steps", "60", "--streams", "1", *arguments) as server:
            connect(Crowd(), run="walk", server=server.address)  # raises where a forbidden action is taken
            assert server.end() == 0
    assert server.heard("choice 0 of branch 0 is replaced by a random one: the mask forbids it")


@pytest.mark.long
@pytest.mark.parametrize("ending", ["break", "moved", "paused"])
def test_a_client_comes_back_where_it_shall(ending: str) -> None:
    with Server("--steps", "5", "--ending", ending, "--streams", "3") as server:
        with pytest.raises(CannotConnect):  # once the server has gone
            connect(Catch(), run="catch", server=server.address, connect_timeout_seconds=1.0)

        assert server.end() == 0
    assert server.heard("join again") >= 3
    assert len({line.split("session id ")[1].split("'")[1] for line in server.said if "Join: " in line}) == 1


@pytest.mark.long
@pytest.mark.parametrize(("ending", "code"), [("failed", CloseCode.RUN_FAILED), ("cancelled", CloseCode.RUN_CANCELLED)])
def test_a_run_can_end_badly_and_takes_nobody_then(ending: str, code: CloseCode) -> None:
    with Server("--steps", "5", "--ending", ending) as server:
        first = connect(Catch(), run="catch", server=server.address)
        second = connect(Catch(), run="catch", server=server.address)

        assert server.interrupt() == 0
    assert (first.code, first.sessions) == (code, 1)
    assert (second.code, second.sessions) == (code, 0)


@pytest.mark.long
def test_a_game_that_can_go_back_is_asked_where_it_is_and_sent_there() -> None:
    with Server("--steps", "11", "--save-every", "5", "--ending", "moved", "--streams", "2") as server:
        with pytest.raises(CannotConnect):
            connect(Wanderers(), run="walk", server=server.address, connect_timeout_seconds=1.0)

        assert server.end() == 0, server.said
    assert server.heard("sent: Save 1")
    assert server.heard("Saved 1: ")
    assert server.heard("it went back to where it was")


def test_tls_is_spoken_on_both_addresses() -> None:
    files = ("--tls-certificate", str(TLS / "localhost.pem"), "--tls-key", str(TLS / "localhost.key"))
    with Server("--steps", "5", "--streams", "1", "--host", "localhost", *files) as server:
        connect(Catch(), run="catch", server=server.address, ca_file=str(TLS / "localhost.pem"))

        assert server.end() == 0, server.said


@pytest.mark.node
@pytest.mark.parametrize("arguments", [(), ("--reset-every", "7"), ("--split",), ("--relay",)])
def test_the_javascript_client_is_served(arguments: tuple[str, ...]) -> None:
    node = shutil.which("node")
    assert node is not None
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    with Server("--steps", "40", "--streams", "1", *arguments) as server:
        subprocess.run(
            [node, "catch.js", "--run", "catch", "--server", server.address],
            cwd=NODE,
            env=environment,
            timeout=SECONDS,
            check=True,
        )

        assert server.end() == 0, server.violations


# What clients get wrong


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    with Server("--max-message-bytes", str(1 << 16), "--token", "secret", "--run", "catch") as server:
        yield server


def join(address: str, session_id: str = "sim", **fields: object) -> pb.JoinResponse:
    request = pb.JoinRequest(**{"run": "catch", "session_id": session_id, "protocol_version": 1, **fields})  # type: ignore[arg-type]  # by name
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/ludus.v1.SimulationService/Join")
        metadata = (("authorization", "Bearer secret"),)
        return pb.JoinResponse.FromString(call(request.SerializeToString(), metadata=metadata, timeout=SECONDS))


def opened(server: Server) -> Simulator:
    """Return a client that was welcomed."""
    simulator = Simulator(server.address)
    ticket = join(server.address, simulator.session_id).assignment.ticket
    assert simulator.hello(SPEC, ticket=ticket).HasField("welcome")
    return simulator


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "a behavior that is not configured"])
def test_each_mistake_has_the_name_that_a_real_server_gives_it(strict: Server, mistake: str) -> None:
    spoil, code = MISTAKES[mistake]
    culprit = opened(strict)

    spoil(culprit)
    close = closed(culprit)

    assert close.code == code
    strict.wait_for(f": {code}: {close.reason}")
    culprit.leave()


def test_a_stream_whose_client_does_not_end_it_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.sdk.contract.fake_server.LINGER_SECONDS", 0.2)
    listening, over = queue.SimpleQueue[FakeServer](), threading.Event()

    async def serve() -> None:
        async with FakeServer(Behaviour(), str, host="127.0.0.1", port=0) as server:
            listening.put(server)
            await asyncio.to_thread(over.wait, SECONDS)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        server = listening.get(timeout=SECONDS)
        culprit = Simulator(f"127.0.0.1:{server.port}")

        culprit.step([0])  # and no Hello before

        assert culprit.closed().code == "step_before_hello"
        culprit.leave()
    finally:
        over.set()
        thread.join(SECONDS)


def test_asking_while_one_waits_is_named() -> None:
    with Server("--save-every", "1") as server:  # the answer waits for Saved, which does not come
        culprit = Simulator(server.address)
        hello = culprit.make_hello(SPEC, ticket=join(server.address, culprit.session_id).assignment.ticket)
        hello.resumes = True
        culprit.send(hello)
        culprit.step([0, 1])

        culprit.step([1, 2])

        assert closed(culprit).code == "decision_pending"
        culprit.leave()
        assert server.interrupt() == 1
    assert server.violations[-1].endswith(
        "decision_pending: agent 1 asks for a decision while its last one is unanswered"
    )


def closed(culprit: Simulator) -> pb.Close:
    """Return the Close, and end the stream as clients do then; the server ends it, too."""
    while not (response := culprit.receive()).HasField("close"):
        pass
    culprit.half_close()
    with pytest.raises(StopIteration):
        culprit.receive()
    return response.close


def play_against(server: Server) -> Simulator:
    """Return a simulator that has been welcomed."""
    simulator = Simulator(server.address)
    simulator.hello(SPEC, ticket=join(server.address, simulator.session_id).assignment.ticket)
    return simulator


def test_messages_are_read_while_an_answer_is_delayed() -> None:
    with Server("--delay", "30") as server:
        culprit = play_against(server)
        culprit.step([0, 1])

        culprit.step([1, 2])

        assert closed(culprit).code == "decision_pending"
        culprit.leave()
        assert server.interrupt() == 1


def test_more_steps_than_allowed_before_the_first_answer_are_named() -> None:
    with Server("--delay", "30") as server:
        culprit = play_against(server)

        for agent in range(MAX_UNADMITTED_STEPS + 1):
            culprit.step([agent])

        assert closed(culprit).code == "decision_pending"
        culprit.leave()
        assert server.interrupt() == 1
    assert server.violations[-1].endswith("more than 64 steps came before the first answer")


def test_an_agent_that_ends_while_it_waits_is_answered_for_the_step_in_which_it_asked_last() -> None:
    with Server("--delay", "1") as server:
        simulator = play_against(server)
        simulator.step([0, 1])
        simulator.step([0], ended=[0])  # ends, and begins its next episode
        simulator.step([2])
        simulator.step([], ended=[2])  # nobody of step 3 waits any more

        answers = [simulator.receive().actions for _ in range(2)]

        assert [answer.step_id for answer in answers] == [1, 2]
        named = [np.frombuffer(answer.behaviors[0].agent_ids, "<i4").tolist() for answer in answers]
        assert named == [[1], []], "no agents are named where all of the step's are answered"
        simulator.step([0, 1])
        assert simulator.receive().actions.step_id == 5
        simulator.leave()
        server.interrupt()
    assert not [violation for violation in server.violations if "ludus-ticket is missing" not in violation]


def test_an_announcement_of_nothing_is_named(strict: Server) -> None:
    culprit = play_against(strict)

    culprit.send(pb.Announce())
    culprit.step([0])

    assert culprit.receive().actions.step_id == 1
    strict.wait_for("VIOLATION: stream", "Announce names no behavior; it introduces at least one")
    culprit.leave()


@pytest.mark.parametrize("ticket", ["", "invented", "spent", "another's"])
def test_a_ticket_that_opens_nothing_is_named(strict: Server, ticket: str) -> None:
    culprit, spent = Simulator(strict.address), ticket == "spent"
    if spent:
        ticket = join(strict.address, culprit.session_id).assignment.ticket
        first = Simulator(strict.address, culprit.session_id)
        first.hello(SPEC, ticket=ticket)
        first.leave()
    elif ticket == "another's":
        ticket = join(strict.address, "somebody").assignment.ticket

    response = culprit.hello(SPEC, ticket=ticket)

    assert response.close.code == ("ticket_expired" if spent else "bad_ticket")
    assert response.close.rejoin is spent
    culprit.leave()


def test_a_newer_stream_of_an_session_id_ends_the_older_one(strict: Server) -> None:
    older = opened(strict)
    newer = Simulator(strict.address, older.session_id)

    newer.hello(SPEC, ticket=join(strict.address, older.session_id).assignment.ticket)

    assert closed(older).code == "superseded"
    newer.play([0], 1)
    newer.leave()
    older.leave()


def test_a_client_that_falls_silent_is_named() -> None:
    with Server("--step-timeout", "0.3") as server:
        culprit = opened(server)
        culprit.play([0], 1)

        assert closed(culprit).code == "step_timeout"
        culprit.leave()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run": "nobody"}, "run_not_found"),
        ({"session_id": "a b"}, "bad_join"),
        ({"protocol_version": 2}, "protocol_version"),
    ],
)
def test_a_malformed_join_is_refused_with_its_reason(strict: Server, fields: dict[str, object], reason: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        join(strict.address, **{"session_id": "sim", **fields})  # type: ignore[arg-type]  # by name

    assert dict(raised.value.trailing_metadata())[REASON_METADATA] == reason
    strict.wait_for(f"VIOLATION: {reason}: ")


def test_a_wrong_token_is_refused(strict: Server) -> None:
    with pytest.raises(CannotConnect) as raised:
        connect(Catch(), run="catch", server=strict.address, token="guessed")

    assert raised.value.code == "unauthenticated"


def test_what_a_server_ignores_is_told(strict: Server) -> None:
    simulator = opened(strict)
    step = simulator.make_step([0], ended=[7], reward=1.5)
    simulator.send(step)
    simulator.receive()
    simulator.half_close()
    with pytest.raises(StopIteration):
        simulator.receive()

    strict.wait_for("ignored: the end of agents 7, which have no running episode")
    strict.wait_for("ignored: the rewards of agents 0, whose episode begins with this decision")
    simulator.leave()


@pytest.mark.long
def test_a_port_that_is_taken_is_said() -> None:
    with Server() as server:
        done = subprocess.run(
            [sys.executable, "-m", "ludus.cli", "fake-server", "--port", server.address.rpartition(":")[2]],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    assert done.returncode == 1
    assert "cannot be listened at" in done.stderr


def test_a_client_with_websockets_is_told_of_with_the_address_that_it_gets() -> None:
    with Server("--websocket-port", "0") as server:
        server.wait_for("WebSockets at ws://")
        url = next(line.split()[2] for line in server.said if line.startswith("WebSockets at "))
        assignment = join_over_websockets(url.removeprefix("ws://"), "catch").assignment
        server.wait_for(f"over WebSockets: {url}")

    assert f"ws://{assignment.address}" == url
    assert server.heard(f"answered: assignment of simulator 0, {server.address}")


def test_the_proto_files_can_be_had_without_the_repository(tmp_path: Path) -> None:
    folder = tmp_path / "contract"

    assert CliRunner().invoke(ludus, ["proto", str(folder)]).exit_code == 0

    proto = Path(__file__).parents[2] / "proto"
    written = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert written == ["README.md", "ludus/v1/simulation.proto", "mlagents/unity.proto"]
    assert all((folder / name).read_bytes() == (proto / name).read_bytes() for name in written)
    links = re.findall(r"\]\(([^)#]+)\)", (folder / "README.md").read_text())
    assert links
    assert not [link for link in links if not (folder / link).exists()]
