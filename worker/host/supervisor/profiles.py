"""Profiles on request: py-spy samples the stacks of a trainer and its collectors, and the flame graph becomes a log."""

import shutil
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import structlog

from ludus.schemas import Profile
from server.kit.errors import StorageFull, StorageRefused, StorageUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes

log = structlog.get_logger()

GRACE_SECONDS: Final = 60.0
"""How long py-spy may take beyond the time that it samples: to find the processes' symbols, and to write."""
MISSING: Final = "py-spy is not installed on the worker; pip install 'ludus[worker]' brings it"


class Profiles:
    """Makes the profiles of one attempt, one at a time. One thread uses it; no method waits."""

    def __init__(
        self, claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes, scratch: Path
    ) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.attempt}/logs"
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self._scratch = scratch
        self._asked: Profile | None = None
        """The request that is worked on; stays until its answer is written."""
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._copy: Future[int] | None = None

    def begin(self, pid: int) -> None:
        """Begin a profile of a process and its descendants if one is asked for. Raises Unavailable."""
        asked = self._ledger.profiles.requested()
        if asked is None or (self._asked is not None and self._asked.number == asked.number):
            return
        self._asked = asked
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
        if program is None:
            self._answer(problem=MISSING)
            return
        words = ["record", "--subprocesses", "--format", "flamegraph", "--duration", str(asked.seconds)]
        command = [program, *words, "--output", str(self._file), "--pid", str(pid)]
        self._deadline = time.monotonic() + asked.seconds + GRACE_SECONDS
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        log.info("profile_begun", number=asked.number, seconds=asked.seconds)

    def poll(self) -> None:
        """Store a profile that is finished, and answer the request."""
        if self._process is not None:
            if self._process.poll() is None and time.monotonic() > self._deadline:
                self._process.kill()
            elif self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                if code == 0 and self._file.exists():
                    file, path = self._file, f"{self._folder}/{self._file.name}"
                    self._copy = self._transfer.submit(lambda: self._transfer.store.publish(file, path)[0].size)
                else:
                    said = self._errors.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
                    self._answer(problem=f"py-spy failed: {said[-1].strip()}")
        if self._copy is not None and self._copy.done():
            copy, self._copy = self._copy, None
            name = self._file.name
            try:
                self._writes.add(self._ledger.log, name, f"{self._folder}/{name}", copy.result())
            except (StorageFull, StorageRefused, StorageUnavailable, OSError) as error:
                self._answer(problem=f"it could not be stored: {error}")
            else:
                self._answer(log_name=name)

    def close(self) -> None:
        """End a profile that is being made: the attempt is over."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _file(self) -> Path:
        assert self._asked is not None, "there is a request"
        return self._scratch / f"profile-{self._asked.number}.svg"

    @property
    def _errors(self) -> Path:
        return self._file.with_suffix(".txt")

    def _answer(self, *, log_name: str | None = None, problem: str | None = None) -> None:
        assert self._asked is not None, "there is a request"
        self._writes.add(self._ledger.profiles.answer, self._asked, log=log_name, problem=problem)
