"""JUnit files and Markdown summaries of `ludus run wait`, `gate` and `evaluate`, in every outcome."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx2
import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.cli.exits import INTERRUPTED, Exit
from ludus.cli.reports import sparkline
from ludus.schemas.states import RunState, StopReason
from tests.factories import save_checkpoints
from tests.ludus.cli.conftest import Invoke
from tests.server.app.world import Trainer, World
from tests.waiting import eventually, never

REWARD = "Environment/Cumulative Reward"


def read_junit(path: Path) -> ET.Element:
    """Read a report, and hold it to what the schemas in use demand (Jenkins' xUnit plug-in, Ant's, GitLab's)."""
    suite = ET.fromstring(path.read_bytes())
    assert suite.tag == "testsuite"
    assert [child.tag for child in suite] == [
        "properties",
        *["testcase"] * len(suite.findall("testcase")),
        "system-out",
        "system-err",
    ]
    assert set(suite.attrib) == {
        "name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    for name, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}"))
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for case in cases:
        assert set(case.attrib) == {"classname", "name", "time"}
        float(case.attrib["time"])
        assert len(case) <= 1
        for outcome in case:
            assert outcome.attrib["message"]
            # The console, the text and the message of one case are shown beside each other.
            shown = [text for each in suite.iter() for text in (*each.attrib.values(), each.text or "")]
            assert sum(outcome.attrib["message"] in text for text in shown) == 1 or outcome.tag == "skipped"
            assert outcome.tag == "skipped" or outcome.attrib["type"]
    return suite


def outcomes(path: Path) -> dict[str, tuple[str, str]]:
    """Return what became of each test case, with the reason."""
    return {
        case.attrib["name"]: (case[0].tag, case[0].attrib["message"]) if len(case) else ("passed", "")
        for case in read_junit(path).findall("testcase")
    }


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    return tmp_path / "reports" / "ludus.xml"  # the folder is made, too


def trained(world: World, state: RunState = RunState.SUCCEEDED, **reason: Any) -> Trainer:
    trainer = world.claim(world.create(name="nightly")["id"]).start()
    trainer.measure(REWARD, [10.0, 500.0, 20.0])
    trainer.finish(state, **reason)
    return trainer


def test_met_and_unmet_requirements_are_test_cases_of_their_own(cli: Invoke, world: World, junit: Path) -> None:
    run = trained(world).run_id

    ended = cli("run", "wait", run, "--require", "reward>=20", "--require", "reward>=475", "--junit", str(junit))

    assert ended.exit_code == Exit.UNMET
    assert outcomes(junit) == {
        run: ("passed", ""),
        "reward>=20": ("passed", ""),
        "reward>=475": ("failure", "it is 20"),
    }


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        (RunState.FAILED, StopReason.DIVERGED, "FAILED after 0 steps (diverged: the loss is <NaN> & more)"),
        (RunState.CANCELLED, StopReason.USER, "CANCELLED after 0 steps (user: the loss is <NaN> & more)"),
    ],
)
def test_a_run_that_did_not_succeed_is_an_error_with_its_reason(
    cli: Invoke, world: World, junit: Path, state: RunState, reason: StopReason, says: str
) -> None:
    run = trained(world, state, reason=reason, detail="the loss is <NaN> & more").run_id

    cli("run", "wait", run, "--junit", str(junit))

    assert outcomes(junit) == {run: ("error", f"{run} {says}")}


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_requirements_of_a_run_that_did_not_succeed_are_not_judged(
    cli: Invoke, world: World, junit: Path, tmp_path: Path, state: RunState
) -> None:
    run = trained(world, state, reason=StopReason.USER, detail="stopped").run_id
    summary = tmp_path / "summary.md"

    required = ["--require", "reward>=10", "--require", "reward>=475"]
    cli("run", "wait", run, *required, "--junit", str(junit), "--summary", str(summary))

    found = outcomes(junit)
    for requirement in ("reward>=10", "reward>=475"):
        assert found[requirement][0] == "skipped"
        assert found[requirement][1].startswith("not judged: it is 20")
    assert summary.read_text().count("| not judged | it is 20 |") == 2
    assert "| met |" not in summary.read_text()
    assert "not met" not in summary.read_text()


def test_an_address_that_is_no_url_is_said_at_once(cli: Invoke, junit: Path) -> None:
    began = time.monotonic()

    ended = cli("run", "wait", "nightly", "--server", "ludus.example.org", "--junit", str(junit))

    assert ended.exit_code == Exit.UNREACHABLE
    assert outcomes(junit)["nightly"][0] == "error"
    assert "https://ludus.example.org" in outcomes(junit)["nightly"][1]
    assert time.monotonic() - began < 20  # and not the minute for which a server that restarts is borne with


