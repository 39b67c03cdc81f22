"""Every process logs the same way. In processes of their own: logging is set up once per process."""

import json
import os
import subprocess
import sys

from ludus.threads import THREAD_FAILED

PROGRAM = """
import logging, structlog
from ludus.logging import configure_logging

configure_logging("api", log_format={log_format!r}, level="info")
log = structlog.get_logger()
with structlog.contextvars.bound_contextvars(run_id="r1"):
    log.info("run_claimed", attempt=2)
    log.debug("step_taken")
logging.getLogger("uvicorn.error").warning("hello %s", 3)
logging.getLogger("httpx2").info("noise")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("update_failed", secret="s")
"""


def lines(log_format: str) -> list[str]:
    program = PROGRAM.format(log_format=log_format)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_loggedcarry_event_level_process_context_and_traceback() -> None:
    claimed, hello, failed = (json.loads(line) for line in lines("json"))

    assert claimed == {
        "event": "run_claimed",
        "attempt": 2,
        "run_id": "r1",
        "level": "info",
        "process": "api",
        "timestamp": claimed["timestamp"],
    }
    assert claimed["timestamp"].endswith("Z")
    assert (hello["event"], hello["level"]) == ("hello 3", "warning")
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")


def test_loggedfor_people_have_a_traceback_without_the_values_of_variables() -> None:
    text = "\n".join(lines("console"))

    assert "run_claimed" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "locals" not in text


DEATHS = """
import sys, threading, warnings
from ludus.logging import bind_process, configure_logging

configure_logging("trainer")
bind_process(run_id="r1", attempt=2)

def fail():
    raise ValueError("in a thread")

warnings.warn("old habit")
if sys.argv[1] == "process":
    raise RuntimeError("the end")
thread = threading.Thread(target=fail, name="helper")
thread.start()
thread.join()
print("without its thread")
"""


def test_what_kills_a_thread_or_the_process_is_a_line_with_the_ids_and_the_traceback() -> None:
    environment = {**os.environ, "LUDUS_WORKER_ID": "host/1/1"}
    codes = []
    logged = []
    for death in ("thread", "process"):
        command = [sys.executable, "-c", DEATHS, death]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.stdout == ""
        codes.append(done.returncode)
        logged += [json.loads(line) for line in done.stderr.splitlines()]

    warning, thread, _, process = logged
    assert codes == [THREAD_FAILED, 1]
    assert (thread["event"], thread["thread"], thread["level"]) == ("thread_failed", "helper", "critical")
    assert thread["exception"].endswith("ValueError: in a thread")
    assert "old habit" in warning["event"]
    assert process["event"] == "process_failed"
    assert process["exception"].endswith("RuntimeError: the end")
    for line in (thread, warning, process):
        assert (line["run_id"], line["attempt"], line["worker_id"]) == ("r1", 2, "host/1/1")
