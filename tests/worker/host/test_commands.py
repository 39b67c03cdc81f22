"""`ludus worker` refuses settings that would let everybody in, before it starts anything."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.stack import LUDUS, environment


@pytest.mark.long
def test_a_worker_without_a_ticket_key_stays_on_loopback(tmp_path: Path) -> None:
    exposed = environment(LUDUS_HOME=str(tmp_path), LUDUS_WORKER__BIND_HOST="0.0.0.0")

    ended = subprocess.run([*LUDUS, "worker"], env=exposed, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert ended.stderr == (
        "Error: Collectors would listen on 0.0.0.0 without access control: set LUDUS_GATEWAY__TICKET_KEY to the "
        "gateway's key, or listen on 127.0.0.1 (LUDUS_WORKER__BIND_HOST).\n"
    )
