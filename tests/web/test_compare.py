"""Compare: a hundred long runs at once stay quick; groups have means and bands; what differs is shown."""

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import insert

from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, Points
from server.runs.models import Run
from tests.server.app.world import CARTPOLE, World, open_world
from tests.web.data import REWARD

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("compare")]

RUNS, SUMMARIES = 100, 10_000
YARDSTICK = """() => {
    const values = Float64Array.from({length: 200_000}, (_, index) => (index * 7919) % 200_003);
    let text = "";
    for (let round = 0; round < 4; round++) text = JSON.stringify(Array.from(values.slice().sort()));
    return JSON.parse(text).length;
}"""
"""A fixed piece of work for a page, by which the speed of a machine is known."""
YARDSTICK_SECONDS = 0.13
"""It takes so long on the 2-core machine where the first chart was there in less than a second (2026-11-24, idle)."""
KEYS = (REWARD, "Environment/Episode Length", "Policy/Entropy", "Losses/Value Loss")


def chunks(run: str, key: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, Any]]:
    """Return the rows of a metric's history."""
    steps = 1000 * np.arange(1, len(values) + 1)
    history = Points(steps, 1e9 + steps / 100, values)
    rows = []
    for number, start in enumerate(range(0, len(values), CHUNK_POINTS)):
        part = history[start : start + CHUNK_POINTS]
        columns = dict(zip(("steps", "times", "values"), part.pack(), strict=True))
        place = {"run_id": run, "behavior": "CartPole", "key": key, "attempt": 1, "number": number}
        ends = {"count": len(part), "first_step": int(part.steps[0]), "last_step": int(part.steps[-1])}
        rows.append({**place, **ends, **columns})
    return rows


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A hundred runs of ten thousand summaries: four settings of the learning rate, 25 seeds of each."""
    draw = np.random.default_rng(1)
    with open_world(tmp_path_factory.mktemp("long")) as world:
        section = world.http.get(f"/v1/runs/{world.create(CARTPOLE)['id']}").json()["config"]["behaviors"]["CartPole"]
        runs, latest, history = [], [], []
        for number in range(RUNS):
            name = f"long-{number:03d}"
            learning = {**section["hyperparameters"], "learning_rate": 1e-4 * (1 + number % 4)}
            config = {"behaviors": {"CartPole": {**section, "hyperparameters": learning}}, "seed": number}
            common = {"kind": "train", "state": "SUCCEEDED", "seed": number, "stored_updated_at": 1e9}
            tags = [f"rate-{number % 4}"]
            runs.append(
                {**common, "id": name, "name": name, "config": config, "tags": tags, "created_at": 1e9 + number}
            )
            for key in KEYS:
                values = number % 4 + np.cumsum(draw.standard_normal(SUMMARIES)) / 100
                history += chunks(name, key, values)
                place = {"run_id": name, "behavior": "CartPole", "key": key}
                latest.append({**place, "step": 1000 * SUMMARIES, "value": float(values[-1]), "at": 1e9})
        with world.services.database.write() as session:
            for model, rows in ((Run, runs), (LatestMetric, latest), (MetricChunk, history)):
                session.execute(insert(model), rows)
        yield world


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield context.new_page()
    context.close()


def address(world: World, runs: int = RUNS) -> str:
    return f"{world.server}/ui/compare?runs={','.join(f'long-{number:03d}' for number in range(runs))}"


def test_a_hundred_runs_of_ten_thousand_summaries_show_their_first_chart_within_a_second(
    long: World, page: Page
) -> None:
    """On a machine that is as quick as the one where the second was measured: a slower one has as much more time.

    The best of several times counts: a busy machine is no reason to fail.
    """
    page.evaluate(YARDSTICK)  # compiles it
    took = []
    for _ in range(20):
        page.goto("about:blank")
        began = time.monotonic()
        page.evaluate(YARDSTICK)
        slowness = max((time.monotonic() - began) / YARDSTICK_SECONDS, 1.0)
        began = time.monotonic()
        page.goto(address(long))
        page.locator("canvas").first.wait_for()
        took.append((time.monotonic() - began) / slowness)
        if took[-1] < 1.0:
            break
        expect(page.locator("canvas")).to_have_count(4)

    assert min(took) < 1.0, took


def test_the_cursor_over_a_hundred_curves_has_fifty_frames_per_second_and_ten_rows(long: World, page: Page) -> None:
    page.goto(address(long))
    expect(page.locator("canvas")).to_have_count(4)
    page.evaluate("window.frames = 0; const count = () => { frames++; requestAnimationFrame(count); }; count()")
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None

    rates = []
    for _ in range(8):
        before, began, moves = page.evaluate("frames"), time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            moves += 1
            page.mouse.move(box["x"] + 20 + 7 * moves % (box["width"] - 40), box["y"] + 30 + moves % 100)
        rates.append((page.evaluate("frames") - before) / (time.monotonic() - began))
        if rates[-1] >= 50:
            break

    assert max(rates) >= 50, rates
    rows = page.locator(".tip:visible div")
    assert 1 <= rows.count() <= 10
    expect(page.locator(".tip:visible")).to_contain_text(f"nearest 10 of {RUNS}")


def test_the_memory_of_a_comparison_of_a_hundred_runs_stays_below_150_megabytes(long: World, page: Page) -> None:
    page.goto(address(long))
    expect(page.locator("canvas")).to_have_count(4)
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")

    usage = session.send("Runtime.getHeapUsage")

    used = usage["usedSize"] + usage.get("backingStorageSize", 0)
    assert 1e6 < used < 150e6, f"{used / 1e6:.0f} MB"


def test_groups_by_all_but_the_seed_are_interquartile_means_with_a_band(long: World, page: Page) -> None:
    page.goto(address(long))
    page.locator("canvas").first.wait_for()

    page.get_by_label("group by").select_option(label="all but the seed")

    expect(page.get_by_role("heading", level=1)).to_have_text("Compare 100 runs, groups: 4")
    legend = page.locator(".chart .legend").first
    expect(legend).to_contain_text("hyperparameters.learning_rate=0.0002 (n = 25)")
    expect(legend).to_contain_text("interquartile mean of the runs, band: its 95 % interval")
    rows = page.locator("section.card tbody tr")
    expect(rows).to_have_count(4)
    for row in rows.all():
        numbers = re.search(r"(\S+) \[(\S+), (\S+)\]", row.inner_text())
        assert numbers, row.inner_text()
        middle, low, high = (float(number.replace("−", "-")) for number in numbers.groups())
        assert low < middle < high
    expect(page.locator("section.card thead")).to_contain_text("hyperparameters.learning_rate")
