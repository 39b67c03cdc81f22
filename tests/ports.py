"""Free TCP ports for tests that must name a port before anybody listens at it."""

import contextlib
import secrets
import socket
from pathlib import Path

FIRST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LAST = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
"""From here on the system gives ports to whoever asks for any, so a test that names one could lose it."""


def free_port(count: int = 1) -> int:
    """Return the first of `count` TCP ports in a row where nobody listens, which no other caller gets.

    UDP sockets at the same numbers, which this process holds until it ends, keep other test processes away.
    """
    while True:
        first = FIRST + secrets.randbelow(LAST - FIRST - count)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            marks = []
            for port in range(first, first + count):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
                marks.append(probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
                marks[-1].bind(("127.0.0.1", port))
            for mark in marks:
                mark.detach()  # the descriptor stays open, and nobody warns at the end that nobody closed it
            return first
