"""TLS and mTLS with real certificates: the HTTP API, the gateway, and what clients say of them."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from pydantic import SecretStr, ValidationError

from ludus.client import Client, ServerUnreachable
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol import simulation_pb2_grpc as rpc
from ludus.protocol.tls import ClientTls
from server.app import health
from server.kit.db.database import Database
from server.kit.listening import ApiSettings, GatewaySettings
from server.kit.ports import api_is_ready
from server.kit.settings import Settings
from tests.server.app.world import World, build_services, serving
from tests.server.gateway.conftest import KEY, GatewayThread, add_run
from tests.server.gateway.conftest import database as gateway_database

TLS = Path(__file__).parents[2] / "data" / "tls"
CERTIFICATE, PRIVATE, OTHER = TLS / "localhost.pem", TLS / "localhost.key", TLS / "other.pem"
SERVED: dict[str, Any] = {"tls_certificate": CERTIFICATE, "tls_key": PRIVATE}
MUTUAL: dict[str, Any] = {**SERVED, "tls_client_ca": CERTIFICATE}
OURS = ClientTls(CERTIFICATE, CERTIFICATE, PRIVATE)

database = gateway_database


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mtls"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, bool]]:
    files = MUTUAL if request.param else SERVED
    services = build_services(tmp_path_factory.mktemp("tls"), api=files)
    context = OURS.context() if request.param else ClientTls(CERTIFICATE).context()
    with serving(services) as server, httpx2.Client(base_url=server, timeout=30, verify=context) as http:
        yield World(services, server, http), request.param


def test_the_api_speaks_tls_to_who_trusts_it_and_shows_what_it_wants(world: tuple[World, bool]) -> None:
    served, mutual = world
    assert served.server.startswith("https://")
    assert served.http.get("/v1/runs").json()["runs"] == []

    with Client(served.server, tls=OURS if mutual else ClientTls(CERTIFICATE)) as client:
        assert client.ready()


def test_the_api_is_not_trusted_by_default_nor_under_another_authority(world: tuple[World, bool]) -> None:
    served, _ = world
    for trusted in (ClientTls(), ClientTls(OTHER)):
        with Client(served.server, tls=trusted) as client, pytest.raises(ServerUnreachable, match="LUDUS_CA_FILE"):
            client.ready()


def test_a_client_without_a_certificate_is_let_in_only_where_none_is_wanted(world: tuple[World, bool]) -> None:
    served, mutual = world
    context = ssl.create_default_context(cafile=CERTIFICATE)
    with httpx2.Client(verify=context) as http:
        if not mutual:
            assert http.get(f"{served.server}/healthz").status_code == 200
            return
        with pytest.raises(httpx2.TransportError):
            http.get(f"{served.server}/healthz")
    with Client(served.server, tls=ClientTls(CERTIFICATE)) as client, pytest.raises(ServerUnreachable) as refused:
        client.ready()
    assert "LUDUS_CLIENT_CERTIFICATE and LUDUS_CLIENT_KEY" in str(refused.value)


def test_plain_http_gets_nothing_from_it(world: tuple[World, bool]) -> None:
    served, _ = world
    with pytest.raises(httpx2.TransportError):
        httpx2.get(served.server.replace("https", "http") + "/healthz")


def test_the_stack_asks_its_own_api_over_tls(world: tuple[World, bool]) -> None:
    served, _ = world
    where = served.server.removeprefix("https://")
    served.services.database.ping()

    assert not api_is_ready(where, None, 0.0, served.services.settings.api.tls)  # no worker is there
    assert not api_is_ready(where, None, 0.0)


def test_the_clients_files_come_from_the_environment(
    world: tuple[World, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = world
    monkeypatch.setenv("LUDUS_CA_FILE", str(CERTIFICATE))
    monkeypatch.setenv("LUDUS_CLIENT_CERTIFICATE", str(CERTIFICATE))
    monkeypatch.setenv("LUDUS_CLIENT_KEY", str(PRIVATE))

    with Client(served.server) as client:
        assert client.ready()


def test_files_of_a_client_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")

    for tls, sentence in (
        (ClientTls(rubbish), "the authority .*rubbish.pem cannot be used .it is not the expected kind of PEM file"),
        (ClientTls(tmp_path / "missing.pem"), "the authority .*missing.pem cannot be used .No such file"),
        (ClientTls(certificate=rubbish, key=PRIVATE), "the certificate .*rubbish.pem with the key .* cannot be used"),
        (ClientTls(certificate=OTHER, key=PRIVATE), "the key is that of another certificate"),
        (ClientTls(key=PRIVATE), "of no use without its certificate .LUDUS_CLIENT_CERTIFICATE"),
    ):
        with pytest.raises(ServerUnreachable, match=sentence):
            Client("https://localhost:1", tls=tls)


def joined(port: str, credentials: grpc.ChannelCredentials) -> pb.JoinResponse:
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        stub = rpc.SimulationServiceStub(channel)  # type: ignore[no-untyped-call]
        response: pb.JoinResponse = stub.Join(
            pb.JoinRequest(run="catch", session_id="one", protocol_version=1), timeout=5
        )
        return response


@pytest.mark.parametrize("mutual", [False, True])
def test_the_gateway_speaks_tls_and_sends_simulators_to_collectors_that_do(database: Database, mutual: bool) -> None:
    add_run(database, "worker-1:41000")
    settings = GatewaySettings(port=0, ticket_key=SecretStr(KEY), **(MUTUAL if mutual else SERVED))
    with GatewayThread(settings, database) as gateway:
        port = gateway.address.rpartition(":")[2]
        authority = CERTIFICATE.read_bytes()
        known = grpc.ssl_channel_credentials(authority, PRIVATE.read_bytes(), authority)

        assert joined(port, known).assignment.tls
        with pytest.raises(grpc.RpcError):
            joined(port, grpc.ssl_channel_credentials(OTHER.read_bytes()))
        with pytest.raises(grpc.RpcError):
            gateway.join()  # without TLS
        stranger = grpc.ssl_channel_credentials(authority)
        if mutual:
            with pytest.raises(grpc.RpcError):
                joined(port, stranger)
        else:
            assert joined(port, stranger).assignment.tls


@pytest.mark.parametrize("group", [ApiSettings, GatewaySettings])
@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"tls_certificate": CERTIFICATE}, "tls_key"),
        ({"tls_key": PRIVATE}, "tls_certificate"),
        ({"tls_client_ca": CERTIFICATE}, "tls_client_ca needs"),
        ({"tls_certificate": TLS / "missing.pem", "tls_key": PRIVATE}, "missing.pem cannot be read"),
        ({"tls_certificate": CERTIFICATE, "tls_key": TLS}, "tls cannot be read .Is a directory"),
        ({"tls_certificate": CERTIFICATE, "tls_key": CERTIFICATE}, "localhost.pem holds no private key"),
        ({"tls_certificate": PRIVATE, "tls_key": PRIVATE}, "localhost.key holds no certificate"),
        ({**SERVED, "tls_client_ca": PRIVATE}, "localhost.key holds no certificate"),
        ({"tls_certificate": OTHER, "tls_key": PRIVATE}, "localhost.key is not the key of the certificate in"),
        ({"tls_certificate": CERTIFICATE, "tls_key": TLS / "encrypted.key"}, "encrypted.key is encrypted"),
    ],
)
def test_unfit_files_of_tls_are_refused_by_name(group: Any, files: dict[str, Path], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        group(**files)


def test_an_api_whose_own_certificate_is_of_another_authority_than_its_clients_counts_as_ready(tmp_path: Path) -> None:
    services = build_services(tmp_path, api={**SERVED, "tls_client_ca": OTHER})
    with serving(services) as server:
        where = server.removeprefix("https://")
        port = int(where.rpartition(":")[2])
        settings = ApiSettings(port=port, **SERVED, tls_client_ca=OTHER)

        assert api_is_ready(where, None, 0.0, settings.tls)
        assert health.api(Settings(home=tmp_path, api=settings))

    assert not api_is_ready(where, None, 0.0, settings.tls)  # nobody is there any more
    assert not health.api(Settings(home=tmp_path, api=settings))
