"""Runs that self-play follows (`self_play.opponents`: `run:NAME`): their newest checkpoints, for the trainer.

The database is asked for them every `LOOK_SECONDS`. A newer one is copied from the artifact store to the scratch
folder, on the thread for copies, and the trainer is told where it lies. One that can't be copied is left out: self-play
goes on against what it has until the next one.
"""

import shutil
import time
from collections import defaultdict, deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from server.kit.errors import LudusError, RunNotFound, Unavailable
from server.lifecycle.attempts import AttemptLedger
from worker.host.supervisor.lease import Writes
from worker.host.supervisor.transfers import ArtifactTransfer, CheckpointUnusable, fetch
from worker.trainer.connection import SupervisorConnection
from worker.trainer.messages import RunAdvanced

log = structlog.get_logger()

LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True)
class _Copy:
    """A checkpoint that is copied to the scratch folder."""

    run: str
    checkpoint: str
    """Its id."""
    folder: Path
    copied: Future[Path]


class FollowedRuns:
    """Brings a trainer the newest checkpoints of other runs. One thread uses it."""

    def __init__(
        self, runs: Collection[str], ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes, scratch: Path
    ) -> None:
        """`runs`: their ids or names; a name means the newest run that has it."""
        self._runs = sorted(runs)
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self._folder = scratch / "followed"
        self._newest: dict[str, str] = {}
        """Run -> the id of its newest checkpoint that was copied, or tried."""
        self._missing: set[str] = set()
        """Runs of which it is reported that they do not exist."""
        self._copies: list[_Copy] = []
        self._folders: defaultdict[str, deque[Path]] = defaultdict(deque)
        """By run: the newest checkpoint that was copied, and the one before, which the trainer may still read."""
        self._next_look = 0.0

    def poll(self, connection: SupervisorConnection) -> None:
        """Send what has been copied; look for newer checkpoints if it is time. Raises ConnectionClosed."""
        for copy in [copy for copy in self._copies if copy.copied.done()]:
            self._copies.remove(copy)
            try:
                folder = copy.copied.result()
            except (CheckpointUnusable, LudusError) as error:
                shutil.rmtree(copy.folder, ignore_errors=True)
                log.warning("followed_checkpoint_unusable", run=copy.run, checkpoint=copy.checkpoint, error=str(error))
            else:
                self._folders[copy.run].append(folder)
                if len(self._folders[copy.run]) > 2:
                    shutil.rmtree(self._folders[copy.run].popleft(), ignore_errors=True)
                connection.send(RunAdvanced(run=copy.run, checkpoint=copy.checkpoint, folder=str(folder)))
        now = time.monotonic()
        if self._copies or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for run in self._runs:
            try:
                self._look(run)
            except Unavailable as error:
                log.warning("followed_run_not_read", run=run, error=str(error))

    def _look(self, run: str) -> None:
        """Begin to copy the newest checkpoint of a run, if it is another one than before. Raises Unavailable."""
        try:
            checkpoint = self._ledger.newest_checkpoint_of(run)
        except RunNotFound:
            if run not in self._missing:
                self._missing.add(run)
                message = f"There is no run {run} yet, which self_play.opponents names: it gives no opponents so far."
                self._writes.add(
                    self._ledger.event, "followed_run_missing", message, level="warning", data={"run": run}
                )
            return
        if checkpoint is not None and checkpoint.id != self._newest.get(run):
            self._newest[run] = checkpoint.id
            folder = self._folder / f"{self._runs.index(run)}-{checkpoint.id}"
            copied = self._transfer.submit(partial(fetch, self._transfer.store, checkpoint, folder))
            self._copies.append(_Copy(run, checkpoint.id, folder, copied))
