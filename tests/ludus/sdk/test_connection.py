"""`connect` plays a game in a run: what the game hears, what it can report, and how its own errors end it."""

import gc
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Aggregation
from ludus.protocol.codec import encode_actions
from ludus.sdk import (
    ActionBatch,
    Actions,
    ActionSpec,
    BehaviorSpec,
    CloseCode,
    ObservationSpec,
    Outcome,
    ResetInfo,
    SessionRefused,
    Simulation,
    StepBuilder,
    connect,
)
from ludus.sdk.contract.kit import close_for_rejoin, reset_between, unreachable, wait_twice
from ludus.sdk.contract.scripted import RUN_ID, Peer, ScriptedServer, assign, finish_after, refuse
from ludus.sdk.errors import Failure, GameMistake
from ludus.sdk.join import MISTAKES, JoinClient, Target
from tests.toys.catch import Catch


def play(game: Catch, server: ScriptedServer) -> None:
    ending = connect(game, run="catch", server=server.address)
    assert server.violations == []
    assert ending.finished


def test_a_game_learns_its_seed_and_number_once_and_its_parameters_each_time() -> None:
    game = Catch()
    with ScriptedServer(reset_between) as server:
        play(game, server)

    assert game.starts == [
        ResetInfo(seed=45, parameters={"gravity": pytest.approx(9.81)}, number=3, run_id=RUN_ID, first=True),
        ResetInfo(seed=45, parameters={"gravity": pytest.approx(1.62)}, number=3, run_id=RUN_ID, first=False),
    ]


def test_the_gateway_is_that_of_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(finish_after(3)) as server:
        monkeypatch.setenv("LUDUS_SIMULATOR_SERVER", server.address)

        assert connect(Catch(), run="catch").finished


def test_a_game_begins_anew_after_a_reconnection() -> None:
    game = Catch()
    with ScriptedServer(close_for_rejoin, finish_after(3)) as server:
        play(game, server)

    assert [start.first for start in game.starts] == [True, False]


def test_an_ending_says_what_was_played() -> None:
    with ScriptedServer(finish_after(20)) as server:
        ending = connect(Catch(agents=2), run="catch", server=server.address, label="two paddles")

    assert ending.code is CloseCode.RUN_FINISHED
    assert ending.reason == "enough"
    assert ending.run_id == RUN_ID
    assert ending.sessions == 1
    assert ending.decisions >= 40
    assert ending.episodes >= 6  # each of the 2 agents ends an episode every 5 decisions
    assert server.joins[0].label == "two paddles"


