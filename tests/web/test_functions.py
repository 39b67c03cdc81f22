"""Pure functions of the pages, called in the browser that runs them."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from ludus.statistics import as_scores, interquartile_mean, interval
from server.web.pages import pages
from tests.server.app.world import World
from tests.web.conftest import Watched

pytestmark = pytest.mark.browser

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def watched(browser: Browser, world: World) -> Iterator[Watched]:
    """Open one page for all tests: what they call leaves nothing behind."""
    watched = Watched(browser.new_page(), world.server)
    watched.open("ui/models")
    yield watched
    watched.page.close()
    assert watched.troubles == []


@pytest.fixture(scope="module")
def call(watched: Watched) -> Call:
    """Return a function that calls `MODULE.FUNCTION` with JSON values."""
    page = watched.page

    def call(name: str, *arguments: object) -> Any:
        module, _, function = name.partition(".")
        address = f"{watched.server}/ui/static/{pages().release}/{module}.js"
        return page.evaluate(
            "async ([address, name, given]) => (await import(address))[name](...given)", [address, function, arguments]
        )

    return call


def test_counts_have_three_digits_and_a_unit(call: Call) -> None:
    given = [0, 950, 999.6, 1234, 99_949, 4_100_000, 2e9, -1500, None]

    assert [call("format.count", each) for each in given] == [
        *("0", "950", "1 k", "1.2 k", "99.9 k", "4.1 M", "2 G", "−1.5 k", "–")
    ]


def test_measured_values_have_four_digits(call: Call) -> None:
    given = [0, 0.5, 499.96, 12345.678, 1e-7, -0.25, 3e8, None]

    assert [call("format.number", each) for each in given] == [
        *("0", "0.5", "500", "12345.7", "1.00e−7", "−0.25", "3.00e+8", "–")
    ]


def test_durations_have_their_two_largest_units(call: Call) -> None:
    assert [call("format.duration", each) for each in (0, 59, 3600, 5400, 90_061)] == [
        *("0 s", "59 s", "1 h", "1 h 30 min", "1 d 1 h")
    ]


def test_characters_that_hide_or_reorder_text_are_shown_as_such(call: Call) -> None:
    assert call("format.plain", "a\u202eb\x07c\nd") == "a\ufffdb\ufffdc\nd"
    assert call("format.plain", "x" * 300, 200) == "x" * 200 + "…"


def test_a_group_is_the_interquartile_mean_of_its_runs_with_a_band_inside_of_their_range(call: Call) -> None:
    members = [
        {"values": [1.0, 4.0, None], "smoothed": None, "counts": [1, 1, 0]},
        {"values": [3.0, 4.0, 7.0], "smoothed": None, "counts": [1, 2, 1]},
        {"values": [5.0, 4.0, None], "smoothed": None, "counts": [1, 1, 0]},
    ]

    found = call("series.group", "lr 3e-4", members)

    assert found["label"] == "lr 3e-4 (n = 3)"
    assert found["values"] == [3, 4, 7]
    assert found["low"] == pytest.approx([5 / 3, 4, 7], abs=0.7)
    assert found["high"] == pytest.approx([13 / 3, 4, 7], abs=0.7)
    assert (found["low"][0] >= 1, found["high"][0] <= 5) == (True, True)
    assert found["counts"] == [3, 4, 1]


@pytest.mark.parametrize("runs", [2, 5, 10, 40])
def test_the_interval_of_a_page_is_that_of_the_statistics_and_never_leaves_the_numbers(call: Call, runs: int) -> None:
    values = [500.0 - 100.0 * (number % 7 == 0) - number for number in range(runs)]
    expected = interval(values, interquartile_mean)
    assert expected is not None

    found = call("series.interval", values)

    assert found["mean"] == pytest.approx(float(interquartile_mean(as_scores(values))))
    assert [found["low"], found["high"]] == pytest.approx(list(expected), abs=0.15 * float(expected[1] - expected[0]))
    assert min(values) <= found["low"] <= found["mean"] <= found["high"] <= max(values)


def test_one_number_has_no_interval_and_none_has_no_mean(call: Call) -> None:
    assert call("series.interval", [2.0, None]) == {"n": 1, "mean": 2, "low": None, "high": None}
    assert call("series.interval", []) == {"n": 0, "mean": None, "low": None, "high": None}


def curve(values: Sequence[float | None]) -> dict[str, Any]:
    return {"label": "", "values": values, "low": values, "high": values, "smoothed": None, "counts": [1] * len(values)}


def test_the_range_of_y_leaves_out_outliers_if_asked_and_what_a_logarithm_does_not_have(call: Call) -> None:
    values = [float(number) for number in range(100)] + [1e6, -1e6]

    assert call("series.rangeOf", [curve(values)]) == [-1e6, 1e6]
    low, high = call("series.rangeOf", [curve(values)], {"clip": True})
    assert (-20 < low < 5, 95 < high < 120) == (True, True)
    assert call("series.rangeOf", [curve([-1.0, 0.0, 2.0, None])], {"log": True}) == [2, 2]
    assert call("series.rangeOf", [curve([None])]) is None


def test_curves_of_other_times_are_joined_on_all_times(call: Call) -> None:
    assert call("series.align", [[1, 3], [2, 3]], [[10, 30], [200, 300]]) == [
        [1, 2, 3],
        [[10, None, 30], [None, 200, 300]],
    ]


@pytest.mark.parametrize(
    ("window", "newest", "expected"),
    [(None, 200, None), ([50, 100], 130, [80, 130]), ([50, 100], 100, [50, 100]), ([50, 140], 130, [50, 140])],
    ids=["everything", "a new point", "no new point", "room to its right"],
)
def test_a_window_that_follows_ends_at_the_newest_point_and_keeps_its_width(
    call: Call, window: list[int] | None, newest: int, expected: list[int] | None
) -> None:
    assert call("series.followed", window, newest) == expected


def test_the_tooltip_has_the_nearest_curves(call: Call) -> None:
    assert call("series.nearest", [1, None, 5, 4.5, 100], 4.6, 3) == [3, 2, 0]


def test_tables_are_quoted_as_rfc_4180_says(call: Call) -> None:
    assert call("series.csv", [["a,b", 'say "x"', None, 1.5]]) == '"a,b","say ""x""",,1.5\r\n'


