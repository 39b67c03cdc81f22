"""From a checkpoint in the trainer's scratch folder to one that is acknowledged: copied, entered, answered."""

import contextlib
import shutil
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path

from server.checkpoints.refs import NewCheckpoint
from server.kit.artifacts import FileRef
from server.kit.errors import LudusError
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from worker.host.supervisor.copies import Copier
from worker.trainer.link import CheckpointCommitted, CheckpointRefused, CheckpointWritten, LinkClosed, SupervisorLink


class CheckpointCommits:
    """Takes over the checkpoints that an attempt's trainer writes, in their order. One thread uses it."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, copier: Copier) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.epoch}/checkpoints"
        self._ledger = ledger
        self._copier = copier
        self._count = 0
        self._copies: deque[tuple[CheckpointWritten, str, Future[list[FileRef]]]] = deque()

    def __len__(self) -> int:
        """Return how many are not taken over yet."""
        return len(self._copies)

    def begin(self, written: CheckpointWritten) -> None:
        """Have a checkpoint copied."""
        self._count += 1
        path = f"{self._folder}/{written.step}-{self._count}"
        self._copies.append((written, path, self._copier.publish(Path(written.folder), path)))

    def wait(self, seconds: float) -> None:
        """Wait for the first copy, for so long."""
        if self._copies:
            wait([self._copies[0][2]], timeout=seconds)

    def finish(self, link: SupervisorLink) -> None:
        """Enter what is copied, and answer the trainer. Raises Unavailable, with the rest still to be entered."""
        while self._copies and self._copies[0][2].done():
            written, path, copy = self._copies[0]
            answer = self._enter(written, path, copy)
            shutil.rmtree(written.folder, ignore_errors=True)
            with contextlib.suppress(LinkClosed):
                link.send(answer)
            self._copies.popleft()

    def _enter(
        self, written: CheckpointWritten, path: str, copy: "Future[list[FileRef]]"
    ) -> CheckpointCommitted | CheckpointRefused:
        try:
            files = copy.result()
        except LudusError as error:
            self._ledger.event(
                "checkpoint_failed",
                f"The checkpoint at step {written.step} could not be stored: {error}",
                level="error",
                data={"code": error.code, "step": written.step},
            )
            if written.request is not None:
                self._ledger.checkpoint_declined(written.request, f"it could not be stored: {error}")
            return CheckpointRefused(folder=written.folder, code=error.code, detail=str(error))
        self._ledger.checkpoint(
            NewCheckpoint(
                step=written.step,
                steps=written.steps,
                reason=written.reason,
                path=path,
                files=files,
                metrics=written.metrics,
            ),
            written.request,
        )
        self._ledger.retire_checkpoints(written.keep)
        return CheckpointCommitted(folder=written.folder)