@pytest.mark.long
def test_a_report_that_no_longer_fits_on_the_disk_leaves_the_first_one(cli: Invoke, world: World, junit: Path) -> None:
    run = trained(world).run_id
    cli("run", "wait", run, "--junit", str(junit))
    before = junit.read_bytes()

    def write_with_little_room(*arguments: str) -> int:
        """Run the command where a file may have so few bytes; the children's limit is not the tests'."""
        room = f"--fsize={len(before) // 2}:unlimited"
        command = ["prlimit", room, sys.executable, "-m", "ludus.cli", *arguments]
        return subprocess.run(
            command,
            # Python would cut off the byte code that it stores for later processes, too, and say nothing.
            env={**os.environ, "LUDUS_SERVER": world.server, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        ).returncode

    assert write_with_little_room("run", "wait", run, "--junit", str(junit)) != Exit.OK
    assert junit.read_bytes() == before
    assert list(junit.parent.iterdir()) == [junit]


def test_a_time_out_says_where_the_run_is_and_skips_what_was_not_judged(cli: Invoke, world: World, junit: Path) -> None:
    run = world.create()["id"]
    world.http.post(f"/v1/runs/{run}:pause")

    options = ["--keep-waiting", "--timeout", "0.1s", "--require", "reward>=1"]
    ended = cli("run", "wait", run, *options, "--junit", str(junit))

    found = outcomes(junit)
    assert ended.exit_code == Exit.TIMED_OUT
    assert found[run][0] == "error"
    assert "PAUSED" in found[run][1]
    assert found["reward>=1"][0] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["run", "wait", "nightly"], "wait"),
        (["gate", "nightly/latest"], "gate"),
        (["evaluate", "nightly/latest"], "evaluate"),
    ],
)
def test_a_server_that_is_not_there_is_reported(
    arguments: list[str], kind: str, junit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.client.backoff.RETRY_SECONDS", 0.5)
    summary = tmp_path / "summary.md"
    files = ["--junit", str(junit), "--summary", str(summary)]

    ended = CliRunner().invoke(ludus, [*arguments, *files, "--server", "http://127.0.0.1:9"])

    ((outcome, reason),) = outcomes(junit).values()
    assert ended.exit_code == Exit.UNREACHABLE
    assert outcome == "error"
    assert "ludus up" in reason
    assert "not judged" in summary.read_text()
    assert kind in summary.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "wait", "nightly", "--timeout", "soon"],
        ["run", "wait", "nightly", "--require", "reward"],
        ["run", "wait"],
        ["run", "wait", "nightly", "--no-such-option"],
        ["gate", "nightly/latest", "--elo0", "nan"],
        ["evaluate", "nightly/latest", "--threshold", "inf"],
        ["gate", "nightly/latest", "--game", "chess"],
    ],
)
def test_a_wrong_command_line_is_reported_where_it_names_the_file(
    cli: Invoke, junit: Path, arguments: list[str]
) -> None:
    form = ["--junit", str(junit)] if arguments[0] == "run" else [f"--junit={junit}"]
    ended = cli(*arguments, *form)

    ((outcome, reason),) = outcomes(junit).values()
    assert ended.exit_code == Exit.USAGE
    assert outcome == "error"
    assert reason in ended.output.replace("\n", " ")


def test_a_refusal_by_the_server_is_reported_with_its_sentence(cli: Invoke, junit: Path) -> None:
    ended = cli("run", "wait", "nobody", "--junit", str(junit))

    assert ended.exit_code == Exit.REFUSED
    assert outcomes(junit)["nobody"] == ("error", ended.stderr.removeprefix("Error: ").strip())


@pytest.mark.long
def test_an_interrupted_wait_and_even_a_killed_one_leave_a_report(world: World, junit: Path) -> None:
    run = world.create()["id"]
    command = [sys.executable, "-m", "ludus.cli", "run", "wait", run, "--junit", str(junit)]
    process = subprocess.Popen(command, env={**os.environ, "LUDUS_SERVER": world.server}, stderr=subprocess.DEVNULL)

    def reports() -> bool:
        assert process.poll() is None
        return junit.exists()

    eventually(reports, "a report is there")
    before, unfinished = outcomes(junit)[run]  # as kill -9 would leave it
    never(lambda: process.poll() is not None, "it ends by itself", 0.5)

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == INTERRUPTED
    assert (before, "was killed" in unfinished) == ("error", True)
    assert outcomes(junit)[run] == ("error", "interrupted (Ctrl-C or SIGTERM)")


