"""Free TCP ports for tests that must name a port before anybody listens at it."""

import contextlib
import secrets
import socket
from pathlib import Path

FIRST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LAST = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
"""From here on the system gives ports to whoever asks for any, so a test that names one could lose it."""
MARKS: list[socket.socket] = []
"""The UDP sockets at the same numbers, which this process holds until it ends: they keep other test processes away."""


def free_port(count: int = 1) -> int:
    """Return the first of `count` TCP ports in a row where nobody listens, which no other caller gets."""
    while True:
        first = FIRST + secrets.randbelow(LAST - FIRST - count)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            marks = []
            for port in range(first, first + count):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
                marks.append(probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
                marks[-1].bind(("127.0.0.1", port))
            MARKS.extend(socket.socket(fileno=mark.detach()) for mark in marks)
            return first
