"""The pages' files: open to all, safe to show in a browser, cached for as long as they are right."""

import base64
import gzip
import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
from pydantic import ValidationError

from server.kit.listening import ApiSettings
from server.web.pages import MEDIA_TYPES, STATIC, Pages, pages
from tests.server.app.world import CARTPOLE, World, open_world

RELEASE = pages().release
ADDRESSES = [
    "/",
    "/ui",
    "/ui/",
    "/ui/runs",
    "/ui/runs/soccer-31",
    "/ui/runs/a%2Fb",
    "/ui/runs?keys=reward",
]


@pytest.fixture(scope="module", params=[None, "boss"], ids=["development", "with tokens"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("pages"), token=request.param) as world:
        yield world


def ask(world: World, target: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a request as it stands, without a token: httpx2 would resolve dot segments first."""
    connection = http.client.HTTPConnection(urlsplit(world.server).netloc, timeout=30)
    connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def named_in(page: str) -> list[str]:
    (import_map,) = re.findall(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    attributes = re.findall(r'<(?:link|script)[^>]* (?:href|src)="([^"]+)"', page)
    return [*attributes, *json.loads(import_map)["imports"].values()]


@pytest.mark.parametrize("prefix", ["", "/tools/ludus"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_finds_its_files_and_the_api_below_any_prefix(world: World, address: str, prefix: str) -> None:
    """A proxy that serves the pages below a prefix, and takes it away, is not known to the server."""
    answer, content = ask(world, address)
    page = content.decode()

    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    (base,) = re.findall(r'<base href="([^"]+)">', page)
    root = urljoin(f"https://proxy.example{prefix}{address}", base)
    assert root == f"https://proxy.example{prefix}/"
    for name in named_in(page):
        path = urlsplit(urljoin(root, name)).path.removeprefix(prefix)
        file, _ = ask(world, path)
        assert file.status == 200, name
        assert file.headers["content-type"] == MEDIA_TYPES[Path(path).suffix]
    assert "://" not in page, "an address of another server"


def test_a_proxy_may_pass_the_prefix_on(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss", api={"prefix": "/tools/ludus"}) as world:
        for path in ("/", "/ui/runs/x", "/version"):
            answer, content = ask(world, f"/tools/ludus{path}")
            assert (answer.status, content) == (200, ask(world, path)[1])
        run = world.http.post("/tools/ludus/v1/runs", json={"config": CARTPOLE}).json()["id"]
        assert world.http.get(f"/tools/ludus/v1/runs/{run}").json()["id"] == run
        for path in ("/tools/ludus/v1/runs", "/tools/ludus/ui/session", "/tools%2Fludus/v1/runs"):
            answer, _ = ask(world, path)
            assert answer.status == 401, path
        for path in ("/tools/ludus", "/tools/ludusx/ui", "/tools/ludus/tools/ludus/ui", "/tools/ludus//evil.example"):
            answer, _ = ask(world, path, Authorization="Bearer boss")
            assert (answer.status, answer.headers["location"]) == (404, None), path


@pytest.mark.parametrize("prefix", ["tools", "/tools/", "/to ols", "/a%2Fb", "//a", "/ä", "/a\n"])
def test_what_is_no_prefix_is_refused_by_name(prefix: str) -> None:
    with pytest.raises(ValidationError, match="prefix"):
        ApiSettings(prefix=prefix)


def test_every_module_that_is_imported_by_name_is_in_the_import_map() -> None:
    imported = {
        name for file in STATIC.rglob("*.js") for name in re.findall(r'\bfrom\s?"([@a-z][\w@/-]*)"', file.read_text())
    }
    (import_map,) = re.findall(
        r'<script type="importmap">(.*?)</script>', (STATIC / "index.html").read_text(), re.DOTALL
    )

    assert imported <= json.loads(import_map)["imports"].keys()


def test_a_page_is_asked_for_again_and_files_of_a_release_never(world: World) -> None:
    page, content = ask(world, "/ui/runs")
    file, _ = ask(world, f"/ui/static/{RELEASE}/app.js")

    assert page.headers["cache-control"] == "no-cache"
    assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
    for path, answer in (("/ui/runs", page), (f"/ui/static/{RELEASE}/app.js", file)):
        again, nothing = ask(world, path, If_None_Match=answer.headers["etag"])
        assert (again.status, nothing) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
    assert ask(world, "/ui/runs/x")[0].headers["etag"] != page.headers["etag"], "its base is another one"
    assert RELEASE.encode() in content


def test_a_change_of_any_file_is_another_release(tmp_path: Path) -> None:
    page = (STATIC / "index.html").read_text()
    (tmp_path / "vendor").mkdir()
    for name, content in (("index.html", page), ("app.js", "1"), ("vendor/x.js", "1")):
        (tmp_path / name).write_text(content)
    first = Pages(tmp_path).release

    (tmp_path / "vendor" / "x.js").write_text("2")
    second = Pages(tmp_path).release
    (tmp_path / "vendor" / "x.js").rename(tmp_path / "vendor" / "y.js")

    assert len({first, second, Pages(tmp_path).release}) == 3


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, gzip;q=0.8", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
    ],
)
def test_a_client_that_accepts_gzip_gets_it(world: World, accepted: str, compressed: bool) -> None:
    for path in ("/", f"/ui/static/{RELEASE}/vendor/uplot.js"):
        _, plain = ask(world, path)
        answer, content = ask(world, path, Accept_Encoding=accepted)

        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-encoding"] == ("gzip" if compressed else None)
        assert (gzip.decompress(content) if compressed else content) == plain
        assert len(content) == int(answer.headers["content-length"])


def test_head_answers_as_get_does_without_the_content(world: World) -> None:
    for path in ("/", "/ui/runs", f"/ui/static/{RELEASE}/style.css"):
        got, content = ask(world, path)
        answer, nothing = ask(world, path, "HEAD")

        assert (answer.status, nothing) == (200, b"")
        assert int(answer.headers["content-length"]) == len(content)
        assert answer.headers["etag"] == got.headers["etag"]


def test_nothing_is_sent_to_a_page(world: World) -> None:
    for path in ("/", "/ui", "/ui/runs"):
        answer, _ = ask(world, path, "POST", Authorization="Bearer boss")

        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize("address", ["/", "/ui/runs", f"/ui/static/{RELEASE}/app.js", f"/ui/static/{RELEASE}/icon.svg"])
def test_a_browser_frames_no_page_and_runs_no_script_but_the_pages_own(world: World, address: str) -> None:
    answer, _ = ask(world, address)
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))

    assert policy == {
        "default-src": "'none'",
        "script-src": policy["script-src"],
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    (script,) = re.findall(rb'<script type="importmap">(.*?)</script>', ask(world, "/")[1], re.DOTALL)
    assert policy["script-src"] == f"'self' 'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_no_page_has_scripts_or_styles_that_the_policy_forbids() -> None:
    page = (STATIC / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*(?:src=|importmap))", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "",
        "vendor",
        "vendor/",
        "vendor/README.md",
        "index.html",
        "../pages.py",
        "../../__init__.py",
        "%2e%2e/pages.py",
        "..%2fpages.py",
        "..%2f..%2f..%2fpyproject.toml",
        "..\\pages.py",
        "%5c..%5cpages.py",
        "vendor/../app.js",
        "./app.js",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "app.js%00",
        "app.js/",
        "APP.JS",
    ],
)
def test_only_files_of_the_release_are_sent_by_their_exact_names(world: World, path: str) -> None:
    answer, content = ask(world, f"/ui/static/{RELEASE}/{path}")

    assert answer.status == 404
    assert json.loads(content)["code"] == "route_not_found"


def test_files_of_another_release_are_not_sent(world: World) -> None:
    for path in (
        "/ui/static/0123456789abcdef/app.js",
        "/ui/static/RELEASE/app.js",
        f"/ui/static/{RELEASE.upper()}x/app.js",
    ):
        answer, _ = ask(world, path)
        assert answer.status == 404
        assert "immutable" not in (answer.headers["cache-control"] or "")


def test_an_address_that_is_too_deep_is_no_page(world: World) -> None:
    assert ask(world, "/ui" + "/x" * 16)[0].status == 200
    assert ask(world, "/ui" + "/x" * 17)[0].status == 404


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/ui",
        "//evil.example",
        "/ui//evil.example/",
        "/ui/https://evil.example",
        "/ui/%0d%0aX: y/",
        "/ui/session/",
    ],
)
def test_no_page_redirects(world: World, path: str) -> None:
    answer, _ = ask(world, path.replace(" ", "%20"))

    assert answer.status in {200, 404, 401}
    assert answer.headers["location"] is None
    assert answer.headers["refresh"] is None


def test_a_server_without_tokens_shows_pages_under_its_own_names_only(world: World) -> None:
    answer, _ = ask(world, "/", Host="evil.example")

    assert answer.status == (200 if world.services.settings.api.demands_token else 403)


def test_pages_say_nothing_about_the_project(world: World) -> None:
    """They are the same for every client, so that a cache may keep them."""
    token = {"Authorization": "Bearer boss"}

    for path in ("/", "/ui/runs", f"/ui/static/{RELEASE}/app.js"):
        own = httpx2.get(f"{world.server}{path}", headers=token)
        assert own.content == httpx2.get(f"{world.server}{path}").content
        assert "set-cookie" not in own.headers


def test_own_javascript_has_at_most_4950_lines_of_at_most_120_columns() -> None:
    own = [file for file in STATIC.rglob("*.js") if "vendor" not in file.relative_to(STATIC).parts]
    own.remove(STATIC / "meanings.js")  # docs/generate.py writes it
    lines = [(file.name, line) for file in own for line in file.read_text().splitlines()]

    assert 3000 < len(lines) <= 4950
    assert [f"{name}: {line}" for name, line in lines if len(line) > 120] == []
