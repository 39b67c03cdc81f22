"""Processes of the fleet that are clients: simulators that join with the SDK's own client, listeners of event streams,
and a collector, which only accepts connections.
"""

import argparse
import asyncio
import re
import resource
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from benchmarks.fleet.parts import Samples
from ludus.protocol import options as protocol_options
from ludus.sdk import join
from ludus.sdk.join import JoinClient, Target

TOGETHER = 50
"""Simulators of a process that connect at once."""
LINES = 1 << 20
"""Bytes of the longest message of a stream."""


class Clients:
    """The clients of this process, and how many of them have come so far."""

    def __init__(self) -> None:
        self.samples = Samples()
        self.open = self.done = 0

    async def simulators(self, options: argparse.Namespace) -> None:
        """Join as some simulators, and note when each has found the collector of its run; then stay."""
        plain = protocol_options.client_options
        # Else gRPC gives all simulators of a process one connection.
        own = ("grpc.use_local_subchannel_pool", 1)
        join.client_options = lambda host: [*plain(host), own]  # type: ignore[attr-defined]  # imported there
        join.HOLD_SECONDS *= options.slower  # type: ignore[misc]  # the gateway holds questions for as much longer
        connecting = asyncio.Semaphore(TOGETHER)

        async def play(number: int) -> None:
            name = f"{options.kind}-{number % options.runs}"
            session_id = f"{name}-{number // options.runs}"
            target = Target(options.address, name, token="", session_id=session_id, connect_timeout_seconds=None)
            async with connecting:
                client = JoinClient(target, lambda *_: None, "benchmark")
                client.open()
                await client.gateway.channel_ready()  # else thousands would connect at once
            self.open += 1
            found = await client.find()
            self.samples.moment(session_id)
            self.done += 1
            await asyncio.Event().wait()  # it plays, and keeps its connections to its collector and to the gateway
            await found.close()  # type: ignore[union-attr]  # never; a channel that is referred to stays open

        await asyncio.gather(*map(play, range(options.first, options.last)))

    async def listeners(self, options: argparse.Namespace) -> None:
        """Follow the events of runs, and take the time from each event's beginning to its arrival, unless it had begun
        before they were followed.
        """
        host, _, port = options.address.partition(":")
        runs = options.kind.split(",")

        async def listen(number: int) -> None:
            known = False
            while True:
                reader, writer = await asyncio.open_connection(host, int(port), limit=LINES)
                path = f"/v1/runs/{runs[number % len(runs)]}/events:stream"
                began = time.monotonic()
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                while line := await reader.readline():
                    if line.startswith(b": hello") and not known:
                        known = True
                        self.open += 1
                    elif (sent := re.search(rb'"sent":([0-9.]+)', line)) and float(sent[1]) > began:
                        self.samples.add("event until a listener has it", float(sent[1]))
                self.samples.fail("event stream")
                writer.close()
                await asyncio.sleep(1)  # as browsers do

        await asyncio.gather(*map(listen, range(options.first, options.last)))

    async def collector(self, options: argparse.Namespace) -> None:
        """Accept the connections of simulators."""
        server = grpc.aio.server()
        server.add_insecure_port(options.address)
        await server.start()
        self.open = 1
        await server.wait_for_termination()


def main() -> None:
    """Be clients until the benchmark is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["simulators", "listeners", "collector"])
    parser.add_argument("address", help="Of the gateway, of the api, or to listen on.")
    parser.add_argument("--kind", default="", help="Of runs: busy or waiting; of listeners the ids of runs.")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=0)
    parser.add_argument("--slower", type=float, default=1.0)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = Clients()
    role: Callable[[argparse.Namespace], Coroutine[Any, Any, None]] = getattr(clients, options.role)
    thread = threading.Thread(target=lambda: asyncio.run(role(options)), daemon=True)
    clients.samples.serve(thread.start, lambda: {"open": clients.open, "done": clients.done})


if __name__ == "__main__":
    main()
