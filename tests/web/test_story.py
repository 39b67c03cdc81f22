"""A whole story, as a person has it in a browser: from signing in to a link for somebody else."""

import re
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
from playwright.sync_api import Browser, Page, expect

from ludus.client import Client
from tests.e2e.stack import LudusUp, Player, cartpole

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("story")]

TOKEN = "a-token-for-the-story"
SECONDS = 60_000.0
"""How long the browser waits for something, in milliseconds: a trainer starts in between."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    up = LudusUp(tmp_path_factory.mktemp("story"), LUDUS_API__TOKEN=TOKEN)
    yield up
    up.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    yield page
    context.close()


def state(page: Page, word: str) -> None:
    """Wait until the run's page says that it is in a state."""
    expect(page.locator(".head .state")).to_contain_text(word, timeout=SECONDS)


def rows(page: Page) -> int:
    """Return how many rows the table of the first chart has."""
    return page.locator(".chart .values tbody tr").count()


def test_a_person_trains_an_agent_in_the_browser(
    stack: LudusUp, page: Page, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # signs in: first with a token that is none
    page.goto(stack.api)
    page.get_by_label("Token").fill("nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Now")).to_be_visible()

    # creates a run from a preset with a mistake in it, which is shown at its line, and corrects it
    page.get_by_role("link", name="New run").click()
    page.get_by_label("Begin with").select_option(label="cartpole")
    editor = page.get_by_label("Configuration (YAML)")
    expect(editor).to_have_value(re.compile("max_steps: 100000"))
    preset = editor.input_value()
    wrong = preset.replace("max_steps: 100000", "max_steps: many")
    line = wrong[: wrong.index("max_steps: many")].count("\n") + 1
    editor.fill(wrong)
    expect(page.get_by_role("alert")).to_contain_text(f"line {line}:")
    expect(page.locator(".gutter .bad")).to_have_text(f"● {line}")
    expect(page.get_by_role("button", name="Start the run")).to_be_disabled()
    endless = preset.replace("max_steps: 100000", "max_steps: 100000000").replace(
        "summary_freq: 2000", "summary_freq: 500"
    )
    editor.fill(endless)
    expect(page.get_by_role("status").filter(has_text="valid")).to_be_visible()
    page.get_by_label("Name").fill("story")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="story")).to_be_visible()

    # simulators connect, and the chart grows
    player = Player(stack, "story")
    request.addfinalizer(player.kill)
    state(page, "RUNNING")
    page.locator(".chart canvas").first.wait_for()
    page.get_by_title("Table of values").first.click()
    expect(page.locator(".chart .values tbody tr").nth(5)).to_be_visible()
    before = rows(page)
    expect(page.locator(".chart .values tbody tr").nth(before + 2)).to_be_visible()
    page.get_by_title("Table of values").first.click()

    # zooms: the address has the window, new data leave it as it is, Escape shows everything again
    canvas = page.locator(".chart .u-over").first
    canvas.wait_for()
    page.evaluate("scrollTo(0, 0)")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d"))
    zoomed = page.url
    with page.expect_response(lambda answer: "/v1/series" in answer.url):
        pass
    with page.expect_response(lambda answer: "/v1/series" in answer.url):
        pass
    assert page.url == zoomed
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("from="))

    # pauses, resumes, stops
    page.get_by_role("button", name="Pause").click()
    state(page, "PAUSED")
    page.get_by_role("button", name="Resume").click()
    state(page, "RUNNING")
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("button", name="Stop it").click()
    state(page, "STOPPED")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".timeline")).to_contain_text("pause requested by configured token")

    # downloads the model
    page.get_by_role("link", name="Overview").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CartPole.onnx").click()
    model = tmp_path / "CartPole.onnx"
    download.value.save_as(model)
    assert onnxruntime.InferenceSession(model).get_inputs()

    # compares two runs
    with Client(stack.api, TOKEN) as client:
        second = client.runs.create(cartpole(2000), name="second")
        request.addfinalizer(Player(stack, "second").kill)
        client.runs.wait(second.id, timeout=60)
    page.get_by_role("link", name="Runs").click()
    page.get_by_label("Select story").check()
    page.get_by_label("Select second").check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()
    expect(page.locator(".chart .legend").first).to_contain_text("second")

    # shares a link that shows the run and can do nothing else
    page.goto(f"{stack.api}/ui/runs/story")
    page.get_by_role("button", name="Share …").click()
    page.get_by_role("button", name="Make the link").click()
    link = page.get_by_label("Link", exact=True).input_value()
    guest = browser.new_context().new_page()
    guest.goto(link)
    expect(guest.get_by_role("heading", name="story")).to_be_visible(timeout=SECONDS)
    assert "#" not in guest.url
    assert guest.get_by_role("button", name="Delete …").count() == 0
    assert guest.get_by_role("navigation", name="Pages").count() == 0
    refused = guest.evaluate("async () => (await fetch('/v1/runs')).status")
    assert refused == 403
    guest.context.close()
