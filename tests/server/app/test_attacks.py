"""Attacks over HTTP that must come to nothing: out of a folder, into memory, onto a disk, into a log, for ever."""

import contextlib
import io
import json
import logging
import math
import os
import pickle
import socket
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

from ludus.logging import configure_logging
from server.app.serve import Exposed, serve_api
from server.kit.http.listing import encode_token
from server.kit.settings import Settings
from tests.server.app.world import CARTPOLE, World, build_services, open_world, serving
from tests.waiting import eventually

FILE = {"Content-Type": "application/octet-stream"}
YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
FILE_BYTES = 200_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("attacked")
    storage = {
        "root": folder / "artifacts",
        "checkpoint_bytes": FILE_BYTES,
        "demonstration_bytes": FILE_BYTES,
        "demonstration_decoded_bytes": 1 << 20,
    }
    services = build_services(folder, storage=storage)
    with serving(services) as server, httpx2.Client(base_url=server, timeout=30) as http:
        (folder / "secret.txt").write_text("the secret")
        yield World(services, server, http)


def spoken(world: World, request: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes as they are, and return all that comes back until the server closes."""
    host, port = world.server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    "name",
    [
        "../../../secret.txt",
        "..%2f..%2f..%2fsecret.txt",
        "%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "..%252f..%252fsecret.txt",
        "..\\..\\secret.txt",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "a/../../secret.txt",
        ".%00./secret.txt",
        "state.json%00.onnx",
        "\u2025/secret.txt",
    ],
)
def test_no_name_leads_out_of_its_folder(world: World, tmp_path: Path, name: str) -> None:
    run = world.create()
    trainer = world.claim(run["id"]).start()
    checkpoint = trainer.save(100, {"CartPole.onnx": b"model"}, tmp_path)
    trainer.write_log("trainer.log", b"hello", tmp_path)
    places = [
        f"/v1/runs/{run['id']}/checkpoints/{checkpoint}/files/{name}",
        f"/v1/runs/{run['id']}/attempts/1/logs/{name}",
        f"/v1/runs/{name}",
        f"/v1/configs/{name}/versions",
        f"/v1/demonstrations/{name}/file",
        f"/v1/checkpoints/{name}",
    ]
    for place in places:
        raw = spoken(world, f"GET {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = int(raw.split(b" ", 2)[1])

        assert status in {400, 404, 405, 422}, (place, raw)
        assert b"the secret" not in raw
        assert b"root:" not in raw


@pytest.mark.parametrize(
    "config",
    [
        {"env_settings": {"env_path": "/bin/sh"}},
        {"env_settings": {"env_args": ["--x"], "env_path": "C:\\game.exe"}},
        {"checkpoint_settings": {"results_dir": "/etc"}},
        {"checkpoint_settings": {"initialize_from": "../other-run"}},
        {"behaviors": {"A": {"init_path": "/etc/passwd"}}},
        {"behaviors": {"A": {"initialize_from": "/etc/passwd"}}},
        {"behaviors": {"A": {"behavioral_cloning": {"demo_path": "/etc/passwd"}}}},
        {"behaviors": {"A": {"reward_signals": {"gail": {"demo_path": "file:///etc/passwd"}}}}},
        {"behaviors": {"A": {"reward_signals": {"gail": {"demonstrations": ["../../etc/passwd"]}}}}},
    ],
)
def test_no_key_of_a_configuration_names_the_servers_disk(world: World, config: dict[str, Any]) -> None:
    document = {"behaviors": {"A": {}}, **config}

    for body in ({"config": document}, {"config": json.dumps(document)}):
        answer = world.http.post("/v1/runs", json=body)

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config"), answer.text
    path = ".".join(_path(config))
    assert any(item["path"].startswith(path) for item in answer.json()["errors"]), answer.json()["errors"]
    stored = world.http.post("/v1/configs/evil/versions", json={"config": document})
    assert stored.status_code == 422 or "demonstrations" in path or "initialize_from" in path


def _path(config: dict[str, Any]) -> Iterator[str]:
    """Return the keys down to the last one."""
    key, value = list(config.items())[-1]
    yield key
    if isinstance(value, dict):
        yield from _path(value)


def test_an_override_is_screened_like_the_document(world: World) -> None:
    body = {"config": CARTPOLE, "overrides": {"env_settings.env_path": "/bin/sh"}}

    answer = world.http.post("/v1/runs", json=body)

    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "env_settings.env_path")


@cache
def bomb(size: int, name: str, method: int = zipfile.ZIP_DEFLATED, *, said: int | None = None) -> bytes:
    """Return an archive whose only entry unpacks to `size` zeros, and says `said` instead."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method, compresslevel=9) as archive:
        with archive.open(name, "w", force_zip64=True) as entry:
            for _ in range(size >> 20):
                entry.write(bytes(1 << 20))
        archive.infolist()[0].file_size = size if said is None else said
    return packed.getvalue()


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "name", "method", "said"),
    [
        ("/v1/demonstrations", "continuous.npy", zipfile.ZIP_DEFLATED, None),
        pytest.param("/v1/demonstrations", "continuous.npy", zipfile.ZIP_DEFLATED, 100, marks=pytest.mark.long),
        pytest.param("/v1/demonstrations", "demonstration.json", zipfile.ZIP_DEFLATED, None, marks=pytest.mark.long),
        ("/v1/demonstrations", "demonstration.json", zipfile.ZIP_BZIP2, 100),
        pytest.param("/v1/checkpoints", "x/data.pkl", zipfile.ZIP_DEFLATED, None, marks=pytest.mark.long),
        ("/v1/checkpoints", "x/data.pkl", zipfile.ZIP_BZIP2, 100),
    ],
)
def test_a_zip_bomb_is_refused_and_takes_neither_memory_nor_disk(
    world: World, path: str, name: str, method: int, said: int | None
) -> None:
    content = bomb(100 << 20, name, method, said=said)
    assert len(content) < FILE_BYTES
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
    before = _peak_kib()

    answer = world.http.post(path, content=content, headers=FILE)

    assert (answer.status_code, answer.json()["code"].removeprefix("invalid_")) == (422, path[4:-1])
    assert _peak_kib() - before < 50 << 10
    assert list((world.services.settings.storage.root / ".uploads").iterdir()) == []


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


