"""Charts in use: zoom asks for finer points and outlives new ones, one follows, all share the cursor, nothing leaks."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect

from server.metrics.points import MetricPoint
from server.web.pages import pages
from tests.factories import make_checkpoint
from tests.server.app.world import CARTPOLE, Trainer, World, open_world
from tests.web.conftest import Watched
from tests.web.data import REWARD, play, train

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("charts")]

SUMMARIES = 2000
"""More than a chart has points for."""
TICK = 15_000
"""Milliseconds after which a live page surely asks again."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("charts")) as world:
        train(world, tmp_path_factory.mktemp("scratch"), summaries=SUMMARIES).finish()
        play(world)
        yield world


@pytest.fixture
def trainer(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trainer]:
    """Create a run that goes on while a page shows it."""
    trainer = train(world, tmp_path / "live", f"live-{request.node.name[:60]}", summaries=SUMMARIES)
    yield trainer
    trainer.finish()


@pytest.fixture
def fresh(browser: Browser, world: World) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    watched = Watched(context.new_page(), world.server)
    yield watched
    watched.page.unroute_all(behavior="ignoreErrors")  # what a test answers itself may be on its way
    context.close()
    assert watched.troubles == []


def of_series(answer: Response) -> bool:
    return "/v1/series" in answer.url and REWARD in parse_qs(urlsplit(answer.url).query)["keys"]


def drag(page: Page, first: float, last: float) -> None:
    """Drag over a part of the first chart, from and to a share of its width."""
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + first * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + last * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()


def zoom_into_the_second_quarter(page: Page) -> tuple[int, int]:
    """Zoom, check that finer points of that part come, and return the first and last step that were asked for."""
    with page.expect_response(of_series) as answer:
        drag(page, 0.25, 0.5)

    query = parse_qs(urlsplit(answer.value.url).query)
    first, last = int(query["from_step"][0]), int(query["to_step"][0])
    series = next(each for each in answer.value.json()["series"] if each["key"] == REWARD)
    whole = 100 * SUMMARIES
    assert 0.2 * whole < first < 0.3 * whole
    assert 0.45 * whole < last < 0.55 * whole
    assert max(series["counts"]) == 2, "500 summaries in 300 points, where 2000 were before"
    return first, last


def values(page: Page) -> list[list[str]]:
    """Return the table of values of the first chart."""
    rows = page.locator(".chart").first.locator(".values tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in rows]


def test_zooming_asks_the_server_for_finer_points_of_the_part(fresh: Watched) -> None:
    page = fresh.open("ui/runs/walker")
    page.locator(".chart canvas").first.wait_for()

    first, last = zoom_into_the_second_quarter(page)

    expect(page).to_have_url(re.compile(f"from={first}.*to={last}"))


@pytest.mark.parametrize("axis", ["time", "relative"])
def test_zooming_by_time_asks_for_finer_points_too(fresh: Watched, axis: str) -> None:
    page = fresh.open(f"ui/runs/walker?x={axis}")
    page.locator(".chart canvas").first.wait_for()

    zoom_into_the_second_quarter(page)

    page.reload()
    page.locator(".chart canvas").first.wait_for()
    page.get_by_title("Table of values").first.click()
    assert len(values(page)) > 140, "the address has the part in steps, too"
    page.get_by_role("button", name="Show everything").click()
    expect(page).to_have_url(re.compile(f"x={axis}$"))


def test_a_zoomed_chart_stays_where_it_is_when_new_points_come(fresh: Watched, trainer: Trainer) -> None:
    page = fresh.open(f"ui/runs/{trainer.run_id}?from=50000&to=100000")
    page.locator(".chart canvas").first.wait_for()
    page.get_by_title("Table of values").first.click()
    before = values(page)

    trainer.measure(REWARD, [1.0] * 50, first=100 * SUMMARIES + 100)
    for _ in range(2):
        with page.expect_response(of_series):
            pass

    assert values(page) == before
    assert page.url.endswith("?from=50000&to=100000")


def test_a_chart_whose_right_edge_shows_the_newest_point_follows(fresh: Watched, trainer: Trainer) -> None:
    page = fresh.open(f"ui/runs/{trainer.run_id}")
    page.locator(".chart canvas").first.wait_for()
    drag(page, 0.7, 1.0)
    expect(page).to_have_url(re.compile("follow=1"))
    page.get_by_title("Table of values").first.click()
    before = page.url

    trainer.measure(REWARD, [1.0] * 50, first=100 * SUMMARIES + 100)

    newest = f"{(100 * SUMMARIES + 5000) / 1000:g} k"
    expect(page.locator(".values tbody tr").last).to_contain_text(newest)
    assert page.url == before
    page.get_by_label("follow").uncheck()
    expect(page).not_to_have_url(re.compile("follow="))
    expect(page.locator(".values tbody tr").last).not_to_contain_text(newest)


def test_the_cursor_is_shared_by_all_charts_of_a_page(fresh: Watched) -> None:
    page = fresh.open("ui/runs/walker/charts")
    page.locator(".chart canvas").nth(2).wait_for()
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)

    places = page.evaluate("[...document.querySelectorAll('.u-cursor-x')].map((each) => each.style.transform)")
    assert len(places) >= 3
    assert len(set(places)) == 1
    assert "translate" in places[0]
    expect(page.locator(".tip:visible")).to_have_count(1)


