"""The wire of Godot RL Agents: JSON messages over one TCP connection, each behind its length (4 bytes, little-endian).

The trainer listens and speaks first; the game answers each message but `handshake` and `close`. What games send is
taken as leniently as it can be understood: Godot writes `nan` and `inf`, which are no JSON, and text as Latin-1.
"""

import json
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ludus.sdk.errors import GameLost

MAX_MESSAGE_BYTES: Final = 1 << 28
"""The longest message of a game that is read: pictures of many agents stay far below it."""
QUIT: Final = "game_quit"
"""Code of a connection that the game has ended."""
_LENGTH: Final = struct.Struct("<I")
_LOOSE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf)\b', re.IGNORECASE)
"""A text in quotes, which stays as it is, or a number that Godot writes in its own way."""
_SHOWN: Final = 80


def encode(message: Mapping[str, object]) -> bytes:
    """Return the bytes of a message: ASCII, since Godot counts bytes as characters."""
    contents = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(contents)) + contents


def decode(contents: bytes) -> dict[str, Any]:
    """Return the object behind a length. NaN and infinities are read as floats. Raises GameLost for anything else."""
    try:
        text = contents.decode()
    except UnicodeDecodeError:
        text = contents.decode("latin-1")
    try:
        try:
            message = json.loads(text, strict=False)
        except json.JSONDecodeError:
            message = json.loads(_LOOSE.sub(_strict, text), strict=False)
    except (ValueError, RecursionError) as error:
        raise GameLost("no_json", f"the game sent what is no JSON ({error}): {_shown(text)}") from None
    if message is None:  # what a game writes while it quits
        raise GameLost(QUIT, "the game has ended its connection")
    if not isinstance(message, dict):
        raise GameLost(
            "no_message", f"the game sent {_shown(text)}, which is no message: those are objects with a type"
        )
    return message


def entries(message: Mapping[str, Any], field: str, count: int) -> Sequence[Any]:
    """Return a field that has an entry for each agent. Raises GameLost for any other."""
    values = message.get(field)
    if not isinstance(values, list) or len(values) != count:
        told = f"a list of {len(values)}" if isinstance(values, list) else _shown(repr(values))
        raise GameLost("no_message", f"the game's {field!r} is {told}; it needs one entry for each of {count} agents")
    return values


class GameConnection:
    """The connection of one game."""

    def __init__(self, peer: socket.socket, timeout_seconds: float | None) -> None:
        """`timeout_seconds` is the time-out of each answer. None: a person may have stopped the game."""
        self._peer = peer
        self._timeout_seconds = timeout_seconds
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. Raises GameLost."""
        self._peer.settimeout(self._timeout_seconds)
        try:
            self._peer.sendall(encode(message))
        except TimeoutError:
            raise self._silent(str(message["type"])) from None
        except OSError as error:
            raise GameLost(QUIT, f"the game has ended its connection ({error})") from None

    def ask(self, message: Mapping[str, object], answer: str = "") -> dict[str, Any]:
        """Send a message and return the answer, of the same type unless `answer` names another. Raises GameLost."""
        self.send(message)
        asked = str(message["type"])
        deadline = None if self._timeout_seconds is None else time.monotonic() + self._timeout_seconds
        size = _LENGTH.unpack(self._read(_LENGTH.size, asked, deadline))[0]
        if size > MAX_MESSAGE_BYTES:
            problem = f"announced a message of {size} bytes, more than {MAX_MESSAGE_BYTES}"
            raise GameLost("no_message", f"the game {problem}: what dialled is no game of Godot RL Agents, it seems")
        received = decode(self._read(size, asked, deadline))
        if received.get("type") != (answer or asked):
            problem = f"a message of type {_shown(repr(received.get('type')))}"
            raise GameLost("no_message", f"the game answered {asked!r} with {problem}")
        return received

    def close(self) -> None:
        """End the connection; the game quits."""
        self._peer.close()

    def _read(self, size: int, asked: str, deadline: float | None) -> bytes:
        contents = bytearray(size)
        view, filled = memoryview(contents), 0
        while filled < size:
            try:
                self._peer.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
                received = self._peer.recv_into(view[filled:])
            except TimeoutError:
                raise self._silent(asked) from None
            except OSError as error:
                raise GameLost(QUIT, f"the game has ended its connection ({error})") from None
            if not received:
                raise GameLost(QUIT, "the game has ended its connection")
            filled += received
        return bytes(contents)

    def _silent(self, asked: str) -> GameLost:
        return GameLost(
            "stopped_answering",
            f"the game has not answered {asked!r} for {self._timeout_seconds:g} s: it hangs, or one of its scripts has "
            "stopped in an error; --timeout-wait waits longer",
        )


def _strict(found: "re.Match[str]") -> str:
    token = found[0]
    if token.startswith('"'):
        return token
    return "NaN" if token.lower().endswith("nan") else token.lower().replace("inf", "Infinity")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
