"""A real gateway on a free port, in front of a real database."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from pydantic import SecretStr

import server.simulators.models
import server.workers.models  # noqa: F401  its table is referred to
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol import simulation_pb2_grpc as rpc
from ludus.protocol.options import client_options
from server.gateway.main import start, stop
from server.gateway.service import Gateway
from server.kit.db.base import Base
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.runs.models import Attempt, Run
from server.simulators.repository import Placement

KEY = "a key of thirty-two bytes or more"
TOKEN = "open sesame"


class GatewayThread:
    """Runs a gateway's event loop beside the test."""

    def __init__(self, settings: GatewaySettings, database: Database) -> None:
        self.database = database
        self.gateway: Gateway
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(60)
        self.channel = grpc.insecure_channel(self.address, client_options("127.0.0.1"))
        self.stub = rpc.SimulationServiceStub(self.channel)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(15)

    def join(
        self, run: str = "catch", session_id: str = "one", token: str | None = TOKEN, **fields: Any
    ) -> pb.JoinResponse:
        request = pb.JoinRequest(run=run, session_id=session_id, **{"protocol_version": 1, **fields})
        metadata = [("authorization", f"Bearer {token}")] if token else []
        response: pb.JoinResponse = self.stub.Join(request, metadata=metadata, timeout=60)
        return response

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server, self.gateway, port = await start(self._settings, Placement(self.database))
        self.address = f"127.0.0.1:{port}"
        self._started.set()
        await self._stopping.wait()
        await stop(server, self.gateway)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'ludus.db'}", synchronous="OFF")
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


@pytest.fixture
def gateway(database: Database) -> Iterator[GatewayThread]:
    settings = GatewaySettings(port=0, token=SecretStr(TOKEN), ticket_key=SecretStr(KEY))
    with GatewayThread(settings, database) as thread:
        yield thread


def add_run(
    database: Database,
    *addresses: str,
    state: str = "RUNNING",
    name: str = "catch",
    edge: str | None = None,
    generation: int = 3,
    websocket: str | None = None,
) -> str:
    """Insert a run in its first attempt, whose collectors listen on `addresses`; edge collectors stream to `edge`."""
    run_id = f"run-{name}"
    now = time.time()
    with database.write() as session:
        session.add(
            Run(
                id=run_id,
                kind="train",
                name=name,
                state=state,
                config={} if edge is None else {"simulators": {"collectors": {"local": len(addresses), "edge": 1}}},
                seed=7,
                attempt=1,
                created_at=now,
                stored_updated_at=now,
            )
        )
        session.flush()
        endpoints: list[dict[str, Any]] = [
            {"address": address, "index": index, "generation": generation, "websocket": websocket}
            for index, address in enumerate(addresses)
        ]
        if edge:
            endpoints.append({"address": edge, "index": -1, "edge": True})
        session.add(
            Attempt(
                run_id=run_id,
                number=1,
                worker_id="worker-1",
                lease_expires_at=now + 100,
                heartbeat_at=now,
                endpoints=endpoints,
                started_at=now,
            )
        )
    return run_id
