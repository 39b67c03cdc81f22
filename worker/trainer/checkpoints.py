"""Checkpoints of one attempt: written to its scratch folder, and told to the superior, who keeps them.

The learner copies what a checkpoint holds and goes on; a thread with a low priority writes the copy, and exports and
checks the models. What is too large to be copied (a replay buffer may fill most of the memory) is written from where it
lies, and the learner waits. Nothing here waits for the superior, except the last checkpoint for its acknowledgement.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from ludus.collector.handover import State
from ludus.collector.messages import spec_to_text
from ludus.protocol.spec import file_name
from server.runs.states import StopReason
from worker.onnx.export import ExportMismatch
from worker.trainer.amendments import Amendments
from worker.trainer.checkpoint import (
    AMENDMENTS,
    COLLECTORS,
    ENVIRONMENT_PARAMETERS,
    available_memory,
    bytes_of,
    copied,
    save,
)
from worker.trainer.contest import Contest
from worker.trainer.learner import BehaviorLearner, Learner
from worker.trainer.lessons import Lessons
from worker.trainer.link import (
    CheckpointCommitted,
    CheckpointDeclined,
    CheckpointReason,
    CheckpointRefused,
    CheckpointWritten,
    Finished,
    Outcome,
)
from worker.trainer.superior import Events, Superior

log = structlog.get_logger()


@dataclass(frozen=True)
class _Writing:
    """A checkpoint in the making."""

    message: CheckpointWritten
    """What the superior is told when it is there."""
    written: Future[dict[str, str]]


class Checkpoints:
    """Writes what an attempt knows."""

    def __init__(
        self,
        scratch: Path,
        superior: Superior,
        learners: Mapping[str, Learner],
        waiting: Mapping[str, Any],
        lessons: Lessons,
        contest: Contest,
        amendments: Amendments,
        hold: Callable[[], AbstractContextManager[list[State]]],
        *,
        plays: bool,
    ) -> None:
        """`waiting` are the states of behaviors that have not come yet: they go on into the next checkpoint.

        `hold` lets collectors hand over what they hold, if they can, and stay as they are meanwhile. `plays`: nothing
        is learnt, so that there is nothing to keep.
        """
        self._scratch = scratch
        self._superior = superior
        self._events = Events(superior)
        self._learners = learners
        self._waiting = waiting
        self._lessons = lessons
        self._contest = contest
        self._amendments = amendments
        self._hold = hold
        self._plays = plays
        self._wanted: int | None = None
        """Number of the request for a checkpoint that waits for behaviors to come."""
        self._number = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_yield_to_others)
        self._writing: _Writing | None = None
        self._copied = True
        """Whether what is being written is a copy."""
        self._refused: CheckpointRefused | None = None

    def ask(self, request: int) -> None:
        """Take note that somebody wants a checkpoint now; `write_wanted` begins it."""
        self._wanted = request

    def write_wanted(self) -> None:
        """Begin the checkpoint that somebody wants, once there is anything to save; say so if there never will be."""
        if self._wanted is None or not (self._learners or self._plays):
            return
        request, self._wanted = self._wanted, None
        if self._plays:
            why = "the run plays without learning, and has nothing to save"
            self._superior.post(CheckpointDeclined(request=request, detail=why))
            return
        self._conclude()
        self._begin("requested", request=request)
        if not self._copied:
            self._conclude()

    def begin(self) -> None:
        """Begin a checkpoint, unless one is being written: it is copied now, all else is left to a thread."""
        if self._writing is None and self._learners and not self._plays:
            self._begin("interval")
            if not self._copied:
                self._conclude()

    def poll(self) -> None:
        """Tell the superior of a checkpoint that has been written. Raise `ExportMismatch` like `write`."""
        if self._writing is not None and self._writing.written.done():
            self._conclude()

    def write(self, reason: CheckpointReason, *, models_optional: bool = False) -> str | None:
        """Write a checkpoint of all behaviors to the scratch folder; return the folder.

        Raise `ExportMismatch` where a model does not do what its policy does, unless it may be left out.
        """
        if not self._learners or self._plays:
            return None
        self._conclude()
        self._begin(reason, models_optional=models_optional)
        return self._conclude()

    def _begin(self, reason: CheckpointReason, *, models_optional: bool = False, request: int | None = None) -> None:
        """Copy what a checkpoint holds, and let the thread write it."""
        self._number += 1
        folder = self._scratch / f"checkpoint-{self._number}"
        with self._hold() if reason != "final" else nullcontext([]) as collectors:
            state: dict[str, Any] = self.state(collectors)
            self._copied = bytes_of(state) * 2 <= available_memory()
            if self._copied:
                state = copied(state)
        models = {name: learner.exporter() for name, learner in self._learners.items()}
        self._contest.tell(at_once=True)  # those that the checkpoint counts
        steps = {name: state["progress"]["step"] for name, state in self._waiting.items()}
        steps |= {name: learner.learnt for name, learner in self._learners.items()}
        message = CheckpointWritten(
            folder=str(folder),
            step=sum(steps.values()),
            steps=steps,
            reason=reason,
            keep=max(learner.config.keep_checkpoints for learner in self._learners.values()),
            metrics={name: learner.recorder.take_checkpoint_return() for name, learner in self._learners.items()},
            request=request,
        )
        for learner in self._learners.values():
            learner.checkpointed()
        written = self._writer.submit(_write, folder, state, models, models_optional=models_optional)
        self._writing = _Writing(message, written)
        log.debug("checkpoint_begun", folder=message.folder, reason=reason, step=message.step, copied=self._copied)

    def _conclude(self) -> str | None:
        """Wait for the checkpoint that is being written, if any, and tell the superior; return its folder if it is."""
        if self._writing is None:
            return None
        writing, self._writing = self._writing, None
        folder = writing.message.folder
        try:
            left_out = writing.written.result()
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # half of one holds the room that the next one needs
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            code = "storage_full" if full else "storage_unavailable"
            remedy = f"free space where {self._scratch.parent} lies, or lower what a checkpoint holds" if full else ""
            detail = f"The checkpoint could not be written: {error}" + (f"; {remedy}" if remedy else "")
            self._events.tell("checkpoint_failed", detail, level="error", data={"code": code})
            self._refused = CheckpointRefused(folder=folder, code=code, detail=detail)
            if writing.message.request is not None:
                self._superior.post(CheckpointDeclined(request=writing.message.request, detail=detail))
            return None
        for name, why in left_out.items():
            self._events.tell("model_left_out", f"{name}: {why}", level="warning")
        self._superior.post(writing.message)
        log.debug("checkpoint_written", folder=folder, step=writing.message.step)
        return folder

    def state(self, collectors: Sequence[State] = ()) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on from here, with what collectors have handed over."""
        learners = {name: learner.state() for name, learner in self._learners.items()}
        for name, learner in self._learners.items():
            learners[name]["spec"] = spec_to_text(learner.spec)
            if collectors and isinstance(learner, BehaviorLearner) and not learner.done:
                recorder = learner.recorder.state(learner.learnt)
                learners[name]["collection"] = {**learner.collection(), "recorder": recorder}
        states: dict[str, object] = {**self._waiting, **learners}
        if self._lessons.samplers:
            states[ENVIRONMENT_PARAMETERS] = self._lessons.state()
        if self._amendments.made:
            states[AMENDMENTS] = {"made": self._amendments.made}
        if collectors:
            states[COLLECTORS] = list(collectors)
        return states

    def finish(self, outcome: Outcome, reason: StopReason | None, detail: str) -> Finished:
        """Write the final checkpoint, wait for its acknowledgement, and say how the attempt ended.

        The wait has no limit: a supervisor answers when the files are copied or have failed, and ends this process when
        it shall not wait any longer. A trainer that gave up would begin again where it ended, and again wait in vain.
        """
        failed = outcome == "failed"
        try:
            self._conclude()
        except ExportMismatch:
            if not failed:
                raise
        self._refused = None
        folder = self.write(
            "final" if failed or outcome == "succeeded" else "requested",
            models_optional=failed,  # what made updates fail (observations of 1e30) may spoil the check of a model, too
        )
        committed = folder is None
        while not committed and self._refused is None:
            for message in self._superior.commands():
                match message:
                    case CheckpointCommitted():
                        committed = committed or message.folder == folder
                    case CheckpointRefused() if message.folder == folder:
                        self._refused = message
            time.sleep(0.01)
        if failed:  # for its own reason, whatever became of the checkpoint: another attempt would fail alike
            lost = "" if self._refused is None else f"; its last checkpoint could not be stored: {self._refused.detail}"
            return Finished(outcome=outcome, reason=reason, detail=detail + lost)
        if self._refused is not None:
            full = self._refused.code == "storage_full"
            why = StopReason.STORAGE_FULL if full else StopReason.STORAGE_UNAVAILABLE
            return Finished(outcome="failed", reason=why, detail=self._refused.detail)
        return Finished(outcome=outcome, reason=reason, detail=detail)


def _write(
    folder: Path, state: dict[str, Any], models: Mapping[str, Callable[[Path], None]], *, models_optional: bool
) -> dict[str, str]:
    """Write a checkpoint; return of each model that is left out why it does not do what its policy does."""
    left_out = {}
    folder.mkdir(parents=True)
    save(folder, state)
    for name, export in models.items():
        try:
            export(folder / f"{file_name(name)}.onnx")
        except ExportMismatch as error:
            if not models_optional:
                raise
            left_out[name] = str(error)
    return left_out


def _yield_to_others() -> None:
    """Let whoever acts or learns go first; Linux has a priority for each thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
