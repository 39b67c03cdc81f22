"""A game with the plug-in of Godot RL Agents, as bytes: what it answers to each message of its trainer.

In a thread (`ScriptedGame`), or as a program that stands for a build: `python peer.py --port=11008 --script=NAME`.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

INFO = {
    "type": "env_info",
    "observation_space": [{"obs": {"size": [5], "space": "box"}}, {"obs": {"size": [5], "space": "box"}}],
    "action_space": [
        {"move": {"size": 1, "action_type": "continuous"}, "jump": {"size": 3, "action_type": "discrete"}},
        {"move": {"size": 1, "action_type": "continuous"}, "jump": {"size": 3, "action_type": "discrete"}},
    ],
    "n_agents": 2,
    "agent_policy_names": ["shared_policy", "shared_policy"],
}
OLD_INFO = {
    "type": "env_info",
    "observation_space": INFO["observation_space"][0],  # type: ignore[index]  # a list
    "action_space": INFO["action_space"][0],  # type: ignore[index]  # likewise
    "n_agents": 2,
}
"""The same of a plug-in before April 2024."""

Answer = Mapping[str, Any] | bytes | None
"""A message, or bytes as they are; None: the game ends its connection."""
Script = Callable[[Mapping[str, Any], int], Answer]
"""Takes a message, and how many actions came before; returns the answer."""


def frame(contents: bytes) -> bytes:
    return struct.pack("<I", len(contents)) + contents


def told(count: int, step: int, **more: Any) -> dict[str, Any]:
    """Return what a message of the game tells of its agents: agent i has observed (step, i, 0.5, 0, 0)."""
    return {"obs": [{"obs": [step, agent, 0.5, 0, 0]} for agent in range(count)], "info": [{}] * count, **more}


def plain(message: Mapping[str, Any], step: int, *, every: int = 5, info: Mapping[str, Any] = INFO) -> Answer:
    """Answer as a game of plug-in 0.7 whose episodes have `every` steps."""
    count = info["n_agents"]
    match message["type"]:
        case "env_info":
            return info
        case "reset":
            return {"type": "reset", **told(count, step)}
        case "call":
            return {"type": "call", "returns": [None] * count}
        case "action":
            ends = (step + 1) % every == 0
            return {"type": "step", **told(count, step + 1, reward=[2, -4.5], done=[ends, False])}
    raise AssertionError(f"a game would hang for ever at {message}")


def old(message: Mapping[str, Any], step: int) -> Answer:
    """Answer as a game of plug-in 0.3 does: one space for all, no infos."""
    answer = plain(message, step, info=OLD_INFO)
    assert isinstance(answer, Mapping)
    return {key: value for key, value in answer.items() if key != "info"}


def at(steps: int, answer: Answer) -> Script:
    """Answer an action after so many others in another way."""
    return lambda message, step: answer if message["type"] == "action" and step == steps else plain(message, step)


def hangs(message: Mapping[str, Any], step: int) -> Answer:
    if message["type"] == "action" and step == 20:
        signal.pause()
    return plain(message, step)


def crashes(message: Mapping[str, Any], step: int) -> Answer:
    if message["type"] == "action" and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(message, step)


def duel(message: Mapping[str, Any], step: int) -> Answer:
    """Answer as a game of two teams with cameras: the higher one of the fourth jumps wins. Prints its calls."""
    pictures = [{"camera_2d": (bytes([40 * agent, step % 4, 255]) * 20 * 20).hex()} for agent in range(2)]
    match message["type"]:
        case "env_info":
            space = {"camera_2d": {"size": [20, 20, 3], "space": "box"}}
            names = {"agent_policy_names": ["red", "blue"]}
            return {**INFO, "observation_space": [space, space], **names}
        case "reset":
            return {"type": "reset", "obs": pictures, "info": [{}, {}]}
        case "call":
            os.write(1, f"called {message['method']}\n".encode())
            return {"type": "call", "returns": [True, True]}
        case "action":
            red, blue = (action["jump"] for action in message["action"])
            ends = (step + 1) % 4 == 0
            reward = (red > blue) - (red < blue) if ends else 0
            infos = [{"outcome": {1: "win", 0: "draw", -1: "loss"}[score]} for score in (reward, -reward)]
            told_of = {"reward": [reward, -reward], "done": [ends, ends], "info": infos if ends else [{}, {}]}
            return {"type": "step", "obs": pictures, **told_of}
    raise AssertionError(f"a game would hang for ever at {message}")


SCRIPTS: dict[str, Script] = {
    "plain": plain,
    "duel": duel,
    "old": old,
    "hangs": hangs,
    "crashes": crashes,
    "text": at(20, frame(b"hello")),
}


class Dialled:
    """The game's end of a connection, on a thread that ends with it."""

    def __init__(self, port: int) -> None:
        self.received: list[dict[str, Any]] = []
        self._peer = socket.create_connection(("127.0.0.1", port), 30)
        self._peer.settimeout(None)

    def play(self, script: Script) -> None:
        """Answer messages until one is `close`, or the trainer has gone."""
        step = 0
        with self._peer:
            for message in self._messages():
                self.received.append(message)
                if message["type"] == "handshake":
                    continue
                if message["type"] == "close":
                    return
                answer = script(message, step)
                step += message["type"] == "action"
                if answer is None:
                    return
                self._peer.sendall(answer if isinstance(answer, bytes) else frame(json.dumps(answer).encode()))

    def _messages(self) -> Iterator[dict[str, Any]]:
        with self._peer.makefile("rb") as stream:
            while len(length := stream.read(4)) == 4:
                yield json.loads(stream.read(struct.unpack("<I", length)[0]))


class ScriptedGame:
    """A game that dials a port during the block, as the editor's does when Play is pressed."""

    def __init__(self, port: int, script: Script = plain) -> None:
        self.received: list[dict[str, Any]] = []
        self._port = port
        self._script = script
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the simulation closes its game"

    def _play(self) -> None:
        from tests.waiting import eventually  # noqa: PLC0415  the program has no such package

        def dialled() -> Dialled | None:
            with contextlib.suppress(ConnectionRefusedError):
                return Dialled(self._port)
            return None

        game = eventually(dialled, "the trainer listens")
        self.received = game.received
        with contextlib.suppress(ConnectionError):  # the trainer had enough
            game.play(self._script)


def build(folder: Path, script: str) -> Path:
    """Write a program that stands for a build which plays so."""
    path = folder / f"{script}.x86_64"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} --script={script} "$@"\n')
    path.chmod(0o755)
    return path


def main() -> None:
    arguments = dict(
        argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--") and "=" in argument
    )
    if arguments["script"] == "early":
        sys.exit("there is no level to load")
    if arguments["script"] == "silent":
        signal.pause()
    os.write(1, f"playing on port {arguments['port']}\n".encode())
    Dialled(int(arguments["port"])).play(SCRIPTS[arguments["script"]])


if __name__ == "__main__":
    main()
