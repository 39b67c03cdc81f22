"""The page at /docs works without the internet, and without a token, as the description that it shows."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.server.app.world import World, open_world

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module", params=[None, "boss"], ids=["development", "with tokens"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("docs"), token=request.param) as world:
        yield world


def ask(world: World, path: str) -> httpx2.Response:
    """Ask as a browser does: without a token."""
    return httpx2.get(f"{world.server}{path}", timeout=30)


@pytest.mark.long
def test_all_that_the_page_needs_comes_from_this_server_without_a_token(world: World) -> None:
    page = ask(world, "/docs")

    assert page.status_code == 200
    assert "://" not in re.sub(r"<!--.*?-->", "", page.text), "an address of somewhere else"
    named = re.findall(r"(?:src|href)=\"([^\"]+)\"|url: '([^']+)'", page.text)
    files = {first or second for first, second in named}
    assert files == {"docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png", "openapi.json"}
    for file in files:
        answer = ask(world, f"/{file}")
        assert answer.status_code == 200, file
        assert len(answer.content) > 1000, file


def test_the_browser_is_told_to_ask_nobody_else_and_to_run_no_other_script(world: World) -> None:
    policy = dict(
        each.strip().split(" ", 1) for each in ask(world, "/docs").headers["content-security-policy"].split(";")
    )

    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'self' 'sha256-[A-Za-z0-9+/]{43}='", policy["script-src"])
    assert not any("http" in sources or "*" in sources for sources in policy.values())


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("world", ["boss"], ids=["with tokens"], indirect=True)
def test_a_browser_shows_the_operations_without_a_word_to_anybody_else(world: World, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--log-net-log={log}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        f"{world.server}/docs",
    ]

    shown = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout

    assert shown.count('class="opblock ') > 50, shown[:2000]
    assert {"Create Run", "List Ladders"} <= set(re.findall(r'opblock-summary-description">([^<]+)<', shown))
    # The browser itself asks its maker for updates; what counts is what it asks for on behalf of the page.
    lines = (line.strip().rstrip(",") for line in log.read_text().splitlines() if '"initiator"' in line)
    asked = [json.loads(line)["params"] for line in lines]
    addresses = {each["url"] for each in asked if each["initiator"] == world.server and "url" in each}
    assert {urlsplit(address).path for address in addresses} >= {"/docs/swagger-ui-bundle.js", "/openapi.json"}
    assert {f"{urlsplit(address).scheme}://{urlsplit(address).netloc}" for address in addresses} == {world.server}