def test_a_stream_of_events_is_read_from_pieces_of_any_size(call: Call, watched: Watched) -> None:
    address = f"{watched.server}/ui/static/{pages().release}/live.js"
    text = ': hello\n\nid: 7\ndata: {"seq":7}\n\n: ping\n\nevent: end\ndata: {}\n\n'

    found = watched.page.evaluate(
        """async ([address, text]) => {
            const { parser } = await import(address);
            const all = [];
            for (const size of [1, 2, 5, 1000]) {
                const events = [];
                const feed = parser((event) => events.push([event.type, event.id, event.data]));
                for (let i = 0; i < text.length; i += size) feed(text.slice(i, i + size));
                all.push(events);
            }
            return all;
        }""",
        [address, text],
    )

    assert found == [[["message", "7", '{"seq":7}'], ["end", "7", "{}"]]] * 4


def test_groups_do_not_mix_behaviors(call: Call) -> None:
    columns = {"steps": [1], "minima": [0], "maxima": [0], "counts": [1], "smoothed": None}
    series = [
        {"run_id": run, "behavior": behavior, "values": [value], **columns}
        for run, value in (("a", 1.0), ("b", 3.0))
        for behavior, value in (("Striker", value), ("Goalie", 10 * value))
    ]
    runs = [{"id": run, "name": run, "group": "seeds", "started": 0} for run in ("a", "b")]

    curves = call("metrics.drawn", series, runs, True, "step")["curves"]

    assert [(curve["label"], curve["values"]) for curve in curves] == [
        ("seeds · Striker (n = 2)", [2.0]),
        ("seeds · Goalie (n = 2)", [20.0]),
    ]


def test_the_ticks_of_a_nearly_constant_curve_differ(call: Call) -> None:
    assert call("format.ticks", [0, 0.5, 1, None]) == ["0", "0.5", "1", ""]
    assert call("format.ticks", [1.02, 1.0201, 1.0202]) == ["1.02", "1.0201", "1.0202"]
    assert call("format.ticks", [1e5 + 1e-3, 1e5 + 2e-3]) == ["100000", "+0.001"]
    assert call("format.ticks", [-1.00002, -1.00001]) == ["−1.00002", "−1.00001"]


@pytest.mark.parametrize(
    ("run", "tone", "word"),
    [
        ({"state": "SUCCEEDED", "stop_reason": "completed", "findings": []}, "good", "SUCCEEDED"),
        ({"state": "SUCCEEDED", "stop_reason": "user", "findings": []}, "idle", "STOPPED"),
        ({"state": "SUCCEEDED", "stop_reason": "user", "findings": ["x"]}, "warn", "ended, with warnings"),
        ({"state": "RUNNING", "findings": ["x"]}, "busy", "RUNNING"),
    ],
)
def test_a_run_that_learned_nothing_or_was_stopped_looks_like_no_success(
    call: Call, run: dict[str, Any], tone: str, word: str
) -> None:
    look = call("format.stateLook", run)

    assert (look["tone"], look["word"]) == (tone, word)


def test_a_line_of_a_log_is_time_level_and_words(call: Call) -> None:
    line = '{"run_id": "r", "steps": 3, "event": "file_saved", "level": "info", "timestamp": "2026-01-01T10:00:00Z"}'

    assert re.fullmatch(r"\d\d:00:00.*  info     file saved  steps=3", call("format.logLine", line))
    assert call("format.logLine", '{"event": "x", "message": "It began", "level": "info"}') == "info     It began"
    assert call("format.logLine", "Traceback") == "Traceback"
    assert call("format.logLine", '{"cut') == '{"cut'


def test_runs_that_wait_for_the_same_are_together(call: Call) -> None:
    runs = [{"id": str(n), "state": "QUEUED", "waits_for": f"a slot, for {n} s"} for n in range(16)]

    groups = call("runs.byReason", [*runs, {"id": "x", "state": "QUEUED", "waits_for": "a GPU"}])

    assert [(group["why"], len(group["runs"])) for group in groups] == [("A slot, for 0 s.", 16), ("A GPU.", 1)]


def test_every_metric_of_the_page_of_metrics_has_its_meaning(call: Call) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = re.findall(r"^\| `([A-Za-z-]+/[^`]+)`", page, re.MULTILINE)
    assert len(names) > 40

    for name in (*names, "Policy/Extrinsic Reward", "Environment/Lesson Number/wall", "Policy/Branch 2 Entropy"):
        assert "Healthy" in call("metrics.meaningOf", name), name
    assert call("metrics.meaningOf", "Game/of its own") == ""
