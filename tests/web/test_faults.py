"""What a page says when an answer fails, is forbidden, is slow or never comes: a sentence with the next step."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect

from tests.server.app.world import World

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("faults")]

ENDPOINTS = {
    "": "/v1/runs",
    "ui/runs": "/v1/runs",
    "ui/runs/walker": "/v1/runs/walker",
    "ui/runs/walker/charts": "/v1/runs/*/metrics",
    "ui/runs/walker/models": "/v1/runs/*/checkpoints",
    "ui/runs/walker/simulators": "/v1/runs/*/simulators",
    "ui/runs/walker/logs": "/v1/runs/*/logs",
    "ui/runs/walker/config": "/v1/runs/*/amendments",
    "ui/runs/striker/opponents": "/v1/ladders/*/ratings",
    "ui/runs/gate": "/v1/runs/*/result",
    "ui/compare?runs=walker,walker-2": "/v1/runs:compare",
    "ui/experiments": "/v1/experiments",
    "ui/ladders": "/v1/ladders",
    "ui/models": "/v1/aliases",
    "ui/fleet": "/v1/workers",
    "ui/admin": "/v1/tokens",
    "ui/admin?part=webhooks": "/v1/webhooks",
    "ui/admin?part=audit": "/v1/audit",
}
"""Each page, and what it cannot do without."""
DETAIL = "The detail of the problem."


def problem(status: int, code: str) -> Callable[[Route], None]:
    body = {"status": status, "code": code, "detail": DETAIL, "request_id": "req-42"}
    return lambda route: route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(body))


FAULTS: dict[str, tuple[Callable[[Route], None], list[str]]] = {
    "failed": (problem(500, "internal"), [DETAIL, "tries again by itself", "req-42"]),
    "forbidden": (problem(403, "scope_missing"), ["token"]),
    "too often": (problem(429, "too_many_requests"), [DETAIL, "Wait a moment"]),
    "unreachable": (lambda route: route.abort(), ["The server does not answer.", "Is the server running"]),
    "no JSON": (lambda route: route.fulfill(status=502, body="<html>Bad gateway</html>"), ["The server answered 502"]),
}


@contextmanager
def unbroken(page: Page) -> Iterator[Page]:
    """Fail if a script of the page breaks, whatever the server answers."""
    errors: list[str] = []

    def note(error: Error) -> None:
        errors.append(str(error))

    page.on("pageerror", note)
    yield page
    page.remove_listener("pageerror", note)
    assert errors == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    with unbroken(context.new_page()) as page:
        yield page
        context.close()


@pytest.fixture(scope="module")
def kept_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def shared_page(kept_page: Page) -> Iterator[Page]:
    """Return the page of all tests that only load an address: a new page takes longer than such a test."""
    with unbroken(kept_page) as page:
        yield page
        page.goto("about:blank")  # nothing of this test goes on in the next one
        page.unroute_all()


EVERYWHERE = ("failed", "forbidden")
SOMEWHERE = ("", "ui/runs/walker/models", "ui/compare?runs=walker,walker-2")
"""Pages on which all faults are tried: one place in the source makes the sentences of all of them."""


@pytest.mark.parametrize(
    ("path", "fault"),
    [(path, fault) for path in ENDPOINTS for fault in FAULTS if path in SOMEWHERE or fault in EVERYWHERE],
)
def test_a_page_says_what_went_wrong_and_what_to_do(shown: World, shared_page: Page, path: str, fault: str) -> None:
    answer, words = FAULTS[fault]
    shared_page.route(lambda url: matches(ENDPOINTS[path], url), answer)

    shared_page.goto(f"{shown.server}/{path}")

    for word in words:
        expect(shared_page.locator("main .note, main .empty").filter(has_text=word).first).to_be_visible()


def matches(pattern: str, url: str) -> bool:
    """Whether an address is of this path. `*` stands for one segment."""
    path = "/" + url.split("?", maxsplit=1)[0].split("/", 3)[3]
    wanted, given = pattern.split("/"), path.split("/")
    return len(wanted) == len(given) and all(one in {"*", other} for one, other in zip(wanted, given, strict=True))


def test_a_page_is_there_again_when_the_server_answers_again(shown: World, page: Page) -> None:
    page.route(lambda url: matches("/v1/runs", url), problem(500, "internal"), times=2)
    page.goto(f"{shown.server}/ui/runs")

    expect(page.get_by_role("link", name="walker", exact=True)).to_be_visible()
    expect(page.locator(".note")).to_have_count(0)


def test_what_is_on_a_page_stays_while_the_server_does_not_answer(shown: World, page: Page) -> None:
    page.goto(f"{shown.server}/ui/runs")
    page.get_by_role("link", name="walker", exact=True).wait_for()
    page.get_by_label("Select walker", exact=True).check()

    page.route("**/v1/**", lambda route: route.abort())

    expect(page.locator(".note")).to_contain_text("The server does not answer")
    expect(page.get_by_role("link", name="walker", exact=True)).to_be_visible()
    expect(page.get_by_label("Select walker", exact=True)).to_be_checked()


def test_a_slow_answer_is_told_of_and_waited_for(shown: World, page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.clock.install()
    page.route(lambda url: matches("/v1/runs", url), hold)
    page.goto(f"{shown.server}/ui/runs")
    page.get_by_role("heading", name="Runs").wait_for()
    expect(page.locator("main")).to_contain_text("Loading …")

    page.clock.run_for(6_000)
    expect(page.locator("main")).to_contain_text("The server takes long to answer.")
    assert len(held) == 1, "a slow server is not asked twice"

    held[0].continue_()
    expect(page.get_by_role("link", name="walker", exact=True)).to_be_visible()


def test_a_part_that_cannot_be_loaded_is_told_of(shown: World, page: Page) -> None:
    page.route("**/pages/fleet.js", lambda route: route.abort())
    page.goto(f"{shown.server}/")

    page.get_by_role("link", name="Fleet").click()

    expect(page.locator(".note")).to_contain_text("Load the page again")


def test_a_page_waits_for_a_server_that_does_not_say_who_one_is(shown: World, page: Page) -> None:
    page.route(lambda url: matches("/v1/tokens/self", url), problem(500, "internal"), times=2)
    page.goto(f"{shown.server}/ui/fleet")

    expect(page.get_by_role("alert")).to_contain_text(DETAIL)
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()


@pytest.mark.parametrize("path", ["ui/runs/%zz", "ui/compare?runs=%25", "ui/runs?pages=nonsense"])
def test_a_damaged_address_shows_a_page_that_says_so(shown: World, page: Page, path: str) -> None:
    page.goto(f"{shown.server}/{path}")

    expect(page.locator("main .note").first).to_be_visible()


def test_the_mark_says_that_the_server_is_gone_on_pages_without_a_stream_too(shown: World, page: Page) -> None:
    page.goto(f"{shown.server}/ui/fleet")
    expect(page.locator(".freshness")).to_have_text("live")

    page.route("**/v1/**", lambda route: route.abort())
    expect(page.locator(".freshness")).to_contain_text("disconnected since")

    page.unroute_all()
    expect(page.locator(".freshness")).to_have_text("live")
