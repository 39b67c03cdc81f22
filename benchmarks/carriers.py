"""Carriers of a collector's messages: one echo handler behind WebSockets, gRPC's own server, and HTTP/2 of our own.

    python -m benchmarks.carriers [--seconds 2] [--rounds 5] [--bytes 384]

The servers are one process (uvloop), the client is another, and the carriers take turns. A message is sent as soon as
the answer to the previous one is there. Figures are medians: messages/s, and processor time of the server for each.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import uvloop
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from ludus.collector.service import most_bytes
from ludus.http2.calls import EOF
from ludus.http2.server import Http2Server
from ludus.protocol.options import MAX_MESSAGE_BYTES
from ludus.websocket import WebSocketServer

SERVICE: Final = "benchmarks.Echo"
METHOD: Final = f"/{SERVICE}/Stream"
ANSWER_BYTES: Final = 96
Exchange = Callable[[bytes], Awaitable[Any]]


async def serve(link: Any) -> None:
    """Serve an echo on all carriers; tell the ports, then the processor time whenever it is asked for."""

    async def echo(_: object, call: Any) -> None:
        while (data := await call.read()) is not EOF:
            await call.write(data[:ANSWER_BYTES])

    methods: Any = {"Stream": grpc.stream_stream_rpc_method_handler(echo)}
    handlers = (grpc.method_handlers_generic_handler(SERVICE, methods),)
    most = most_bytes(MAX_MESSAGE_BYTES)
    websockets, core, ours = WebSocketServer(most), grpc.aio.server(), Http2Server(most)
    ports = {
        "WebSocket": websockets.add_port("127.0.0.1", 0),
        "grpc.aio": core.add_insecure_port("127.0.0.1:0"),
        "ludus.http2": ours.add_insecure_port("127.0.0.1:0"),
    }
    for server in (websockets, core, ours):
        server.add_generic_rpc_handlers(handlers)
        await server.start()
    link.send(ports)
    while await asyncio.to_thread(link.recv):
        link.send(time.process_time())


async def measure(link: Any, seconds: float, exchange: Exchange, data: bytes) -> tuple[float, float]:
    """Return messages/s and the server's microseconds for each."""
    for _ in range(20):
        await exchange(data)
    link.send(True)
    used, began, count = link.recv(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await exchange(data)
        count += 1
    took = time.perf_counter() - began
    link.send(True)
    return count / took, 1e6 * (link.recv() - used) / count


async def over_websocket(port: int, use: Callable[[Exchange], Awaitable[tuple[float, float]]]) -> tuple[float, float]:
    """Measure a stream over a WebSocket."""
    url, protocols = f"ws://127.0.0.1:{port}{METHOD}", [Subprotocol("ludus.v1")]
    async with connect(url, subprotocols=protocols, compression=None, proxy=None) as socket:
        await socket.send("{}")

        async def exchange(data: bytes) -> None:
            await socket.send(data)
            await socket.recv()

        return await use(exchange)


async def over_grpc(port: int, use: Callable[[Exchange], Awaitable[tuple[float, float]]]) -> tuple[float, float]:
    """Measure a stream of gRPC's own client."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: Any = channel.stream_stream
        call = stream(METHOD)()

        async def exchange(data: bytes) -> None:
            await call.write(data)
            await call.read()

        result = await use(exchange)
        await call.done_writing()
        return result


async def run(link: Any, seconds: float, rounds: int, size: int) -> dict[str, tuple[float, float]]:
    """Return the medians of each carrier."""
    ports, results = link.recv(), dict[str, list[tuple[float, float]]]()
    for _ in range(rounds):
        for name, port in ports.items():
            over = over_websocket if name == "WebSocket" else over_grpc
            result = await over(port, lambda exchange: measure(link, seconds, exchange, bytes(size)))
            results.setdefault(name, []).append(result)
    return {
        name: (statistics.median(rate for rate, _ in pairs), statistics.median(cost for _, cost in pairs))
        for name, pairs in results.items()
    }


def main() -> None:
    """Print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description="Carriers of a collector's messages, with an echo behind each.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=384, help="of a message to the server")
    arguments = parser.parse_args()
    link, far = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(far,), daemon=True)
    server.start()
    results = asyncio.run(run(link, arguments.seconds, arguments.rounds, arguments.bytes))
    link.send(False)
    server.join(5)
    for name, (rate, cost) in results.items():
        print(f"{name:12} {rate:8.0f} messages/s {cost:8.0f} microseconds of the server")
    print(json.dumps(results))


def _serve(link: Any) -> None:
    uvloop.run(serve(link))


if __name__ == "__main__":
    main()