class Exploit:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_an_uploaded_pickle_is_never_executed(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    payload = pickle.dumps({"Policy": Exploit(mark)})
    as_torch, as_numpy = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(as_torch, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("checkpoint/data.pkl", payload)
        archive.writestr("checkpoint/version", "3")
    with zipfile.ZipFile(as_numpy, "w") as archive:
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
        header += b" " * (117 - len(header)) + b"\n"
        array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload
        for name in ("format.npy", "meta.npy", "continuous.npy", "rewards.npy"):
            archive.writestr(name, array)

    for path in ("/v1/checkpoints", "/v1/demonstrations"):
        for content in (payload, as_torch.getvalue(), as_numpy.getvalue()):
            status = world.http.post(path, content=content, headers=FILE).status_code
            assert status in {201, 422}  # 201: its form is a checkpoint's; the worker reads it with `weights_only`

    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists()  # it would have worked


def test_no_name_in_an_upload_takes_the_list_of_checkpoints_away_from_others(world: World) -> None:
    text = "Optimizer:\ud800".encode(errors="surrogatepass")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        pickled = b"\x80\x02X\x06\x00\x00\x00PolicyX" + len(text).to_bytes(4, "little") + text + b"."
        packed.writestr("checkpoint/data.pkl", pickled)

    answer = world.http.post("/v1/checkpoints", content=archive.getvalue(), headers=FILE)

    assert answer.status_code == 201, answer.text
    assert world.http.get("/v1/checkpoints").status_code == 200


def test_a_pickle_of_millions_of_operations_is_refused_at_once(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
            packed.writestr("checkpoint/data.pkl", b"N0" * (8 << 20) + b".")
        began = time.monotonic()

        answer = world.http.post("/v1/checkpoints", content=archive.getvalue(), headers=FILE)

    assert answer.json()["code"] == "invalid_checkpoint"
    assert time.monotonic() - began < 10


LAUGHS = "\n".join(
    ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)


@pytest.mark.parametrize(
    "document",
    [
        LAUGHS,
        "a: &a [*a]",
        "a: !!python/object/apply:os.system ['true']",
        "x: !!python/name:os.system",
        "[" * 100_000,
        "{" * 100_000,
        "- " * 50_000 + "x",
        "a: " + "9" * 100_000,
        "a: 1e999999999",
        "a: 0x" + "f" * 100_000,
        "a: 1:" + "59:" * 20_000 + "1",
        "? " * 50_000,
        "a: &" + "a" * 500_000,
    ],
)
def test_a_document_that_explodes_is_refused_soon(world: World, document: str) -> None:
    began = time.monotonic()

    for answer in (
        world.http.post("/v1/runs", content=document.encode(), headers=YAML),
        world.http.post("/v1/runs", json={"config": document}),
        world.http.post("/v1/configs:upgrade", json={"config": document}),
    ):
        assert answer.status_code in {400, 422}, answer.text[:500]
        assert len(answer.content) < 100_000

    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "body",
    [
        "[" * 500_000,
        '{"a":' * 200_000,
        '{"config": ' + "[" * 500_000,
        '{"config": {}, "priority": 1' + "0" * 5000 + "}",
        '{"config": {}, "priority": 1e400}',
        '{"config": {}, "priority": NaN}',
        '{"config": {}, "name": "\\ud800"}',
        '{"config": {"behaviors": {"A": {"max_steps": 1' + "0" * 5000 + "}}}}",
    ],
)
def test_a_body_of_json_that_explodes_is_refused(world: World, body: str) -> None:
    answer = world.http.post("/v1/runs", content=body.encode(), headers={"Content-Type": "application/json"})

    assert answer.status_code in {400, 422}, answer.text[:500]
    assert len(answer.content) < 100_000


def test_a_number_beyond_any_in_a_path_or_query_is_refused(world: World) -> None:
    huge = "9" * 4000
    for path in (
        f"/v1/runs?page_size={huge}",
        f"/v1/runs/x/events?after_seq={huge}",
        f"/v1/runs/x/attempts/{huge}/logs",
        f"/v1/runs?filter=step > {huge}",
        f"/v1/runs/x?wait=terminal&timeout={huge}",
    ):
        assert world.http.get(path).status_code in {400, 404, 422, 200}, path


@pytest.mark.parametrize(
    "keyset",
    [
        [math.nan, "run_1"],
        [math.inf, "run_1"],
        [10**400, "run_1"],
        [2**70, "run_1"],
        ["run_1", "run_1"],
        [1.0, 2.0],
        [1.0, "\ud800"],
        [1.0, "\0"],
        [1.0, None],
        [None, "run_1"],
        [True, "run_1"],
        [1.0],
    ],
)
def test_a_made_up_page_token_is_refused(world: World, keyset: list[Any]) -> None:
    token = encode_token(keyset, json.dumps(["runs", "", []]))

    answer = world.http.get("/v1/runs", params={"page_token": token})

    assert answer.status_code in {400, 422}, answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"behaviors": {"\ud800": {}}},
        {"behaviors": {"CartPole": {"\udfff": 1}}},
        {"behaviors": {"CartPole": {"max_steps": 10**400}}},
        {"behaviors": {"CartPole": {"max_steps": 2**1024 - 1}}},
        {"\ud800": 1},
    ],
)
def test_a_change_that_nothing_can_store_is_refused(world: World, body: dict[str, Any]) -> None:
    run = world.create()

    answer = world.http.patch(f"/v1/runs/{run['id']}", content=json.dumps(body), headers=JSON)

    assert answer.status_code in {400, 422}, answer.text
    config = {"behaviors": {"CartPole": {}}, **body}
    created = world.http.post("/v1/runs", content=json.dumps({"config": config}), headers=JSON)
    assert created.status_code in {400, 422}, created.text