@pytest.mark.long
def test_a_gate_that_is_interrupted_cancels_its_run_and_says_so(world: World, junit: Path) -> None:
    first, second = save_checkpoints(world.services.database, 100, 200)
    command = [sys.executable, "-m", "ludus.cli", "gate", second, "--against", first, "--name", "interrupted"]
    process = subprocess.Popen(
        [*command, "--junit", str(junit)], env={**os.environ, "LUDUS_SERVER": world.server}, stderr=subprocess.DEVNULL
    )

    def created() -> list[dict[str, Any]]:
        assert process.poll() is None
        return list(world.http.get("/v1/runs", params={"filter": "name = interrupted"}).json()["runs"])

    runs = eventually(created, "its run is there")

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == INTERRUPTED
    assert world.http.get(f"/v1/runs/{runs[0]['id']}").json()["state"] == "CANCELLED"
    assert outcomes(junit)[second][0] == "error"


def test_a_gate_whose_run_fails_is_an_error_not_a_verdict(cli: Invoke, world: World, junit: Path) -> None:
    (checkpoint,) = save_checkpoints(world.services.database, 100)

    def fail() -> None:
        runs = eventually(lambda: world.http.get("/v1/runs", params={"filter": "name = broken"}).json()["runs"])
        trainer = world.claim(runs[0]["id"]).start()
        trainer.finish(RunState.FAILED, reason=StopReason.TRAINER_ERROR, detail="it broke")

    thread = threading.Thread(target=fail)
    thread.start()
    ended = cli("evaluate", checkpoint, "--name", "broken", "--timeout", "30s", "--junit", str(junit))
    thread.join()

    outcome, reason = outcomes(junit)[checkpoint]
    assert ended.exit_code == Exit.RUN_FAILED
    assert (outcome, "it broke" in reason) == ("error", True)


def test_a_report_that_cannot_be_written_is_said_before_anything_is_done(cli: Invoke, world: World) -> None:
    before = len(world.http.get("/v1/runs").json()["runs"])

    refused = cli("evaluate", "nightly/latest", "--junit", "/proc/no/such/folder.xml")

    assert refused.exit_code == Exit.USAGE
    assert "cannot be written" in refused.stderr
    assert len(world.http.get("/v1/runs").json()["runs"]) == before


def test_the_summary_is_appended_with_requirements_links_and_curves(cli: Invoke, world: World, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# what other steps wrote\n")
    run = trained(world).run_id

    cli("run", "wait", run, "--require", "reward>=20", "--require", "reward>=475", "--summary", str(summary))

    text = summary.read_text()
    assert text.startswith("# what other steps wrote\n")
    assert "| reward\\>=475 | **not met** | it is 20 |" in text
    assert "| reward\\>=20 | met | it is 20 |" in text
    assert f"[nightly]({world.server}/ui/runs/{run})" in text
    assert "| CartPole Environment/Cumulative Reward | ▁█▁ | 10 | 500 | 20 |" in text


def test_what_a_server_says_of_itself_is_no_markup_in_a_summary(cli: Invoke, world: World, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    run = trained(
        world, RunState.FAILED, reason=StopReason.DIVERGED, detail="a|b <img src=x>\n# [c](d) \x1b[31m"
    ).run_id

    cli("run", "wait", run, "--summary", str(summary))

    text = summary.read_text()
    assert "a\\|b \\<img src=x\\> # \\[c\\](d)" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0.0, 7.0], "▁█"),
        ([float(each) for each in range(8)], "▁▂▃▄▅▆▇█"),
        ([5.0, 5.0], "▁▁"),
        ([1.0, None, 2.0], "▁ █"),
        ([None], ""),
        ([], ""),
    ],
)
def test_a_sparkline_goes_from_the_lowest_value_to_the_highest(values: list[float | None], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_a_gate_that_is_interrupted_while_it_asks_for_its_run_leaves_none_behind(
    cli: Invoke, world: World, junit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = save_checkpoints(world.services.database, 100, 200)
    send = httpx2.Client.send
    interrupted: list[str] = []

    def interrupt(self: httpx2.Client, request: httpx2.Request, **options: Any) -> httpx2.Response:
        answer = send(self, request, **options)
        if request.method == "POST" and request.url.path == "/v1/runs" and not interrupted:
            interrupted.append(answer.json()["id"])
            raise KeyboardInterrupt  # the server has made the run; its answer is lost
        return answer

    monkeypatch.setattr(httpx2.Client, "send", interrupt)
    ended = cli("gate", second, "--against", first, "--junit", str(junit))

    assert ended.exit_code == INTERRUPTED
    assert world.http.get(f"/v1/runs/{interrupted[0]}").json()["state"] == "CANCELLED"
    assert outcomes(junit)[second][0] == "error"
