"""Folders of attempts: what a killed worker leaves behind is swept, what is in use is not."""

import signal
import subprocess
import sys
from pathlib import Path

from worker.host.supervisor.scratch import Scratch, sweep

HOLDS = """
import sys, time
from pathlib import Path
from worker.host.supervisor.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
scratch.make()
(scratch.folder / "state.json").write_text("{}")
print("made", flush=True)
time.sleep(60)
"""


def test_what_a_killed_worker_left_behind_is_swept_once_it_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "scratch" / "run_0abc-3"
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"

        while_it_lives = sweep(folder.parent)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    assert while_it_lives == []
    assert sweep(folder.parent) == ["run_0abc-3"]
    assert list(folder.parent.iterdir()) == []


def test_what_is_no_attempts_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "run_0abc-3.txt").touch()

    assert sweep(tmp_path) == []
    assert sweep(tmp_path / "not yet there") == []
    assert {each.name for each in tmp_path.iterdir()} == {"metrics", "run_0abc-3.txt"}


def test_an_attempt_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "run_0abc-1")
    scratch.make()
    (scratch.folder / "checkpoint-1").mkdir()

    scratch.remove()

    assert list(tmp_path.iterdir()) == []
