"""Problems of a Unity player that a collector can see: a stable name, and a sentence with the remedy."""

import math
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.options import GAME_RECEIVES_BYTES

LOOK_SECONDS = 1.0
"""How often connections are looked at."""


class SimulatorProblem(NamedTuple):
    """A problem that is reported and does not end the session."""

    code: str
    sentence: str


def version(theirs: str, package: str, ours: str) -> ProtocolError:
    """Describe a player of another major version."""
    return ProtocolError(
        CloseCode.PROTOCOL_VERSION,
        f"the player speaks version {theirs[:40]!r} of ML-Agents' protocol (package {package[:40]!r}), this server "
        f"{ours}: build the game with a package of com.unity.ml-agents from 1.0 on, best with 3.0",
    )


def second_call_missing(seconds: float) -> ProtocolError:
    """Describe a player that did not like the answer to its first call, or has ended."""
    return ProtocolError(
        CloseCode.SECOND_CALL_MISSING,
        f"the player introduced itself and did not make its second call within {seconds:.0f} s: it has ended, or "
        "refused our protocol version and plays without training; its log has the reason",
    )


def no_agents(seconds: float) -> ProtocolError:
    """Describe a player whose agents ask for nothing."""
    return ProtocolError(
        CloseCode.NO_AGENTS,
        f"the player is connected, but no agent has asked for a decision for {seconds:.0f} s: it may still be loading; "
        "else its scene needs active agents, each with a Decision Requester (or a script that calls RequestDecision) "
        "and with Behavior Type set to Default",
    )


def reply_too_large(size: int) -> ProtocolError:
    """Describe actions that would end the game."""
    return ProtocolError(
        CloseCode.MESSAGE_TOO_LARGE,
        f"the actions of one step take {size} bytes, and the game's end receives {GAME_RECEIVES_BYTES} at most: put "
        "fewer agents into a build, and start more builds",
    )


def blind(sensors: list[str]) -> SimulatorProblem:
    """Describe cameras that see a single color."""
    named = ", ".join(sensors)
    return SimulatorProblem(
        "blind_cameras",
        f"every picture of {named} so far is of one single color: cameras see nothing when a build is started with "
        "-nographics; start it with graphics (on a server without a screen: under xvfb-run)",
    )


def parked(seconds: float) -> SimulatorProblem:
    """Describe a player that is silent on a connection that lives."""
    return SimulatorProblem(
        "parked",
        f"nothing has come for {seconds:.0f} s (simulators.step_timeout_seconds), and the connection lives: the Editor "
        "is paused, or the game hangs; its place is kept, and the others train on without it",
    )


_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


class Connections:
    """The TCP connections that this process's host has, from the kernel's tables.

    grpc does not report that a connection broke between two calls.
    """

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._established: frozenset[str] | None = None
        """Of the other ends, as the tables have them; None where there are no such tables."""

    def lives(self, peer: str, now: float) -> bool:
        """Whether the connection of a gRPC peer (`ipv4:127.0.0.1:50000`) is established; true if unknown.

        At the time `now`, in seconds, or up to a second before.
        """
        if now >= self._read_at + LOOK_SECONDS:
            self._read_at = now
            self._established = _established()
        kind, _, address = unquote(peer).partition(":")
        if self._established is None or kind not in {"ipv4", "ipv6"}:
            return True
        host, _, port = address.rpartition(":")
        host = host.strip("[]").partition("%")[0]
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        # A server that listens on both kinds of addresses has its IPv4 connections among those of IPv6.
        forms = [packed] if ":" in host else [packed, bytes(10) + b"\xff\xff" + packed]
        # The tables have words of 32 bits in the machine's order.
        texts = ("".join(form[start : start + 4][::-1].hex() for start in range(0, len(form), 4)) for form in forms)
        return not self._established.isdisjoint(f"{text.upper()}:{int(port):04X}" for text in texts)


def _established() -> frozenset[str] | None:
    tables = [table.read_text().splitlines()[1:] for table in _TABLES if table.exists()]
    rows = [line.split() for lines in tables for line in lines]
    return frozenset(fields[2] for fields in rows if fields[3] == _ESTABLISHED) if tables else None
