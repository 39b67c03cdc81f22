"""Signing in and out in a browser, links for others, and what a page does when its token is revoked."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.app.world import CARTPOLE, World, open_world
from tests.web.conftest import TOKEN, made, sign_in
from tests.web.data import train

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("sessions")]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("guarded"), token=TOKEN) as world:
        train(world, tmp_path_factory.mktemp("scratch"))
        yield world


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_after_signing_in_the_page_is_there_that_was_asked_for(guarded: World, page: Page) -> None:
    sign_in(page, guarded, path="ui/runs/walker/charts?smooth=0.6")

    expect(page.get_by_role("heading", name="walker")).to_be_visible()
    assert page.url.endswith("/ui/runs/walker/charts?smooth=0.6")


@pytest.mark.parametrize("next_", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_nobody_is_sent_elsewhere_after_signing_in(guarded: World, page: Page, next_: str) -> None:
    sign_in(page, guarded, path=f"ui/login?next={next_}")

    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    assert page.url.startswith(guarded.server)


def test_after_signing_out_nothing_is_shown_not_even_by_going_back(guarded: World, page: Page) -> None:
    sign_in(page, guarded, path="ui/runs/walker")
    expect(page.get_by_role("heading", name="walker")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.go_back()

    expect(page.get_by_label("Token")).to_be_visible()
    assert page.get_by_role("heading", name="walker").count() == 0
    assert page.context.cookies() == []


def test_the_address_names_the_chosen_project_and_files_come_from_it(
    guarded: World, page: Page, browser: Browser, tmp_path: Path
) -> None:
    other = guarded.http.post("/v1/runs", json={"config": CARTPOLE, "name": "bot"}, headers={"Ludus-Project": "bots"})
    trainer = guarded.claim(other.json()["id"]).start()
    trainer.save(700, {"CartPole.onnx": b"of the bots"}, tmp_path)
    sign_in(page, guarded)
    page.get_by_role("button", name="project default").click()
    page.get_by_role("textbox", name="Project").fill("bots")
    page.get_by_role("button", name="Show it").click()
    page.get_by_role("link", name="bot", exact=True).click()
    expect(page.get_by_role("heading", name="bot")).to_be_visible()

    with page.expect_download() as model:
        page.get_by_role("link", name="Download CartPole.onnx").click()

    assert model.value.path().read_bytes() == b"of the bots"
    page.get_by_role("button", name="project bots").wait_for()
    again = page.context.new_page()
    again.goto(page.url)
    expect(again.get_by_role("heading", name="bot")).to_be_visible()
    bound = made(guarded, name="of-default", scopes=["read"], project="default")
    stranger = browser.new_context().new_page()
    sign_in(stranger, guarded, bound["token"], page.url.removeprefix(f"{guarded.server}/"))
    expect(stranger.locator("main .note")).to_contain_text("It may have been deleted, or it belongs to another project")
    stranger.goto(page.url)
    expect(stranger.get_by_role("alert")).to_contain_text("is bound to project 'default'")
    stranger.context.close()


def test_scripts_cannot_read_the_cookie(guarded: World, page: Page) -> None:
    sign_in(page, guarded)
    expect(page.get_by_role("heading", name="Now")).to_be_visible()

    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_a_page_whose_token_is_revoked_asks_to_sign_in_again(guarded: World, page: Page) -> None:
    token = made(guarded, name="short", scopes=["read"])
    sign_in(page, guarded, token["token"], "ui/runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()

    guarded.http.delete(f"/v1/tokens/{token['id']}").raise_for_status()

    expect(page.get_by_label("Token")).to_be_visible()
    page.wait_for_timeout(2000)
    assert "/ui/login?next=" in page.url, "it stays there"
    expect(page.get_by_label("Token")).to_be_visible()


def test_without_the_scope_a_button_is_not_there(guarded: World, page: Page) -> None:
    token = made(guarded, name="reader", scopes=["read"])
    sign_in(page, guarded, token["token"], "ui/runs/walker")
    expect(page.get_by_role("heading", name="walker")).to_be_visible()

    for name in ("Pause", "Stop …", "Cancel …", "Set …", "Checkpoint now", "Share …", "Branch …"):
        assert page.get_by_role("button", name=name).count() == 0, name
    assert page.get_by_role("link", name="New run").count() == 0
    assert page.get_by_role("link", name="Admin").count() == 0


def test_a_link_for_one_run_shows_it_and_nothing_else(guarded: World, page: Page) -> None:
    run = guarded.http.get("/v1/runs/walker").json()["id"]
    token = made(guarded, name="link", scopes=["read"], run=run, expires_in_seconds=3600)

    page.goto(f"{guarded.server}/ui/share#{token['token']}")

    expect(page.get_by_role("heading", name="walker")).to_be_visible()
    assert page.url == f"{guarded.server}/ui/runs/{run}"
    page.locator(".chart canvas").first.wait_for()
    for path in ("/v1/runs", "/v1/tokens", "/v1/aliases", "/v1/events:stream"):
        assert page.evaluate("async (path) => (await fetch(path)).status", path) == 403, path


def test_a_link_that_holds_no_longer_says_so(guarded: World, page: Page) -> None:
    run = guarded.http.get("/v1/runs/walker").json()["id"]
    token = made(guarded, name="old-link", scopes=["read"], run=run)
    guarded.http.delete(f"/v1/tokens/{token['id']}").raise_for_status()

    page.goto(f"{guarded.server}/ui/share#{token['token']}")

    expect(page.get_by_role("alert")).to_contain_text("ask for a new one")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """Serve a folder at another port of this host: for cookies it is the same site, for the server another origin."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_another_site_cannot_act_with_the_session(guarded: World, page: Page, tmp_path: Path, elsewhere: str) -> None:
    sign_in(page, guarded)
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    form = f'<form method="post" enctype="text/plain" action="{guarded.server}/v1/runs/walker:cancel"></form>'
    (tmp_path / "evil.html").write_text(form)

    for address in (f"{elsewhere}/evil.html", (tmp_path / "evil.html").as_uri()):
        page.goto(address)
        page.evaluate("document.forms[0].submit()")
        page.wait_for_url(f"{guarded.server}/**")

        run = guarded.http.get("/v1/runs/walker").json()
        assert (run["state"], run["intent"]) == ("RUNNING", None)