def test_an_oversized_body_is_refused_without_being_read(world: World) -> None:
    announced = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    announced += b"Content-Length: 99999999999\r\n\r\n"

    answer = spoken(world, announced)

    assert answer.startswith(b"HTTP/1.1 413")
    upload = world.http.post("/v1/checkpoints", content=bytes(FILE_BYTES + 1), headers=FILE)
    assert (upload.status_code, upload.json()["code"]) == (413, "body_too_large")


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("impatient"), api={"body_seconds": 0.5, "head_seconds": 0.5}) as world:
        yield world


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
def test_a_body_that_drips_is_given_up(impatient: World, framing: bytes) -> None:
    head = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n"
    host, port = impatient.server.removeprefix("http://").split(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head)
        connection.settimeout(0.1)
        answer = b""
        while not answer and time.monotonic() - began < 8:
            try:
                connection.sendall(b"1\r\n \r\n" if b"chunked" in framing else b" ")
                answer = connection.recv(65536)
            except TimeoutError:
                continue

    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"body_too_slow" in answer
    assert impatient.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /v1/runs HTTP/1.1\r\nX-Drip: ", b"\r\n"])
def test_headers_that_never_end_close_the_connection(impatient: World, sent: bytes) -> None:
    began = time.monotonic()

    spoken(impatient, sent)

    assert 0.3 < time.monotonic() - began < 8


def test_headers_that_drip_after_a_request_close_the_connection_too(impatient: World) -> None:
    host, port = impatient.server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Dr")

        assert connection.recv(65536) == b""


