"""Code beside a game hears and speaks on the side channels that are not the run's, and on no others."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ludus.games import diagnostics
from ludus.games.builds import GivenUp
from ludus.games.settings import GameSettings
from ludus.games.unity import hook
from ludus.games.unity.messages import outline
from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.protocol.side_channels import (
    STATS,
    TRAINING_ANALYTICS,
    EngineConfiguration,
    Frame,
    engine_configuration,
    float_property,
    join,
    read,
)
from ludus.sdk.errors import Failure
from ludus.sdk.join import Target
from tests.ludus.games.conftest import LUDUS_LOGGER, EditorWorld, Playing
from tests.ludus.games.unity.fakes import FakeRun
from tests.ports import free_port
from tests.unity.descriptions import Behavior
from tests.unity.player import Player, Summary
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[4]
CHAT = UUID("621f0a70-4f87-11ea-a6bf-784f4387d1f7")
STEPS = 20


class Chat:
    """Keeps what it hears, and says each of its lines once."""

    def __init__(self, *lines: Frame) -> None:
        self.heard: list[tuple[int, Frame]] = []
        self.lines = list(lines)
        self.asked = 0

    def received(self, worker: int, frame: Frame) -> None:
        self.heard.append((worker, frame))

    def pending(self, worker: int) -> Sequence[Frame]:
        self.asked += 1
        lines, self.lines = self.lines, []
        return lines


class Clumsy(Chat):
    """Makes a mistake in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def received(self, worker: int, frame: Frame) -> None:
        if self._method == "received":
            raise KeyError("no such line")

    def pending(self, worker: int) -> Sequence[Frame]:
        if self._method == "pending":
            raise KeyError("no such line")
        return [Frame(STATS, b"")] if self._method == "stats" else []


@pytest.fixture
def chat(request: pytest.FixtureRequest) -> Chat:
    chat: Chat = getattr(request, "param", Chat())
    return chat


@pytest.fixture
def world(run: FakeRun, chat: Chat, caplog: pytest.LogCaptureFixture) -> Iterator[EditorWorld]:
    """Return a bridge in Editor mode that has the hook."""
    caplog.set_level("INFO", LUDUS_LOGGER)
    run.side_channel = join(engine_configuration(EngineConfiguration(width=640)))
    port = free_port()
    with Playing(GameSettings(Target(run.address, "balls"), editor_port=port, side_channels=chat)) as playing:
        world = EditorWorld(run, playing, port)
        eventually(lambda: "press Play in the Editor" in caplog.text)
        yield world
        world.close()


def play(world: EditorWorld, **player: Any) -> Summary:
    return Player(world.port, [Behavior(name="Jumper?team=0", continuous=2)], raw=[CHAT], **player).play(STEPS)


def test_a_game_and_its_hook_talk_past_the_run(world: EditorWorld, chat: Chat) -> None:
    chat.lines = [Frame(CHAT, b"hello"), float_property("gravity", 9.5), Frame(CHAT, b"\x00\xff")]

    summary = play(world)

    assert summary.ending == "left"
    assert summary.raw == [(str(CHAT), b"hello".hex()), (str(CHAT), "00ff")]
    assert summary.floats == {"gravity": 9.5}
    assert chat.heard == [(0, Frame(CHAT, b"echo:hello")), (0, Frame(CHAT, b"echo:\x00\xff"))]
    # What the run says by side channels arrives all the same.
    assert summary.engine["width"] == 640


def test_the_runs_own_channels_are_none_of_the_hooks_business(world: EditorWorld, chat: Chat) -> None:
    summary = play(world, stats=True)

    assert summary.ending == "left"
    assert b"Player/Average" in world.run.sessions[0].messages[3]
    assert chat.heard == []


def test_float_properties_of_a_game_are_heard(world: EditorWorld, chat: Chat) -> None:
    player = Player(world.port, [Behavior(name="Jumper?team=0", continuous=2)])
    player.side.say_float("height", 2.5)
    player.play(STEPS)

    ((worker, frame),) = chat.heard
    assert (worker, read(join([frame])).float_properties) == (0, {"height": 2.5})


def test_a_hook_that_says_nothing_leaves_every_byte_alone(world: EditorWorld, chat: Chat) -> None:
    game = world.press_play().begin()
    for _ in range(3):
        game.step()

    (session,) = world.run.sessions
    assert session.messages == game.sent
    assert session.replies == game.heard
    assert chat.asked == 4  # not for the first reply, in which no game looks


