"""A Service: an address that leads each connection to the next ready pod."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.kubernetes.pod import RunningPod

PIECE_BYTES = 1 << 16


class Service:
    """Carries TCP. A connection stays with its pod; without a ready pod it is closed."""

    def __init__(self, resource: Mapping[str, Any], address: str, endpoints: Callable[[str], list[RunningPod]]) -> None:
        """`endpoints` returns the pods of a role that connections may go to."""
        self._ports = {each["name"]: each for each in resource["spec"]["ports"]}
        self._role = resource["spec"]["selector"]["app.kubernetes.io/name"]
        self._address = address
        self._endpoints = endpoints
        self._turn = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[Any]] = set()
        self.refused = 0
        """Connections that came when no pod was ready."""

    def endpoint(self, port: str | int | None) -> str:
        """Return host:port of one of its ports, by name or number."""
        return f"{self._address}:{self._ports[port]['port'] if isinstance(port, str) else port}"

    async def start(self) -> None:
        """Listen."""
        for port in self._ports.values():
            carry = partial(self._carry, port.get("targetPort", port["port"]))
            self._servers.append(await asyncio.start_server(carry, self._address, port["port"]))

    async def stop(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _carry(self, port: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        ends = [writer]
        try:
            pods = self._endpoints(self._role)
            if not pods:
                self.refused += 1
                return
            pod = pods[next(self._turn) % len(pods)]
            far_reader, far_writer = await asyncio.open_connection(pod.address, pod.port(port))
            ends.append(far_writer)
            await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            for end in ends:  # a reset is passed on
                end.transport.abort()
        finally:
            self._connections.discard(task)
            for end in ends:
                end.close()


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE_BYTES):
        sink.write(piece)
        await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()
