"""The pages without a mouse: shortcuts, and everything else by the Tab key; and for people whom motion disturbs."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.app.world import World
from tests.web.conftest import Watched

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("keyboard")]


@pytest.fixture(scope="module")
def world(shown: World) -> World:
    return shown


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until something has the focus."""
    wanted = page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]  # a role of ARIA
    for _ in range(120):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {role} {name}")


@pytest.mark.parametrize(
    ("letter", "heading"),
    [("n", "Now"), ("r", "Runs"), ("l", "Ladders"), ("m", "Models"), ("f", "Fleet"), ("a", "Admin")],
)
def test_g_and_a_letter_goes_to_a_page(watched: Watched, letter: str, heading: str) -> None:
    page = watched.open("ui/new")
    page.get_by_role("heading", name="New run").click()

    press(page, "g", letter)

    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()


def test_the_table_of_runs_is_walked_selected_compared_and_opened_by_keys(watched: Watched) -> None:
    page = watched.open("ui/runs")
    page.locator("tbody tr").nth(2).wait_for()

    press(page, "j", "j", "x", "k", "x")
    expect(page.locator('tbody tr[aria-selected="true"]')).to_have_count(2)
    press(page, "c")
    expect(page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()
    page.go_back()
    page.locator("tbody tr").nth(2).wait_for()
    first = page.locator("tbody tr td.name a").first.inner_text()
    press(page, "j", "Enter")

    expect(page.get_by_role("heading", name=first, level=1)).to_be_visible()


def test_the_keys_of_charts_change_the_view_and_the_address(watched: Watched) -> None:
    page = watched.open("ui/runs/walker?from=1000&to=3000")
    page.locator("canvas").first.wait_for()

    for key, has in (
        ("s", "smooth=0.6"),
        ("l", "log=1"),
        ("f", "follow=1"),
        ("t", "x=time"),
    ):
        press(page, key)
        expect(page).to_have_url(re.compile(re.escape(has)))
    press(page, "t", "t")
    expect(page).not_to_have_url(re.compile("x="))


def test_a_question_mark_lists_the_keys_of_the_page_and_escape_closes_the_list(watched: Watched) -> None:
    page = watched.open("ui/runs/walker")
    page.locator("canvas").first.wait_for()

    press(page, "?")

    keys = page.get_by_role("dialog").locator("kbd").all_inner_texts()
    assert {"s", "l", "t", "f", "Esc", "/", "?"} <= set(keys)
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_slash_searches_and_letters_in_a_field_are_no_shortcuts(watched: Watched) -> None:
    page = watched.open("ui/runs")
    page.locator("tbody tr").first.wait_for()

    press(page, "/")
    page.keyboard.type("grx?")

    expect(page.get_by_label("Name begins with")).to_have_value("grx?")
    assert page.url.endswith("/ui/runs")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_run_is_opened_paused_and_left_by_tab_and_enter_alone(watched: Watched, shown: World) -> None:
    page = watched.open("ui/runs")
    page.locator("tbody tr").first.wait_for()

    tab_to(page, "link", "striker")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="striker")).to_be_visible()
    tab_to(page, "button", "Pause")
    press(page, "Enter")
    expect(page.get_by_role("alert")).to_contain_text("saves a checkpoint")
    assert shown.http.get("/v1/runs/striker").json()["intent"] == "pause"
    tab_to(page, "button", "Cancel …")
    press(page, "Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    inside = page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    assert inside, "the focus is in the dialog"
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_first_tab_is_a_link_to_the_content(watched: Watched) -> None:
    page = watched.open("ui/runs")
    page.evaluate("document.activeElement.blur()")

    tab_to(page, "link", "Skip to the content")

    press(page, "Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_arrows_move_the_cursor_of_a_chart_and_the_values_are_told(watched: Watched) -> None:
    page = watched.open("ui/runs/walker")
    page.locator("canvas").first.wait_for()
    page.locator(".drawing").first.focus()

    press(page, "ArrowRight", "ArrowRight")
    first = page.locator(".tip").first.inner_text()
    press(page, "ArrowRight")

    expect(page.locator(".tip").first).not_to_have_text(first)
    assert first


def test_nothing_moves_for_people_who_want_less_motion(browser: Browser, shown: World) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{shown.server}/ui/runs/walker")
    page.locator("canvas").first.wait_for()

    moving = """[...document.querySelectorAll("*")].filter((each) => {
        const style = getComputedStyle(each);
        return parseFloat(style.transitionDuration) > 0 || style.animationName !== "none";
    }).length"""
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moving) > 0, "the check would not notice motion"
    context.close()