def test_smoothing_shows_the_smoothed_value_and_keeps_the_raw_one(fresh: Watched) -> None:
    page = fresh.open("ui/runs/walker?smooth=0.9")
    page.locator(".chart canvas").first.wait_for()
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + 8, box["y"] + 60)

    expect(page.locator(".tip:visible")).to_contain_text("(raw ")


@pytest.mark.parametrize("view", ["", "?x=time", "?x=relative", "?log=1", "?clip=1&smooth=0.97&log=1"])
def test_a_chart_is_saved_as_csv_with_what_it_shows_and_as_png(fresh: Watched, tmp_path: Path, view: str) -> None:
    page = fresh.open(f"ui/runs/walker{view}")
    page.locator(".chart canvas").first.wait_for()

    with page.expect_download() as table:
        page.get_by_title("Save as CSV").first.click()
    with page.expect_download() as picture:
        page.get_by_title("Save as PNG").first.click()

    table.value.save_as(tmp_path / "chart.csv")
    rows = list(csv.DictReader((tmp_path / "chart.csv").read_text().splitlines()))
    assert len(rows) == 300
    assert all(float(row["CartPole low"]) <= float(row["CartPole"]) <= float(row["CartPole high"]) for row in rows)
    picture.value.save_as(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_chart_has_the_smoothed_values_and_a_table_says_which_rows_it_leaves_out(fresh: Watched) -> None:
    page = fresh.open("ui/runs/walker?smooth=0.9")
    page.locator(".chart canvas").first.wait_for()

    with page.expect_download() as table:
        page.get_by_title("Save as CSV").first.click()
    page.get_by_title("Table of values").first.click()

    rows = list(csv.DictReader(table.value.path().read_text().splitlines()))
    assert any(row["CartPole"] != row["CartPole smoothed"] for row in rows)
    expect(page.locator(".values caption").first).to_have_text("one row for 2 points; CSV has all")


def test_a_logarithmic_chart_without_a_value_above_0_says_so(fresh: Watched, trainer: Trainer) -> None:
    trainer.measure("Losses/Negative", [-1.0, -2.0])

    page = fresh.open(f"ui/runs/{trainer.run_id}/charts?log=1&keys=Negative")

    expect(page.locator("figure.chart")).to_contain_text("No value is above 0: a logarithmic axis shows none.")


def test_a_search_in_a_log_goes_on_in_its_earlier_parts(fresh: Watched, trainer: Trainer, tmp_path: Path) -> None:
    lines = b"needle\n" + b"".join(b"%0100d\n" % number for number in range(3000))
    trainer.write_log("trainer-long.log", lines, tmp_path)
    page = fresh.open(f"ui/runs/{trainer.run_id}/logs?log=1/trainer-long.log")
    expect(page.get_by_label("Log", exact=True).last).to_contain_text("2999")

    page.get_by_label("Search the log").fill("needle")
    expect(page.locator("main")).to_contain_text("0 lines")
    page.get_by_role("button", name="Search earlier lines").click()

    expect(page.locator("main")).to_contain_text("1 lines")
    page.get_by_label("Search the log").fill("")
    shown = page.locator("pre.log").inner_text().splitlines()
    assert [line for line in shown if line] == lines.decode().splitlines(), "nothing is left out in between"


def test_the_history_of_a_ladder_is_zoomed_by_matches_and_shown_by_steps(fresh: Watched) -> None:
    page = fresh.open("ui/runs/striker/opponents")
    page.locator(".chart canvas").wait_for()

    drag(page, 0.25, 0.75)
    expect(page).to_have_url(re.compile(r"range=[\d.]+%2C[\d.]+"))
    page.reload()
    page.locator(".chart canvas").wait_for()
    page.locator(".chart .u-over").dblclick()
    expect(page).not_to_have_url(re.compile("range="))
    page.get_by_label("x axis").select_option("step")
    page.get_by_title("Table of values").click()

    steps = [row[0] for row in values(page)]
    assert len(steps) == len(set(steps)) > 1
    expect(page.locator(".heat td small").first).to_have_text(re.compile(r"^\d+$"))


def test_pinned_charts_come_first_and_a_filter_leaves_the_others_out(fresh: Watched) -> None:
    page = fresh.open("ui/runs/walker/charts")
    chart = page.locator("figure.chart").filter(has=page.get_by_text("Policy/Entropy", exact=True))
    chart.get_by_title("Keep it first").click()

    expect(page.locator("figure.chart .title").first).to_have_text("Policy/Entropy")
    page.get_by_label("Filter of metrics (a regular expression)").fill("^Policy/")
    expect(page.locator("figure.chart")).to_have_count(1)
    expect(page).to_have_url(re.compile("pins=.*keys="))
    page.reload()
    expect(page.locator("figure.chart .title")).to_have_text(["Policy/Entropy"])
    page.get_by_label("Filter of metrics (a regular expression)").fill("(")
    expect(page.locator("main")).to_contain_text("this is no regular expression")


@pytest.mark.slow
def test_in_thirty_minutes_of_live_data_the_memory_of_a_page_hardly_grows(fresh: Watched, trainer: Trainer) -> None:
    page = fresh.page
    page.clock.install()
    page.goto(f"{fresh.server}/ui/runs/{trainer.run_id}/charts?from=50000&to=100000")
    page.locator(".chart canvas").first.wait_for()
    page.set_viewport_size({"width": 1440, "height": 500})
    page.evaluate("scrollTo(0, 40)")
    session = page.context.new_cdp_session(page)

    def heap() -> float:
        """Return the bytes that are in use, without those of an answer that is just being read."""
        found = []
        for _ in range(5):
            page.wait_for_timeout(100)
            session.send("HeapProfiler.collectGarbage")
            found.append(float(session.send("Runtime.getHeapUsage")["usedSize"]))
        return min(found)

    def live(seconds: int, first: int) -> None:
        for i in range(1000 * seconds // TICK):
            trainer.measure(REWARD, [float(i)], first=100 * (first + i))
            with page.expect_response(of_series):
                page.clock.run_for(TICK)

    # Everything has been loaded, and compiled where it runs often. What the browser keeps grows by 6 % in the first ten
    # minutes after that, and by 1 % in each ten later ones: a page that leaks grows on.
    live(900, SUMMARIES + 1)
    before, url = heap(), page.url
    live(1800, SUMMARIES + 1000)

    grown = heap() / before
    assert grown < 1.1, f"{before / 1e6:.1f} MB grew by {100 * (grown - 1):.0f} %"
    assert page.url == url, "the zoom is unchanged"
    assert page.evaluate("scrollY") == 40


@pytest.mark.parametrize(
    ("path", "label", "words", "shown"),
    [
        ("/timeline", "Search events", "checkpoint", "1 of"),
        ("/logs", "Search the log", "line 499", "1 lines"),
        ("/charts", "Filter of metrics (a regular expression)", "Entropy", "1 of 4 metrics"),
    ],
)
def test_what_a_reader_has_filtered_is_in_the_address_and_there_again(
    fresh: Watched, path: str, label: str, words: str, shown: str
) -> None:
    page = fresh.open(f"ui/runs/walker{path}")
    page.get_by_label(label).fill(words)
    expect(page.locator("main")).to_contain_text(shown)

    page.goto("about:blank")
    page.go_back()

    expect(page.get_by_label(label)).to_have_value(words)
    expect(page.locator("main")).to_contain_text(shown)


def test_a_run_that_continues_another_one_is_one_curve_with_it_and_both_have_a_link_to_the_other(
    fresh: Watched, world: World, tmp_path: Path
) -> None:
    first = train(world, tmp_path / "first", "first")  # it has a checkpoint at step 3000, and summaries up to 6000
    first.finish()
    settings = {"resume_from": world.http.get("/v1/runs/first/checkpoints/latest").json()["id"]}
    second = world.claim(world.create({**CARTPOLE, "checkpoint_settings": settings}, name="second")["id"]).start()
    second.measure(REWARD, [1000.0 + i for i in range(10)], first=3100)

    page = fresh.open("ui/runs/second")
    page.locator(".chart canvas").first.wait_for()
    expect(page.locator(".head")).to_contain_text(f"continues {first.run_id} from step 3 k")
    page.get_by_title("Table of values").first.click()
    shown = values(page)
    assert len(shown) == 40, "30 of the first, 10 of the second"
    assert [float(row[1].replace(",", "")) for row in shown[-10:]] == [1000.0 + i for i in range(10)]

    page.locator(".head").get_by_role("link", name=first.run_id).click()
    expect(page.locator(".head")).to_contain_text(f"continued by {second.run_id}")
    second.finish()

    fresh.open(f"ui/compare?runs={first.run_id},{second.run_id}")
    page.locator(".chart canvas").first.wait_for()
    page.get_by_title("Table of values").first.click()
    assert len(values(page)) == 60, "of both, at common steps"


def chain(world: World, names: str, count: int) -> list[Trainer]:
    """Begin runs of which each continues the one before, at its step 100, 200, ...."""
    trainers: list[Trainer] = []
    for number in range(count):
        settings: dict[str, object] = {}
        if trainers:
            path = f"runs/{trainers[-1].run_id}/1/checkpoints/{100 * number}"
            settings["resume_from"] = trainers[-1].ledger.checkpoints.add(make_checkpoint(100 * number, path=path))
        config = {**CARTPOLE, "checkpoint_settings": settings}
        trainers.append(world.claim(world.create(config, name=f"{names}-{number}")["id"]).start())
    return trainers


def test_the_page_of_a_run_shows_what_an_api_of_the_previous_release_answers_and_a_checkpoint_at_step_0(
    fresh: Watched, world: World
) -> None:
    first, second = chain(world, "older", 2)
    second.measure(REWARD, [1.0, 2.0], first=200)

    def answer(route: Route) -> None:
        document = route.fetch().json()
        if document["id"] == second.run_id:
            del document["continued_by"]
        else:
            document |= {"step": 0, "steps": {}}
        route.fulfill(json=document)

    fresh.page.route(re.compile("/v1/runs/(older-1$|[^/]*/checkpoints/ckpt_)"), answer)
    page = fresh.open("ui/runs/older-1")
    page.locator(".chart canvas").first.wait_for()

    expect(page.locator(".head small").filter(has_text="continues")).to_have_text(f"continues {first.run_id}")


def test_curves_with_too_many_predecessors_for_one_answer_come_in_several_or_alone(
    fresh: Watched, world: World
) -> None:
    keys = [f"key {number}" for number in range(80)]
    trainers = chain(world, "resumed", 3)
    for number, trainer in enumerate(trainers):
        step = 100 * (number + 1)
        points = [MetricPoint("CartPole", key, step, 1000.0, 1.0) for key in keys]
        points += [MetricPoint(f"behavior {index}", "many", step, 1000.0, 1.0) for index in range(80)]
        trainer.ledger.metrics.append(points)
    page = fresh.open("ui/runs")
    module = f"{fresh.server}/ui/static/{pages().release}/metrics.js"

    def steps(*keys: str) -> list[list[int]]:
        load = "async ([module, runs, keys]) => (await import(module)).curves(runs, keys, { points: 10 })"
        return [series["steps"] for series in page.evaluate(load, [module, [trainers[-1].run_id], keys])]

    assert steps(*keys) == [[100, 200, 300]] * 80
    assert steps("many") == [[300]] * 80
    assert all("422" in trouble for trouble in fresh.troubles), "the browser's words for an answer that is refused"
    assert len(fresh.troubles) == 2
    fresh.troubles.clear()