def test_a_collector_that_died_is_no_reason_to_ask_for_relay() -> None:
    def join(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        return unreachable(server, request, context) if len(server.joins) == 2 else assign(server, request, context)

    with ScriptedServer(close_for_rejoin, finish_after(3), join=join) as server:
        play(Catch(), server)

    assert [join.relay for join in server.joins] == [False, False, False]


def test_a_simulator_that_was_placed_comes_back_to_the_same_run_whatever_is_called_so_by_then() -> None:
    with ScriptedServer(close_for_rejoin, finish_after(3)) as server:
        play(Catch(), server)

    assert [join.run for join in server.joins] == ["catch", RUN_ID]


@pytest.mark.parametrize(
    ("server", "variable", "more", "warned"),
    [
        ("gateway.lan:7070", "LUDUS_TOKEN", {}, True),
        ("192.168.1.5:7070", "LUDUS_TOKEN", {}, True),
        ("127.0.0.1:7070", "LUDUS_TOKEN", {}, False),
        ("[::1]:7070", "LUDUS_TOKEN", {}, False),
        ("localhost:7070", "LUDUS_TOKEN", {}, False),
        ("gateway.lan:7070", "LUDUS_TOKEN", {"ca_file": "ca.pem"}, False),
        ("gateway.lan:7070", "LUDUS_TOKEN", {"token": "given"}, False),
        ("gateway.lan:7070", "LUDUS_SIMULATOR_TOKEN", {}, False),
    ],
)
def test_a_clients_token_that_goes_to_another_machine_unencrypted_is_a_warning(
    server: str, variable: str, more: dict[str, Any], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LUDUS_SIMULATOR_TOKEN", raising=False)
    monkeypatch.delenv("LUDUS_TOKEN", raising=False)
    monkeypatch.setenv(variable, "secret")
    reported: list[tuple[int, str]] = []

    JoinClient(
        Target(server, "catch", **more), lambda level, sentence: reported.append((level, sentence)), "test"
    ).warn()

    assert [level for level, _ in reported] == [logging.WARNING] * warned
    assert all("LUDUS_TOKEN" in said and server in said and "secret" not in said for _, said in reported)


def test_a_server_that_makes_a_mistake_in_every_session_is_given_up() -> None:
    client = JoinClient(Target("localhost:7070", "catch"), lambda *_: None, "test")
    mistake = pb.Close(code=CloseCode.INTERNAL_ERROR, reason="the collector made a mistake", rejoin=True)

    def session(close: pb.Close) -> None:
        client.connected(directly=True)
        assert isinstance(client.interpret_close(close), Failure)

    for _ in range(MISTAKES - 1):
        session(mistake)
    session(pb.Close(code=CloseCode.RUN_MOVED, reason="another worker goes on", rejoin=True))  # this one was no mistake
    for _ in range(MISTAKES - 1):
        session(mistake)
    client.connected(directly=True)
    with pytest.raises(SessionRefused, match=r"made a mistake; gave up after 5 sessions in a row") as raised:
        client.interpret_close(mistake)
    assert raised.value.code == CloseCode.INTERNAL_ERROR


def test_patience_begins_when_the_connection_is_lost_and_not_before() -> None:
    def play_for_long(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome()
        for _ in range(6):
            time.sleep(0.2)  # allow: sleep, because play has to last longer than patience
            yield from peer.play(1)
        yield peer.close(CloseCode.COLLECTOR_CLOSING, "an upgrade")

    def join(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        if len(server.joins) == 2:
            refuse(context, grpc.StatusCode.UNAVAILABLE, "database_unavailable", "the database does not answer")
        return assign(server, request, context)

    with ScriptedServer(play_for_long, finish_after(3), join=join) as server:
        ending = connect(Catch(), run="catch", server=server.address, connect_timeout_seconds=0.9)

    assert ending.finished


class Reporting(Catch):
    """Reports a number and an outcome at each end."""

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        super().step(builder, actions)
        builder.report("Game/Ticks", 1, Aggregation.SUM)


def test_reports_reach_the_server() -> None:
    with ScriptedServer(finish_after(5)) as server:
        play(Reporting(), server)

    assert {(stat.key, stat.value, stat.aggregation) for stat in server.stats} == {("Game/Ticks", 1.0, Aggregation.SUM)}
    assert len(server.stats) >= 4


class Sleepy(Catch):
    """Lets time pass between an episode's end and the next one's beginning, with nobody waiting."""

    idle = 0

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        if len(actions):
            self.idle = 5
            for action in actions:
                builder.end_episode(action.agent, self.boards[action.agent], 1.0, outcome=Outcome.WIN)
        elif self.idle:
            self.idle -= 1
        else:
            for agent in range(self.agents):
                self._throw(builder, agent)


def test_a_game_goes_on_while_no_agent_waits() -> None:
    with ScriptedServer(finish_after(10)) as server:
        play(Sleepy(), server)


def test_a_close_is_heard_while_no_agent_waits() -> None:
    class Endless(Sleepy):
        def step(self, builder: StepBuilder, actions: Actions) -> None:
            if len(actions):
                super().step(builder, actions)

    with ScriptedServer(finish_after(1)) as server:
        play(Endless(), server)


class Faulty(Catch):
    def step(self, builder: StepBuilder, actions: Actions) -> None:
        builder.request_decision(0, self.boards[0])
        builder.request_decision(0, self.boards[0])


def test_a_mistake_of_the_game_ends_connect_with_its_own_error() -> None:
    game = Faulty()

    with ScriptedServer(finish_after(5)) as server, pytest.raises(ValueError, match="asked for an action twice"):
        connect(game, run="catch", server=server.address)

    assert game.closed == 1


class Masked(Catch):
    """Forbids moving left; masks are (2, 3)."""

    def __init__(self, agents: int) -> None:
        super().__init__(agents)
        self.moves: list[int] = []

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self.moves.append(int(action.discrete[0]))
        for agent in self.boards:
            builder.end_episode(agent, self.boards[agent])
            builder.request_decision(agent, self.boards[agent], mask=np.array([False, True, True]))


def test_masks_reach_the_server() -> None:
    game = Masked(agents=2)
    with ScriptedServer(finish_after(4)) as server:
        play(game, server)

    assert set(game.moves[:2]) == {0}
    assert set(game.moves[2:]) == {1}


def test_a_message_that_the_server_would_refuse_is_not_sent() -> None:
    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        welcome = peer.welcome()
        welcome.welcome.max_message_bytes = 100
        yield welcome
        yield from peer.play(1)

    with ScriptedServer(script) as server, pytest.raises(SessionRefused, match="fewer agents per process"):
        connect(Catch(agents=50), run="catch", server=server.address)


def test_a_message_too_large_for_grpcs_default_passes() -> None:
    """gRPC refuses 4 MB by default; a batch of images is soon larger."""

    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome({f"{number:01000}": 1.0 for number in range(5_000)})
        yield from peer.play(1)
        yield peer.close()

    with ScriptedServer(script) as server:
        play(Catch(), server)


PROGRAM = """
import sys
from ludus.sdk import connect
from tests.toys.catch import Catch
connect(Catch(), run="catch", server=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("configuration", "heard"), [("", True), ("import logging; logging.basicConfig(level=logging.ERROR)", False)]
)
def test_a_program_that_has_not_configured_logging_hears_that_it_waits(configuration: str, heard: bool) -> None:
    with ScriptedServer(finish_after(3), join=wait_twice) as server:
        done = subprocess.run(
            [sys.executable, "-c", configuration + PROGRAM, server.address],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    assert done.stderr.splitlines().count("waiting: the run is queued") == int(heard)
    assert not logging.getLogger("ludus.sdk").handlers


class Together(Simulation):
    """Two agents that must move at the same moment."""

    waits_for_all = True
    behaviors = (BehaviorSpec("Together", (ObservationSpec((1,)),), ActionSpec(0, (2,))),)

    def __init__(self) -> None:
        self.moves: list[list[int]] = []

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        self.moves.append(sorted(action.agent for action in actions))
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        for agent in (0, 1):
            builder.request_decision(agent, [0.0])


def answers_in_parts(peer: Peer) -> Iterator[pb.ConnectResponse]:
    peer.hello()
    yield peer.welcome()
    for _ in range(5):
        number, _batches = peer.step()
        for agent in (1, 0):
            peer.stop_waiting("Together", [agent])
            one = ActionBatch(
                "Together", np.array([agent], np.int32), np.zeros((1, 0), np.float32), np.zeros((1, 1), np.int32)
            )
            yield pb.ConnectResponse(actions=encode_actions(number, [one]))
    yield peer.close(CloseCode.RUN_FINISHED, "enough")


def test_a_game_in_which_all_move_at_once_is_stepped_with_all_answers() -> None:
    game = Together()
    with ScriptedServer(answers_in_parts) as server:
        play(game, server)  # type: ignore[arg-type]

    assert game.moves[:4] == [[0, 1]] * 4


def test_a_game_that_asks_for_agents_that_wait_is_told_what_to_set() -> None:
    game = Together()
    game.waits_for_all = False
    with ScriptedServer(answers_in_parts) as server, pytest.raises(GameMistake, match="set `waits_for_all = True`"):
        connect(game, run="together", server=server.address)

    (report,) = server.reports
    assert report.code == "bad_game"
    assert "(test_connection.py:" not in report.sentence, "no line of the game is at fault"


def test_a_crash_is_reported_before_the_stream_ends_and_raised() -> None:
    class Falling(Together):
        def step(self, builder: StepBuilder, actions: Actions) -> None:
            raise TimeoutError("level file missing")

    with ScriptedServer(answers_in_parts) as server, pytest.raises(TimeoutError, match="level file missing"):
        connect(Falling(), run="together", server=server.address)

    (report,) = server.reports
    assert report.code == "game_crashed"
    assert report.sentence.startswith("the game crashed: TimeoutError: level file missing (test_connection.py:")


def test_a_game_that_crashes_while_no_agent_waits_leaves_no_read_that_complains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Crashing(Catch):
        def reset(self, builder: StepBuilder, info: ResetInfo) -> None:
            """Let no agent wait: the server's next message is read ahead."""

        def step(self, builder: StepBuilder, actions: Actions) -> None:
            raise RuntimeError("the level has no floor")

    with ScriptedServer(finish_after(1)) as server, pytest.raises(RuntimeError, match="no floor"):
        connect(Crashing(), run="catch", server=server.address)
    gc.collect()

    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
