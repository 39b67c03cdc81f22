"""The logs of an attempt: published while they grow, in files of bounded size, and flame graphs on request.

Up to `LIMIT_BYTES` the log is one file, `trainer.log`. Beyond that, this file keeps the beginning and says at its end
that it goes on; the newest part is `trainer-end.log`, which always holds at least the last half of the limit (a crash
is at the end). The part between is dropped, in the store and on the host's disk: a run that logs for weeks fills
neither.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from ludus.schemas import Profile
from server.kit.errors import StorageFull, StorageRefused, StorageUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.supervisor.lease import Writes
from worker.host.supervisor.transfers import ArtifactTransfer

log = structlog.get_logger()

LIMIT_BYTES: Final = 8 << 20
NAME: Final = "trainer.log"
END_NAME: Final = "trainer-end.log"
TAIL_BYTES: Final = 1 << 18
"""How much of a log's end is searched for the last error."""
FOREIGN_ERROR: Final = re.compile(r"Fatal Python error: |terminate called |([\w.]+\.)?\w*(Error|Exception): ")
"""How a line begins with which an interpreter or a C++ runtime says why it ends."""


class AttemptLog:
    """Cuts the file that a trainer and its collectors append to into parts. One thread uses it."""

    def __init__(self, path: Path, limit: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit = limit
        self._size = -1
        self._begun: bytes | None = None
        """The beginning, once it is complete."""
        self._beginning_published = False
        self._carried = b""
        """The part that was cut off the file last: the newest half of a limit."""

    def due(self) -> Iterator[tuple[str, Path]]:
        """Yield names and files that have changed since the last call and are to be published now.

        One counts as published when the next is asked for: what the caller fails at, and breaks off, is due again.
        """
        if not self.path.exists() or (size := self.path.stat().st_size) == self._size:
            return
        if self._begun is None and size > self._limit:
            self._begun = self._cut()
            self._size = -1
        if self._begun is None:
            yield NAME, self.path
            self._size = size
            return
        if not self._beginning_published:
            event = {"event": "log_goes_on", "level": "warning", "process": "supervisor", "name": END_NAME}
            yield NAME, self._file(NAME, self._begun + json.dumps(event).encode() + b"\n")
            self._beginning_published = True
        if self.path.stat().st_size > self._limit:
            self._carried = self._cut()
        present = self.path.read_bytes()
        yield END_NAME, self._file(END_NAME, self._carried + present)
        self._size = len(present)

    def last_error(self) -> str | None:
        """Return the last error of the trainer or a collector as one line, None if there is none.

        Their own lines are JSON. Other lines that name an error come from an interpreter that could not log any more.
        """
        if not self.path.exists():
            return None
        content = self._carried + self.path.read_bytes()
        for line in reversed(content[-TAIL_BYTES:].decode(errors="replace").splitlines()):
            if FOREIGN_ERROR.match(line):
                return line.strip()
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("level") in {"error", "critical"}:
                    traceback = str(entry.get("exception", "")).strip()
                    return traceback.splitlines()[-1] if traceback else str(entry.get("reason", entry.get("event")))
        return None

    def _cut(self) -> bytes:
        """Empty the file, whose writers append, and keep its newest half; return the part that stays published.

        Lines written between the reading and the emptying are lost: one or two of a log that grows fast.
        """
        content = self.path.read_bytes()
        with self.path.open("r+b") as file:
            file.truncate()
        tail = content[-self._limit // 2 :]
        newest = tail[tail.find(b"\n") + 1 :]
        if self._begun is not None:
            return newest
        self._carried = newest
        return content[: content.rfind(b"\n", 0, self._limit) + 1]

    def _file(self, name: str, content: bytes) -> Path:
        file = self.path.with_name(f"published-{name}")
        file.write_bytes(content)
        return file


class LogPublisher:
    """Uploads new content of the trainer's log, one copy at a time. One thread uses it."""

    def __init__(
        self, claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes, scratch: Path
    ) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.attempt}/logs"
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self.log = AttemptLog(scratch / "trainer.log")
        self._copy: Future[list[tuple[str, str, int]]] | None = None
        """Gives names, paths and sizes of the parts that have changed."""
        self._problem = ""
        """Code of the store's last error; empty without one."""

    def publish(self, *, last: bool = False) -> None:
        """Upload new content and register finished uploads; wait for the `last` one. Raises LeaseLost."""
        if self._copy is not None:
            if not last and not self._copy.done():
                return
            self._enter(self._copy)
        folder, store = self._folder, self._transfer.store
        self._copy = self._transfer.submit(
            lambda: [
                (name, f"{folder}/{name}", store.publish(file, f"{folder}/{name}")[0].size)
                for name, file in self.log.due()
            ]
        )
        if last:
            self._enter(self._copy)
            self._copy = None

    def _enter(self, copy: "Future[list[tuple[str, str, int]]]") -> None:
        """Register a finished upload."""
        try:
            parts = self._transfer.await_(copy)
        except (StorageFull, StorageRefused, StorageUnavailable) as error:
            log.warning("log_not_stored", error=str(error))
            if self._problem != error.code:  # once, since checkpoints will fail too
                self._problem, data = error.code, {"code": error.code}
                self._writes.add(self._ledger.event, "log_not_stored", str(error), level="warning", data=data)
            return
        except OSError as error:  # of the host's own disk: a log is not worth a run
            log.warning("log_not_copied", error=str(error))
            return
        self._problem = ""
        for part in parts:
            self._writes.add(self._ledger.log, *part)


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
        self._request: Profile | None = None
        """The request that is worked on; stays until its answer is written."""
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._copy: Future[int] | None = None

    def begin(self, pid: int) -> None:
        """Begin a profile of a process and its descendants if one is asked for. Raises Unavailable."""
        request = self._ledger.profiles.requested()
        if request is None or (self._request is not None and self._request.number == request.number):
            return
        self._request = request
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
        if program is None:
            self._answer(problem=MISSING)
            return
        words = ["record", "--subprocesses", "--format", "flamegraph", "--duration", str(request.seconds)]
        command = [program, *words, "--output", str(self._file), "--pid", str(pid)]
        self._deadline = time.monotonic() + request.seconds + GRACE_SECONDS
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        log.info("profile_begun", number=request.number, seconds=request.seconds)

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
                    lines = self._errors.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
                    self._answer(problem=f"py-spy failed: {lines[-1].strip()}")
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
        assert self._request is not None, "there is a request"
        return self._scratch / f"profile-{self._request.number}.svg"

    @property
    def _errors(self) -> Path:
        return self._file.with_suffix(".txt")

    def _answer(self, *, log_name: str | None = None, problem: str | None = None) -> None:
        assert self._request is not None, "there is a request"
        self._writes.add(self._ledger.profiles.answer, self._request, log=log_name, problem=problem)
