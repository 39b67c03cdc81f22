"""What a server, and whoever spoke to it, says is shown and not obeyed by the terminal or by a pipeline."""

import json
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ludus.cli.exits import Exit
from ludus.cli.render import LINES, printable
from ludus.schemas.states import RunState
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import CARTPOLE, World
from tests.waiting import eventually

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\r12:00:00  run_succeeded\n::set-output::\u202egnp.exe"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("äöü 世界 🎮\u3000\xa0", "äöü 世界 🎮\u3000\xa0"),
        ("two\nlines\tand\r\nthree", "two\nlines\tand\nthree"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb", "a\\rb"),
        ("\x9b2J\x7f\x00", "\\x9b2J\\x7f\\x00"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_not_text_is_escaped(text: str, shown: str) -> None:
    assert printable(text, LINES) == shown


def test_a_line_is_one_line() -> None:
    assert printable("one\ntwo\tthree\r\n") == "one\\ntwo\\tthree\\n"


def test_no_command_lets_a_text_of_others_paint_or_begin_a_line(cli: Invoke, world: World, tmp_path: Path) -> None:
    run = world.create(CARTPOLE, name="evil")["id"]
    trainer = world.claim(run).start()
    trainer.ledger.event("simulator_problem", EVIL, level="warning", data={"text": EVIL})
    trainer.write_log("trainer.log", EVIL.encode(), tmp_path)
    trainer.save(100, {"CartPole.onnx": b"model"}, tmp_path, behavior=EVIL)
    trainer.finish(RunState.FAILED, reason="trainer_error", detail=EVIL)
    hook = {"url": "https://example.org/hook", "description": EVIL}
    assert world.http.post("/v1/webhooks", json=hook).status_code == 201

    for command in (
        ("run", "show", run),
        ("run", "watch", run),
        ("run", "wait", run),
        ("run", "logs", run),
        ("checkpoint", "list", run),
        ("checkpoint", "show", "latest", "--run", run),
        ("run", "show", run, "--json"),
        ("webhook", "list", "--json"),
    ):
        written = cli(*command).output

        assert "]0;title" in written, command
        assert not set("\x1b\x9b\x07\r\u202e") & set(written), command
        if "logs" not in command:
            assert not any(line.startswith(("::", "12:00:00  run_s")) for line in written.splitlines()), command
    assert as_json(cli("webhook", "list", "--json"))[0]["description"] == EVIL
    refused = cli("run", "show", "no\x1b[31msuch")
    assert refused.exit_code != Exit.OK
    assert "\x1b" not in refused.output


def test_a_report_for_a_pipeline_is_xml_whatever_the_run_says_of_itself(
    cli: Invoke, world: World, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    trained = world.claim(world.create(CARTPOLE)["id"]).start()
    checkpoint = trained.save(100, {"CartPole.onnx": b"model"}, tmp_path)

    def fail() -> None:
        found = eventually(lambda: world.http.get("/v1/runs", params={"filter": "kind = evaluate"}).json()["runs"])
        evil = f'{EVIL}"/></testcase><testcase name="passed"/>'
        world.claim(found[0]["id"]).start().finish(RunState.FAILED, reason="trainer_error", detail=evil)

    worker = threading.Thread(target=fail)
    worker.start()
    ended = cli("evaluate", checkpoint, "--episodes", "1", "--junit", str(report), "--json", "--timeout", "60s")
    worker.join()

    assert ended.exit_code == Exit.RUN_FAILED, ended.output
    assert json.loads(ended.stdout)["run"]["stop_detail"].startswith("\x1b]0;title")
    suite = ET.fromstring(report.read_bytes())
    assert len(list(suite.iter("testcase"))) == 1
    (error,) = suite.iter("error")
    assert "FAILED: \\x1b]0;title" in str(error.get("message"))
