"""A game behind a bridge is served by the run, and lives through whatever happens to it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ludus.games import diagnostics
from ludus.games.builds import GivenUp
from ludus.games.settings import GameSettings
from ludus.games.unity.bridge import BridgeSession
from ludus.games.unity.messages import GOODBYE
from ludus.protocol.codes import CloseCode
from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.protocol.options import GAME_RECEIVES_BYTES
from ludus.protocol.side_channels import EngineConfiguration, EngineOverrides, engine_configuration, join
from ludus.sdk.errors import CannotConnect
from ludus.sdk.join import Target
from tests.ludus.games.conftest import LUDUS_LOGGER, EditorWorld, Playing
from tests.ludus.games.unity.fakes import (
    BALL,
    FRAMES,
    RUN_ID,
    SECONDS,
    WALL,
    FakeRun,
    Game,
    Session,
    SessionEnds,
    introduction,
    make_message,
)
from tests.ports import free_port
from tests.waiting import eventually


def test_bytes_pass_unchanged_in_both_directions(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    for _ in range(5):
        game.step(BALL, WALL)

    (session,) = editor.run.sessions
    assert session.messages == game.sent
    assert session.replies == game.heard


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_game_dials_by_whichever_name_this_machine_has(editor: EditorWorld, host: str) -> None:
    assert editor.press_play(host).introduce().unity_input.rl_initialization_input.seed == 45


def test_messages_far_above_4_mb_pass(editor: EditorWorld) -> None:
    game = editor.press_play().begin()

    assert game.step(BALL, agents=1, floats=3_000_000).header.status == 200
    assert len(game.sent[-1]) > 12_000_000


def test_the_second_call_is_held_until_the_run_is_ready(editor: EditorWorld) -> None:
    editor.run.ready.clear()
    game = editor.press_play()
    game.introduce()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(game.get_ready)
        eventually(lambda: editor.run.sessions[0].calls == 2)
        assert not held.done()

        editor.run.ready.set()

        assert held.result(5).unity_input.rl_input.side_channel == FRAMES


class Gate:
    """A step that is held in the collector."""

    def __init__(self, at: int) -> None:
        self.held = threading.Event()
        self.opened = threading.Event()
        self._at = at

    def __call__(self, session: Session, _message: pb.UnityMessageProto) -> None:
        if session.calls == self._at and session.collector == 1:
            self.held.set()
            self.opened.wait(10)


@contextmanager
def held_step(editor: EditorWorld, steps: int = 0) -> Iterator[tuple[Game, Gate, "Future[pb.UnityMessageProto]"]]:
    """Play so many steps; the next one is held in the collector."""
    editor.run.on_step = gate = Gate(at=3 + steps)
    game = editor.press_play().begin()
    for _ in range(steps):
        game.step()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(game.step)
        gate.held.wait(10)
        yield game, gate, pending


def test_the_pending_call_is_held_over_the_death_of_the_collector_and_answered_with_a_reset(
    editor: EditorWorld,
) -> None:
    with held_step(editor, steps=2) as (game, gate, pending):
        editor.run.kill_collector()
        eventually(lambda: editor.run.waits >= 2)
        assert not pending.done()

        editor.run.start_collector()
        reply = pending.result(10)
        gate.opened.set()

    assert reply.header.status == 200
    assert reply.unity_input.rl_input.command == pb.RESET
    assert reply.unity_input.rl_input.side_channel == FRAMES
    first, second = editor.run.sessions
    assert second.session_id == first.session_id
    assert second.messages[:2] == first.messages[:2] == game.sent[:2]
    assert len(game.step().unity_input.rl_input.agent_actions[BALL].value) == 2


def test_behaviors_are_announced_again_as_soon_as_they_have_agents(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    game.step(BALL, WALL)
    editor.run.restart_collector()

    assert game.step(BALL).unity_input.rl_input.command == pb.RESET
    for behavior in (BALL, BALL, WALL):
        game.step(behavior)
    game.step(BALL, WALL)

    second = editor.run.sessions[1]
    assert second.known == [BALL, WALL]
    # Only the two messages with something to announce were touched.
    assert [sent == seen for sent, seen in zip(game.sent[-4:], second.messages[2:], strict=True)] == [
        False,
        True,
        False,
        True,
    ]


def test_a_behavior_that_is_new_after_a_reset_is_announced_once(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    game.step(BALL)
    editor.run.restart_collector()

    game.step(BALL)
    game.step(BALL, WALL)

    assert editor.run.sessions[1].known == [WALL, BALL] or editor.run.sessions[1].known == [BALL, WALL]


def test_an_announcement_that_died_with_the_collector_is_made_again(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    game.step(BALL)
    editor.run.restart_collector()

    assert game.step(BALL, WALL).unity_input.rl_input.command == pb.RESET
    game.step(BALL, WALL)

    assert sorted(editor.run.sessions[1].known) == [BALL, WALL]


def test_a_pause_is_waited_through(editor: EditorWorld) -> None:
    def pause_at_5(session: Session, _message: pb.UnityMessageProto) -> None:
        if session.calls == 5 and len(editor.run.sessions) == 1:
            editor.run.paused = "the run is paused"
            raise SessionEnds(CloseCode.RUN_PAUSED)

    editor.run.on_step = pause_at_5
    game = editor.press_play().begin()
    for _ in range(2):
        game.step()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(game.step)
        eventually(lambda: editor.run.waits >= 3)
        assert not pending.done()

        editor.run.paused = ""

        assert pending.result(10).unity_input.rl_input.command == pb.RESET


@pytest.mark.parametrize("call", [1, 2])
def test_a_call_of_the_handshake_is_simply_made_again(editor: EditorWorld, call: int) -> None:
    game = editor.press_play()
    if call == 1:
        editor.run.kill_collector()
    else:
        game.introduce()
        editor.run.kill_collector()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(game.introduce if call == 1 else game.get_ready)
        eventually(lambda: editor.run.waits >= 1)
        editor.run.start_collector()
        reply = pending.result(10)

    assert reply.HasField("unity_input")
    assert editor.run.sessions[-1].messages == game.sent


def test_the_end_of_the_run_is_a_goodbye_and_the_bridges_end(editor: EditorWorld) -> None:
    def finish(session: Session, _message: pb.UnityMessageProto) -> None:
        if session.calls == 6:
            raise SessionEnds(CloseCode.RUN_FINISHED, "the run has ended")

    editor.run.on_step = finish
    *_, last = editor.press_play().begin().play()

    assert last == pb.UnityMessageProto.FromString(GOODBYE)
    end = editor.playing.result()
    assert (end.code, end.reason, end.run_id) == (CloseCode.RUN_FINISHED, "the run has ended", RUN_ID)


def test_play_stop_play_are_two_lives_of_the_game(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    for play in range(3):
        game = editor.press_play().begin()
        game.step()
        game.quit()
        eventually(lambda: caplog.text.count("Play was stopped; waiting for the next one") == play + 1)  # noqa: B023  now

    assert all(session.closed_by_game for session in editor.run.sessions)
    assert len({session.session_id for session in editor.run.sessions}) == 3
    # The first life plays under the session id that had asked whether there is such a run.
    assert editor.run.joins[0].session_id == editor.run.sessions[0].session_id


def test_a_game_that_vanishes_in_a_call_leaves_its_collector(editor: EditorWorld) -> None:
    with held_step(editor) as (game, gate, pending):
        game.vanish()
        assert pending.exception(10) is not None
    gate.opened.set()

    other = editor.press_play().begin()

    assert other.step().header.status == 200
    assert len({session.session_id for session in editor.run.sessions}) == 2


@pytest.mark.parametrize("arrives", [True, False], ids=["replied", "not-sent"])
def test_a_collector_that_hears_nothing_of_a_broken_call_hears_the_goodbye(run: FakeRun, arrives: bool) -> None:
    run.on_step = gate = Gate(at=3)

    async def play() -> None:
        session = BridgeSession(Target(run.address, "balls"), lambda *_: None, lambda *_: None)
        for message in (introduction(), make_message()):
            await session.answer(message.SerializeToString())
        step = make_message(pb.UnityOutputProto()).SerializeToString()
        call = asyncio.ensure_future(session.answer(step))
        await asyncio.sleep(0)  # the call has been begun, and nothing of it sent
        if arrives:
            assert await asyncio.to_thread(gate.held.wait, SECONDS)
            gate.opened.set()
            eventually(
                lambda: len(run.sessions[0].replies) == 3
            )  # this event loop stands still: it has not got the reply
        call.cancel()
        await asyncio.wait({call})
        await session.leave()

    asyncio.run(play())

    assert run.sessions[0].calls == (4 if arrives else 3), "the last one is the goodbye"
    assert run.sessions[0].closed_by_game


def test_a_game_that_comes_without_having_said_goodbye_begins_a_new_life(editor: EditorWorld) -> None:
    first = editor.press_play().begin()
    first.step()

    second = editor.press_play().begin()

    assert second.step().header.status == 200
    eventually(lambda: editor.run.sessions[0].closed_by_game)
    # What is left of the first game must not speak in the second one's conversation.
    assert first.step().header.status == 400


def test_a_second_game_on_the_port_is_sent_away(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    with held_step(editor) as (_, gate, pending):
        assert editor.press_play().introduce().header.status == 400

        gate.opened.set()
        assert pending.result(10).header.status == 200
    assert diagnostics.failure("foreign_game", port=editor.port).sentence in caplog.text
    eventually(lambda: run_reporter(editor) == ["foreign_game"])


def run_reporter(editor: EditorWorld) -> list[str]:
    """Return the codes of what the run was told; that its sentences are those of the log is checked by the fixture."""
    return [word.code for word in editor.run.run_reporter]


def test_a_game_in_the_middle_of_nothing_is_sent_away(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    assert editor.press_play().step().header.status == 400
    assert diagnostics.failure("stray_call", port=editor.port).sentence in caplog.text
    eventually(lambda: run_reporter(editor) == ["stray_call"])


@pytest.mark.parametrize(
    "editor", [{"engine": EngineOverrides(width=640, time_scale=1.0)}], indirect=True, ids=["typed"]
)
def test_engine_settings_that_were_typed_win_over_the_runs(editor: EditorWorld) -> None:
    given = engine_configuration(EngineConfiguration(width=100, height=200))
    editor.run.side_channel = join(given)
    typed = engine_configuration(EngineConfiguration(width=640, height=200, time_scale=1.0))

    reply = editor.press_play()
    reply.introduce()

    assert reply.get_ready().unity_input.rl_input.side_channel == join([*given, typed[0], typed[2]])
    assert reply.step().unity_input.rl_input.side_channel == b""


def test_a_message_that_the_server_does_not_take_ends_the_game_with_advice(
    editor: EditorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    editor.run.max_message_bytes = 100_000
    editor.run.restart_collector()
    game = editor.press_play().begin()

    assert game.step(floats=100_000).header.status == 400

    eventually(lambda: "put fewer agents into one build" in caplog.text)
    assert "waiting for the next Play" in caplog.text
    eventually(lambda: run_reporter(editor) == ["message_too_large"])
    assert editor.run.run_reporter[0].session_id == editor.run.sessions[0].session_id


def test_a_reply_that_unity_cannot_take_is_announced(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    editor.run.side_channel = bytes(GAME_RECEIVES_BYTES)
    game = editor.press_play().begin()
    editor.run.restart_collector()

    game.step()

    assert game.resets == 2
    assert caplog.text.count("Unity's client takes") == 1
    eventually(lambda: run_reporter(editor) == ["reply_too_large"])


def test_data_that_the_server_refuses_end_the_life_and_not_the_bridge(
    editor: EditorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(session: Session, _message: pb.UnityMessageProto) -> None:
        if len(editor.run.sessions) == 1:
            raise SessionEnds(CloseCode.NOT_FINITE, "observation 0 holds NaN")

    editor.run.on_step = refuse
    assert editor.press_play().begin().step().header.status == 400
    eventually(lambda: "waiting for the next Play" in caplog.text)

    assert editor.press_play().begin().step().header.status == 200
    assert "observation 0 holds NaN (not_finite)" in caplog.text
    assert run_reporter(editor) == []  # the server knows it best


@pytest.mark.parametrize("editor", [{"timeout_wait_seconds": 0.3}], indirect=True, ids=["impatient"])
def test_who_forgets_to_press_play_is_reminded_once(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    eventually(lambda: "press Play; if that was done" in caplog.text)
    assert editor.press_play().begin().step().header.status == 200
    assert caplog.text.count("press Play; if that was done") == 1
    assert run_reporter(editor) == ["no_editor_plays"]
    assert editor.run.run_reporter[0].session_id == editor.run.sessions[0].session_id


@pytest.mark.parametrize("editor", [{"timeout_wait_seconds": 0.3}], indirect=True, ids=["impatient"])
def test_a_game_that_refuses_the_handshake_is_diagnosed(editor: EditorWorld, caplog: pytest.LogCaptureFixture) -> None:
    editor.press_play().introduce()

    eventually(lambda: diagnostics.failure("second_call_missing", seconds=0.3).sentence in caplog.text)
    eventually(lambda: run_reporter(editor) == ["second_call_missing"])


@pytest.mark.parametrize("editor", [{"timeout_wait_seconds": 0.3}], indirect=True, ids=["impatient"])
def test_a_paused_editor_is_not_ended(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    game.step()

    threading.Event().wait(1)

    assert game.step().header.status == 200
    assert len(editor.run.sessions) == 1


def test_a_collector_hears_that_an_editor_may_be_paused(editor: EditorWorld) -> None:
    game = editor.press_play().begin()
    editor.run.restart_collector()
    game.step()

    assert [session.parks for session in editor.run.sessions] == [True, True]


def test_an_interrupt_answers_the_pending_call_with_a_goodbye(editor: EditorWorld) -> None:
    with held_step(editor) as (_, gate, pending):
        editor.playing.interrupt()

        assert pending.result(10).header.status == 400
    gate.opened.set()
    editor.playing.result()


def test_a_game_that_comes_after_the_runs_end_ends_the_bridge(editor: EditorWorld) -> None:
    editor.press_play().begin().quit()
    editor.run.ended = "CANCELLED"

    assert editor.press_play().introduce().header.status == 400
    assert editor.playing.result().code is CloseCode.RUN_CANCELLED


def test_a_run_that_takes_no_words_is_played_all_the_same(editor: EditorWorld) -> None:
    editor.run.takes_words = False

    assert editor.press_play().step().header.status == 400  # a stray call
    eventually(lambda: editor.run.unheard == 1)

    assert editor.press_play().begin().step().header.status == 200


def test_a_token_that_is_refused_is_no_reason_to_try_again(editor: EditorWorld) -> None:
    editor.press_play().begin().quit()
    editor.run.token = "another"

    assert editor.press_play().introduce().header.status == 400
    with pytest.raises(CannotConnect, match="wants a token"):
        editor.playing.result()


def test_what_is_wrong_with_the_run_is_said_before_any_game_is_started(run: FakeRun) -> None:
    run.ended = "FAILED"

    with Playing(GameSettings(Target(run.address, "balls"), editor_port=free_port())) as playing:
        assert playing.result().code is CloseCode.RUN_FAILED


def test_an_editors_port_that_is_taken_is_an_error(run: FakeRun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = GameSettings(Target(run.address, "balls"), editor_port=other.getsockname()[1])
        with Playing(settings) as playing, pytest.raises(GivenUp, match="--editor-port") as error:
            playing.result()

    assert [(word.code, word.sentence) for word in run.run_reporter] == [("editor_port_taken", str(error.value))]


@pytest.mark.long
def test_patience_begins_when_the_gateway_is_lost_and_not_before(
    run: FakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", LUDUS_LOGGER)
    port = free_port()
    settings = GameSettings(Target(run.address, "balls", connect_timeout_seconds=1.0), editor_port=port)
    with Playing(settings) as playing:
        eventually(lambda: "press Play" in caplog.text)
        game = Game(port).begin()
        for _ in range(8):  # no need for the gateway
            time.sleep(0.2)  # allow: sleep, because play has to last longer than patience
            game.step()
        run.kill_collector()
        run.stop_gateway()

        started = time.monotonic()
        assert game.step().header.status == 400

        assert time.monotonic() - started >= 1.0
        with pytest.raises(CannotConnect, match="nothing listens"):
            playing.result()
