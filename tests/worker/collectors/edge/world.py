"""An edge collector in a thread of the test, a real pool with a real edge reader, and simulators that dial it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio

from ludus.collector.edge import EdgeCollector
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import COLLECTOR_SERVICE, SESSION_ID_METADATA
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target
from tests.ludus.collector.stack import PATIENCE, Learner
from worker.collectors.acting import POLICIES


class Places:
    """A gateway that knows one attempt: it assigns each edge collector to the attempt's edge reader."""

    def __init__(self) -> None:
        self.address = ""
        """Of the edge reader; empty: the run has no attempt."""

    def handler(self) -> "grpc.GenericRpcHandler[pb.JoinRequest, pb.JoinResponse]":
        async def join(request: pb.JoinRequest, _: object) -> pb.JoinResponse:
            if not self.address:
                return pb.JoinResponse(wait=pb.Wait(reason="the run has no attempt", retry_after_seconds=0.1))
            assignment = pb.Assignment(address=self.address, ticket="", run_id=request.run)
            return pb.JoinResponse(assignment=assignment)

        method = grpc.unary_unary_rpc_method_handler(
            join,
            request_deserializer=pb.JoinRequest.FromString,
            response_serializer=pb.JoinResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(COLLECTOR_SERVICE.strip("/"), {"Join": method})


class Edge:
    """A game machine: an edge collector, and the port that its simulators dial."""

    def __init__(self, places: Places, *, shares_memory: bool) -> None:
        self.address = ""
        self.said: list[str] = []
        self.end: RunEnd | SimulatorError | None = None
        """How its run ended, once it has."""
        self._places = places
        self._shares_memory = shares_memory
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="edge-collector")
        self._thread.start()
        assert self._listening.wait(PATIENCE), "the edge collector does not listen"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._places.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        target = Target(f"127.0.0.1:{port}", "run-1", token="")
        edge = self._collector = EdgeCollector(
            target, POLICIES, lambda _, sentence: self.said.append(sentence), shares_memory=self._shares_memory
        )
        self.address = f"127.0.0.1:{await edge.listen()}"
        self._listening.set()
        self._task = asyncio.ensure_future(edge.run())
        try:
            self.end = await self._task
        except SimulatorError as error:
            self.end = error
        except asyncio.CancelledError:
            pass
        await edge.close()
        await server.stop(0)

    def exchange(self, message: bytes, session_id: str) -> bytes:
        """Be a Unity game of this process: make one call, and return the reply."""
        call = self._collector.exchange(message, [(SESSION_ID_METADATA, session_id)])
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE)[0]

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), self.said

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.join()


def reader_of(learner: Learner) -> str:
    """Return the address of an attempt's edge reader, which is started where it was not."""
    learner.pool.open_places()
    children = learner.pool.children
    learner.until(lambda: children.reader is not None and children.reader.endpoint is not None)
    assert children.reader is not None
    assert children.reader.endpoint is not None
    return children.reader.endpoint.address


@contextmanager
def edge_collectors(learner: Learner, count: int = 1, *, shares_memory: bool = False) -> Iterator[list[Edge]]:
    """Start edge collectors that join the attempt of a learner, by streams or, if they may, in its memory."""
    places = Places()
    places.address = reader_of(learner)
    edges = [Edge(places, shares_memory=shares_memory) for _ in range(count)]
    try:
        yield edges
    finally:
        for edge in edges:
            edge.close()