def test_headers_without_limit_are_refused(world: World) -> None:
    with contextlib.suppress(ConnectionError):  # it is closed while we still send
        answer = spoken(world, b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 300_000)
        assert answer.startswith(b"HTTP/1.1 400")

    assert world.http.get("/healthz").status_code == 200


def test_what_comes_behind_a_body_is_no_header(tmp_path: Path) -> None:
    with open_world(tmp_path, api={"token": "boss"}) as world:
        request = b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

        answer = spoken(world, request + b"1\r\nx\r\n0\r\nAuthorization: Bearer boss\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("begun", "more"),
    [(b"0\r\nX-Trailer: ", b"a" * 4096), (b"0\r\n", b"X-Trailer: b\r\n" * 300), (b"1;name=", b"a" * 4096)],
)
def test_a_chunked_body_with_much_beside_it_is_given_up_at_once(world: World, begun: bytes, more: bytes) -> None:
    head = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    host, port = world.server.removeprefix("http://").split(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n" + begun)
        with contextlib.suppress(ConnectionError):
            while sent < 16 << 20:
                connection.sendall(more)
                sent += len(more)

    assert sent < 8 << 20  # what the kernel keeps on both sides, and no more
    assert world.http.get("/healthz").status_code == 200


def test_a_connection_that_has_carried_many_requests_still_takes_one_whose_body_comes_later(world: World) -> None:
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"a" * 4096 + b"\r\n\r\n"
    post = b"POST /v1/configs:validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    host, port = world.server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for _ in range(20):  # 80 KiB of heads
            connection.sendall(get)
            answer = b""
            while not answer.rstrip().endswith(b"}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(post)
        time.sleep(0.2)  # allow: sleep, because a client that sends head and body apart is slow
        connection.sendall(b"{}")
        answer = connection.recv(65536)

    assert not answer.startswith(b"HTTP/1.1 400"), answer
    assert b"problem+json" in answer, "the application has it"


def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_server(world: World) -> None:
    head = b"POST /v1/runs?name=left HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    host, port = world.server.removeprefix("http://").split(":")
    with structlog.testing.capture_logs() as lines:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.2)  # allow: sleep, because this client leaves when the server has begun with its request
        eventually(lambda: lines, "the request is logged")

    assert [(line["event"], line["status"]) for line in lines] == [("request_answered", 0)]


def test_nobody_says_where_a_request_came_from_but_the_proxies_that_are_named(tmp_path: Path) -> None:
    claimed = {"X-Forwarded-For": "192.0.2.7", "Authorization": "Bearer wrong"}
    seen = []
    for proxies in ("", "127.0.0.1"):
        with open_world(tmp_path / (proxies or "none"), api={"token": "boss", "proxies": proxies}) as world:
            boss = claimed | {"Authorization": "Bearer boss"}
            world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=boss)
            seen += [entry["client"] for entry in world.http.get("/v1/audit", headers=boss).json()["entries"]]
            codes = {
                world.http.get("/v1/runs", headers=claimed | {"X-Forwarded-For": f"192.0.2.{number}"}).status_code
                for number in range(40)
            }
            assert codes == ({401} if proxies else {401, 429})

    assert seen == ["127.0.0.1", "192.0.2.7"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_nothing_that_is_sent_begins_a_line_or_paints_in_the_log(
    world: World, log_format: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = 'x"}\n{"level": "error", "event": "forged"}\r\n\x1b[31mred\x1b[0m\x9b31m\u2028forged'
    before = logging.getLogger().handlers[:]
    configured = structlog.get_config()
    structlog.reset_defaults()
    try:
        configure_logging("test", log_format=log_format)
        log = structlog.get_logger("test")
        capsys.readouterr()
        log.warning("request_answered", path=evil, run=evil)
        log.warning(evil)
        logging.getLogger("foreign").warning("said %s", evil)
        logging.getLogger("foreign").warning("said", extra={"name_of_run": evil})
        written = capsys.readouterr().err
    finally:
        logging.getLogger().handlers[:] = before
        structlog.configure(**configured)

    lines = written.splitlines()
    assert len(lines) == 4, lines
    assert "\x1b" not in written
    assert "\x9b" not in written
    assert not any(line.lstrip().startswith('{"level"') for line in lines)


def test_a_path_reaches_the_log_on_one_line(world: World) -> None:
    answer = spoken(world, b"GET /v1/runs/a%0a%1b[31mforged HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    assert answer.split(b" ", 2)[1] == b"422"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_the_api_listens_on_loopback_alone_where_it_demands_no_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(Exposed, match="LUDUS_API__TOKEN"):
        serve_api(Settings(home=tmp_path, api={"host": host}))
