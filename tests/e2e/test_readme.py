"""The README's commands, as they are written there, on a real stack."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import LudusUp, environment

ROOT = Path(__file__).resolve().parents[2]


def by_hand() -> str:
    """Return the commands of the section "By hand"."""
    (block,) = re.findall(
        r"<!-- tested: by-hand -->\n```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(block)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("stack")
def test_the_commands_of_the_readme_work_as_they_are_written(stack: LudusUp, tmp_path: Path) -> None:
    script = by_hand().replace("http://127.0.0.1:8080", stack.api).replace("--output demo", f"--output {tmp_path}")

    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", f"{script}\nwait"],
        cwd=ROOT,
        env=environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            LUDUS_SERVER=stack.api,
            LUDUS_SIMULATOR_SERVER=stack.gateway,
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert (tmp_path / "CartPole.onnx").stat().st_size > 1000
    assert "Environment/Cumulative Reward" in done.stdout
