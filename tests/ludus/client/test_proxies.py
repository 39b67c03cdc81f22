"""Calls to this machine go through no proxy; others go through the one that the environment names."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ludus.client import Client, ServerUnreachable
from ludus.protocol.options import client_options
from ludus.protocol.proxies import proxy_of, reached_directly
from server.kit.artifacts.address import S3Address
from server.kit.artifacts.s3 import S3Store
from server.kit.errors import LudusError
from server.kit.listening import TelemetrySettings
from server.kit.tracing import Tracer
from tests.otlp import collector
from tests.ports import free_port
from tests.server.app.world import World

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a proxy in the environment, at which nothing listens; return its address."""
    proxy = f"http://127.0.0.1:{free_port()}"
    for name in VARIABLES:
        for spelling in (name, name.upper()):
            monkeypatch.delenv(spelling, raising=False)
            if name != "no_proxy":
                monkeypatch.setenv(spelling, proxy)
    return proxy


HERE = (
    "127.0.0.1",
    "127.3.4.5",
    "127.1",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "api.localhost",
    "::1",
    "0.0.0.0",
    "::",
)


@pytest.mark.parametrize("host", [*HERE, "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1"])
def test_every_name_of_this_machine_is_reached_directly_by_http_and_by_grpc(proxied: str, host: str) -> None:
    url = f"http://[{host}]:8080/v1" if ":" in host else f"http://{host}:8080/v1"

    assert reached_directly(host)
    assert proxy_of(url) is None
    assert ("grpc.enable_http_proxy", 0) in client_options(host)


@pytest.mark.parametrize("host", ["ludus.example.org", "10.1.2.3", "128.0.0.1", "localhost.example.org", "fe80::1"])
def test_another_machine_is_reached_through_the_proxy(proxied: str, host: str) -> None:
    url = f"https://[{host}]" if ":" in host else f"https://{host}"

    assert proxy_of(url) == proxied
    assert ("grpc.enable_http_proxy", 0) not in client_options(host)


@pytest.mark.parametrize(
    ("no_proxy", "host"),
    [
        ("ludus.example.org", "ludus.example.org"),
        ("example.org", "ludus.example.org"),
        (".example.org", "ludus.example.org"),
        ("a.test, 10.0.0.0/8", "10.1.2.3"),
        ("fd00::/8", "fd00::7"),
        ("[fe80::1]", "fe80::1"),
        ("*", "ludus.example.org"),
    ],
)
def test_no_proxy_exempts_names_domains_addresses_and_networks(
    proxied: str, monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str
) -> None:
    monkeypatch.setenv("no_proxy", no_proxy)

    assert reached_directly(host)
    assert proxy_of("https://other.example.com") == (None if no_proxy == "*" else proxied)


def test_requests_streams_and_waits_to_this_machine_pass_the_proxy_by(world: World, proxied: str) -> None:
    with Client(world.server) as client:
        run = client.runs.create("behaviors: {A: {}}")
        client.runs.cancel(run.id)
        kinds = [event.type for event in client.events.follow(run.id)]

    assert kinds[0] == "run_created"


def test_spans_to_a_collector_on_this_machine_pass_the_proxy_by(proxied: str) -> None:
    with collector() as receiver:
        tracer = Tracer(TelemetrySettings(otlp_endpoint=receiver.endpoint), "api")
        tracer.of_run("run_1", "queued", 1.0, 2.0)
        tracer.close()

        assert [span.name for span in receiver.spans()] == ["queued"]


@contextmanager
def http_server(asked: list[str]) -> Iterator[str]:
    """Serve one answer to each request, as a proxy or as the server itself, and keep what it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"version": "9"}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_request_to_another_machine_goes_to_the_proxy(proxied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with http_server(asked) as proxy:
        monkeypatch.setenv("http_proxy", proxy)  # without a scheme, as many write it
        with Client("http://ludus.invalid") as client:
            assert client.version() == "9"

    assert asked == ["http://ludus.invalid/version"]


def test_a_proxy_that_does_not_answer_is_named_without_its_password(
    proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxied.replace("//", "//me:secret@"))
    with Client("http://ludus.invalid") as client, pytest.raises(ServerUnreachable) as caught:
        client.version()

    assert f"through the proxy {proxied}" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9"])
def test_a_kind_of_proxy_that_is_not_spoken_is_a_sentence(
    proxied: str, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ServerUnreachable, match=f"the proxy {proxy} cannot be used.*no_proxy"):
        Client("http://ludus.invalid")


def test_a_bucket_on_this_machine_is_asked_directly(proxied: str) -> None:
    asked: list[str] = []
    with http_server(asked) as endpoint:
        store = S3Store(S3Address.parse(f"s3://bucket?endpoint=http://{endpoint}"), "key", "secret", tries=1)
        with pytest.raises(LudusError):  # it answers as no S3 server would
            list(store.files("runs"))

    assert asked[0].startswith("/bucket?")
