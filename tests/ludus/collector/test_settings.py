"""Collectors get the settings that the operator chose, on every address."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ludus.collector.settings import CollectorSettings
from ludus.config.recording import RecordConfig
from ludus.protocol.environment_parameters import Constant, MultiRangeUniform
from ludus.protocol.side_channels import EngineConfiguration
from ludus.protocol.tls import TlsFiles
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from tests.factories import make_claim, make_run
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE
from worker.host.supervisor.job import configuration, prepare
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.trainer.attempt import collector_settings
from worker.trainer.messages import Job

BEYOND_LOOPBACK = ["0.0.0.0", "::", "10.0.0.5", "fd00::5", "worker.lan"]
LOOPBACK = ["127.0.0.1", "127.0.0.2", "::1", "localhost"]
KEY = bytes(range(32))
"""Bytes that are no text."""

OTHER_THAN_DEFAULT: dict[str, Any] = {
    "edge_places": 1,
    "count": 3,
    "bind_host": "0.0.0.0",
    "advertise_host": "worker-1.lan",
    "port_range": (41000, 41015),
    "websocket_origins": ("https://game.example", "null"),
    "websocket_range": (41100, 41107),
    "ticket_key": KEY,
    "tls_certificate": "/secrets/server.pem",
    "tls_key": "/secrets/server.key",
    "tls_client_ca": "/secrets/ca.pem",
    "environment_parameters": {"a": Constant(1.5), "b": MultiRangeUniform(((0.0, 1.0), (2.0, 3.0)), 4)},
    "parameter_set": 5,
    "step_timeout": 61.0,
    "startup_timeout": None,
    "second_call_timeout": 31.0,
    "no_agents_after": 32.0,
    "late_agents_grace": 2.0,
    "max_message_bytes": 1 << 20,
    "engine": EngineConfiguration(width=320, time_scale=2.5),
    "num_areas": 4,
    "unity_port": 5004,
    "record": RecordConfig(share=0.5, errors=False),
    "recordings": "/scratch/recordings",
    "log_path": "/scratch/trainer.log",
}


def test_every_setting_survives_the_way_to_a_collector() -> None:
    settings = CollectorSettings("run", 3, 7, **OTHER_THAN_DEFAULT)

    assert CollectorSettings.from_json(settings.to_json()) == settings
    default = CollectorSettings("run", 3, 7)
    as_default = {each.name for each in fields(settings) if getattr(settings, each.name) == getattr(default, each.name)}
    assert as_default == {"run_id", "attempt", "seed"}, "a field that is not tested with a value of its own"


@pytest.mark.parametrize("host", BEYOND_LOOPBACK)
def test_collectors_listen_on_any_address_when_simulators_need_tickets(host: str) -> None:
    settings = CollectorSettings("run", 1, 7, bind_host=host, ticket_key=KEY)

    assert CollectorSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("host", BEYOND_LOOPBACK)
def test_the_world_is_not_let_in_without_tickets(host: str) -> None:
    with pytest.raises(ValueError, match="needs a ticket key"):
        CollectorSettings("run", 1, 7, bind_host=host)


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_is_let_in_without_tickets(host: str) -> None:
    settings = CollectorSettings("run", 1, 7, bind_host=host)

    assert CollectorSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("ticket_key", [KEY, None], ids=["tickets", "no tickets"])
@pytest.mark.parametrize("tls", [None, TlsFiles(CERTIFICATE, PRIVATE, CERTIFICATE)], ids=["plain", "mtls"])
def test_what_an_operator_sets_for_a_worker_arrives_at_its_collectors(
    database: Database, tmp_path: Path, ticket_key: bytes | None, tls: TlsFiles | None
) -> None:
    worker = WorkerSettings(
        collectors=2,
        bind_host="127.0.0.1" if ticket_key is None else "0.0.0.0",
        advertise_host="worker-1.lan",
        port_range=(41000, 41015),
        websocket_range=(41100, 41107),
    )
    named: dict[str, Any] = (
        {} if tls is None else {"tls_certificate": tls.certificate, "tls_key": tls.key, "tls_client_ca": tls.client_ca}
    )
    key = None if ticket_key is None else ticket_key.decode()
    gateway = GatewaySettings(ticket_key=key, websocket_port=7071, websocket_origins="https://a.example,null", **named)
    make_run(database, name="run")
    claim = make_claim(database)
    ledger = AttemptLedger(database, claim)
    copier = ArtifactTransfer(FolderStore(tmp_path / "artifacts"), Lease(claim, ledger, worker), lambda: False)
    try:
        job = prepare(claim, configuration(claim), ledger, copier, worker, tmp_path, gateway)
    finally:
        copier.close()
    job = Job.model_validate_json(job.model_dump_json())

    arrived = CollectorSettings.from_json(collector_settings(job, job.config, 1).to_json())

    assert (
        arrived.count - arrived.edge_places,
        arrived.bind_host,
        arrived.advertise_host,
        arrived.port_range,
        arrived.ticket_key,
    ) == (worker.collectors, worker.bind_host, worker.advertise_host, worker.port_range, ticket_key)
    assert arrived.tls == tls
    assert (arrived.websocket_origins, arrived.websocket_range) == (("https://a.example", "null"), (41100, 41107))