def test_a_frame_is_heard_once_though_its_call_is_made_again(world: EditorWorld, chat: Chat) -> None:
    game = world.press_play().begin()
    game.step()
    world.run.restart_collector()
    message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    message.unity_output.rl_output.side_channel = join([Frame(CHAT, b"once")])
    chat.lines = [Frame(CHAT, b"me too")]

    reply = game.exchange(message)

    assert reply.unity_input.rl_input.command == pb.RESET
    assert reply.unity_input.rl_input.side_channel.endswith(join([Frame(CHAT, b"me too")]))
    assert chat.heard == [(0, Frame(CHAT, b"once"))]


def test_bytes_that_are_no_frames_are_left_to_the_collector(world: EditorWorld, chat: Chat) -> None:
    game = world.press_play().begin()
    message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    message.unity_output.rl_output.side_channel = join([Frame(CHAT, b"cut off")])[:-1]

    assert game.exchange(message).header.status == 200

    assert world.run.sessions[0].messages[-1] == game.sent[-1]
    assert chat.heard == []


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        (Clumsy("received"), diagnostics.failure("hook_failed", method="received", error="KeyError: 'no such line'")),
        (Clumsy("pending"), diagnostics.failure("hook_failed", method="pending", error="KeyError: 'no such line'")),
        (Clumsy("stats"), diagnostics.failure("channel_of_the_run", channel=STATS)),
    ],
    indirect=["chat"],
    ids=["received", "pending", "stats"],
)
def test_what_a_hook_does_wrong_ends_the_game_and_is_said(
    world: EditorWorld, problem: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(world.port, [Behavior(name="Jumper?team=0", continuous=2)])
    player.side.say_float("height", 2.5)

    assert player.play(STEPS).ending in {"ended", "inference"}

    eventually(lambda: "waiting for the next Play" in caplog.text)
    assert problem.sentence in caplog.text
    eventually(lambda: [word.code for word in world.run.run_reporter] == [problem.code])
    eventually(lambda: world.run.sessions[0].closed_by_game)


@pytest.mark.long
def test_each_build_has_its_number_and_a_broken_hook_is_no_reason_to_start_it_again(
    run: FakeRun, tmp_path: Path
) -> None:
    env = tmp_path / "Player"
    env.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.unity.player "$@"\n')
    env.chmod(0o755)
    run.side_channel = b""

    class Numbers(Chat):
        def received(self, worker: int, frame: Frame) -> None:
            super().received(worker, frame)
            if {number for number, _ in self.heard} == {0, 1}:
                raise RuntimeError("enough")

        def pending(self, worker: int) -> Sequence[Frame]:
            return [Frame(CHAT, b"%d" % worker)]

    numbers = Numbers()
    settings = GameSettings(
        Target(run.address, "balls"),
        env=env,
        num_envs=2,
        env_args=("--behaviors", json.dumps([asdict(Behavior(name="J?team=0", continuous=2))]), "--raw", str(CHAT)),
        base_port=free_port(2),
        side_channels=numbers,
    )

    with Playing(settings) as playing, pytest.raises(GivenUp, match="RuntimeError: enough"):
        playing.result()

    assert {(worker, frame.payload) for worker, frame in numbers.heard} == {(0, b"echo:0"), (1, b"echo:1")}
    assert len(run.sessions) == 2


def test_the_hook_of_the_guide_works(run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, rest = (ROOT / "docs" / "unity.md").read_text().partition("```python\n")
    guide: dict[str, Any] = {"__name__": "guide"}
    exec(rest.partition("```")[0], guide)
    run.side_channel = b""
    port = free_port()
    with Playing(GameSettings(Target(run.address, "balls"), editor_port=port, side_channels=guide["Chat"]())):
        behavior = Behavior(name="Jumper?team=0", continuous=2)
        summary = Player(port, [behavior], raw=[guide["CHAT"]]).play(STEPS)

    assert summary.raw[0] == (str(CHAT), b"hello".hex())
    assert summary.floats["gravity"] == pytest.approx(9.81)
    assert f"game 0 says b'echo:hello' on {CHAT}" in capsys.readouterr().out


def test_training_analytics_are_the_runs() -> None:
    chat = Chat()
    tap = hook.SideChannelTap(chat, 3)
    message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    message.unity_output.rl_output.side_channel = join([Frame(TRAINING_ANALYTICS, b"x"), Frame(CHAT, b"y")])
    said = message.SerializeToString()

    tap.receive(outline(said))

    assert chat.heard == [(3, Frame(CHAT, b"y"))]
