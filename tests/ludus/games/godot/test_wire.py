"""The wire of Godot RL Agents, byte for byte: what was recorded from real games, and what must not end a bridge."""

import json
import math
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ludus.games.godot.wire import MAX_MESSAGE_BYTES, QUIT, GameConnection, decode, encode, entries
from ludus.sdk.errors import GameLost
from tests.ludus.games.godot.peer import frame

RECORDED = [
    (
        {"type": "handshake", "major_version": "0", "minor_version": "7"},
        b'A\x00\x00\x00{"type": "handshake", "major_version": "0", "minor_version": "7"}',
    ),
    ({"type": "env_info"}, b'\x14\x00\x00\x00{"type": "env_info"}'),
    ({"type": "reset"}, b'\x11\x00\x00\x00{"type": "reset"}'),
    (
        {"type": "action", "action": [{"move": [0.5], "jump": 2}, {"move": [-1.0], "jump": 0}]},
        b'W\x00\x00\x00{"type": "action", "action": [{"move": [0.5], "jump": 2}, {"move": [-1.0], "jump": 0}]}',
    ),
    ({"type": "call", "method": "get_done"}, b'&\x00\x00\x00{"type": "call", "method": "get_done"}'),
    ({"type": "close"}, b'\x11\x00\x00\x00{"type": "close"}'),
]


@pytest.fixture
def game() -> Iterator[tuple[GameConnection, socket.socket]]:
    """A connection, and the game's end of it."""
    ours, theirs = (end for end in _pair())
    with ours, theirs:
        yield GameConnection(ours, 0.2), theirs


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        return listener.accept()[0], dialled


@pytest.mark.parametrize(("message", "sent"), RECORDED, ids=[str(message["type"]) for message, _ in RECORDED])
def test_messages_are_those_of_the_plug_in_s_own_trainer(message: dict[str, object], sent: bytes) -> None:
    assert encode(message) == sent


def test_text_beyond_ascii_is_sent_in_ascii_because_godot_counts_bytes_as_characters() -> None:
    assert encode({"type": "call", "method": "größe"})[4:].isascii()


@pytest.mark.parametrize(
    ("contents", "read"),
    [
        (b'{"type":"step","obs":[{"obs":[0.033333,1,0.5,12,0.333333]}],"reward":[2,-4],"done":[false,false]}', None),
        (b'{"name": "\xfc"}', {"name": "ü"}),
        ('{"name": "ü"}'.encode(), {"name": "ü"}),
        (b'{"a": "nan, inf", "b": 1}', {"a": "nan, inf", "b": 1}),
        (b'{"a": -inf, "b": inf, "c": "x: -inf"}', {"a": -math.inf, "b": math.inf, "c": "x: -inf"}),
        (b'{"text": "two\nlines"}', {"text": "two\nlines"}),
    ],
)
def test_what_godot_writes_is_read(contents: bytes, read: object) -> None:
    assert decode(contents) == (json.loads(contents) if read is None else read)


def test_a_number_that_is_none_is_read_beside_the_others() -> None:
    assert math.isnan(decode(b'{"obs": [{"obs": [0.5,nan,1]}]}')["obs"][0]["obs"][1])


@pytest.mark.parametrize(
    ("contents", "code", "says"),
    [
        (b"hello", "no_json", "'hello'|hello"),
        (b"", "no_json", "no JSON"),
        (b"[" * 100_000, "no_json", "no JSON"),
        (b"null", QUIT, "ended"),
        (b"[1, 2]", "no_message", r"\[1, 2\]"),
        (b'"step"', "no_message", "no message"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no_json", "no JSON"),
    ],
    ids=["text", "nothing", "nested", "null", "list", "string", "digits"],
)
def test_what_is_no_message_is_named(contents: bytes, code: str, says: str) -> None:
    with pytest.raises(GameLost, match=says) as lost:
        decode(contents)
    assert lost.value.code == code


@given(st.binary(max_size=200) | st.text('{}[]":,nainf0123456789.-e\\\n', max_size=60).map(str.encode))
@example(b'{"\\')
@example(b'{"a": "unclosed nan')
def test_any_bytes_are_a_message_or_a_lost_game(contents: bytes) -> None:
    with suppress(GameLost):
        assert isinstance(decode(contents), dict)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.floats(), max_size=3),
        max_size=4,
    )
)
def test_a_message_that_was_sent_is_read_as_it_was(message: dict[str, object]) -> None:
    assert repr(decode(encode(message)[4:])) == repr(message)  # NaN is not equal to itself


def test_an_answer_may_come_in_pieces(game: tuple[GameConnection, socket.socket]) -> None:
    connection, peer = game
    for byte in frame(b'{"type": "env_info"}'):
        peer.sendall(bytes([byte]))

    assert connection.ask({"type": "env_info"}) == {"type": "env_info"}
    assert peer.recv(100) == b'\x14\x00\x00\x00{"type": "env_info"}'


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", QUIT),
        (b"\x05\x00", QUIT),
        (b"\x05\x00\x00\x00he", QUIT),
        (struct.pack("<I", MAX_MESSAGE_BYTES + 1), "no_message"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no_message"),
        (frame(b'{"type": "reset"}'), "no_message"),
        (frame(b'{"obs": []}'), "no_message"),
        (frame(b"null"), QUIT),
    ],
    ids=["nothing", "length", "cut", "long", "http", "other", "typeless", "null"],
)
def test_a_game_that_ends_or_talks_nonsense_is_lost(
    game: tuple[GameConnection, socket.socket], sent: bytes, code: str
) -> None:
    connection, peer = game
    peer.sendall(sent)
    peer.shutdown(socket.SHUT_WR)

    with pytest.raises(GameLost) as lost:
        connection.ask({"type": "env_info"})
    assert lost.value.code == code


@pytest.mark.parametrize("sent", [b"", b"\x14\x00", frame(b'{"type": "step"}')[:-1]])
def test_a_game_that_hangs_is_lost_after_the_time_out(game: tuple[GameConnection, socket.socket], sent: bytes) -> None:
    connection, peer = game
    peer.sendall(sent)

    with pytest.raises(GameLost, match=r"has not answered 'action' for 0.2 s: it hangs") as lost:
        connection.ask({"type": "action"}, "step")
    assert lost.value.code == "stopped_answering"


def test_a_game_that_does_not_read_is_lost_after_the_time_out(game: tuple[GameConnection, socket.socket]) -> None:
    connection, _ = game

    def send_much() -> None:
        for _ in range(100):
            connection.send({"type": "action", "action": ["x" * 1_000_000]})

    with pytest.raises(GameLost, match="has not answered 'action'"):
        send_much()


def test_a_game_that_has_gone_is_lost(game: tuple[GameConnection, socket.socket]) -> None:
    connection, peer = game
    peer.close()

    def send_often() -> None:
        for _ in range(100):
            connection.send({"type": "reset"})

    with pytest.raises(GameLost) as lost:
        send_often()
    assert lost.value.code == QUIT


@pytest.mark.parametrize("value", [None, 3, "ab", [], [1], [1, 2, 3], {"0": 1, "1": 2}])
def test_a_field_needs_an_entry_for_each_agent(value: object) -> None:
    with pytest.raises(GameLost, match=r"'reward' is .* needs one entry for each of 2 agents"):
        entries({"reward": value}, "reward", 2)
