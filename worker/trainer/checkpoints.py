"""Checkpoints of one attempt: written to its scratch folder, and reported to the supervisor, which stores them.

The learner copies the state and goes on; a thread with a low priority writes the copy, and exports and checks the
models. State that is too large to be copied (a replay buffer may fill most of the memory) is written without a copy,
and the learner waits. Only the last checkpoint waits for the supervisor's acknowledgement.

Before a checkpoint collectors stop answering and hand over snapshots of their sessions. Only in lockstep: with
`threaded: true` the clock decides which version acts on a step, so that no run can be continued exactly, in self-play
opponents are drawn again, and with several ranks the next attempt may have another number of them. There, simulators
begin new episodes when a run goes on.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from ludus.collector.snapshots.state import State
from ludus.config.run import RunConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import file_name
from ludus.protocol.specs import spec_to_message
from ludus.schemas import OnnxModel
from ludus.schemas.states import StopReason
from worker.collectors.events import CollectorDied, CollectorEvent, EdgeCollectorLeft, HandedOver
from worker.collectors.sessions import EMPTY
from worker.onnx.export import ExportMismatch
from worker.trainer import messages
from worker.trainer.attempt import Attempt
from worker.trainer.checkpoint import (
    AMENDMENTS,
    COLLECTORS,
    ENVIRONMENT_PARAMETERS,
    available_memory,
    bytes_of,
    copied,
    save,
)
from worker.trainer.environment_parameters import EnvironmentParameters
from worker.trainer.learner import BehaviorLearner
from worker.trainer.selfplay import SelfPlayCoordinator

log = structlog.get_logger()

SIMULATOR_SECONDS: Final = 10.0
"""How long to wait for simulators that can go back; those that take longer begin new episodes after a resume."""
ANSWER_SECONDS: Final = 10.0
"""How long a collector may take beyond that; then the checkpoint is written without any snapshot."""


def can_go_on(config: RunConfig, collectors: Sequence[State], ranks: int) -> bool:
    """Return whether snapshots can be used: their behaviors learn in lockstep, and in one rank, in this attempt."""
    behaviors = {name for state in collectors for name in state["lanes"]}
    sections = [section for name in behaviors if (section := config.behavior(name)) is not None]
    return (
        ranks == 1
        and not config.checkpoint_settings.inference
        and all(
            not (isinstance(section, ReinforcementConfig) and (section.threaded or section.self_play))
            for section in sections
        )
    )


@dataclass(frozen=True)
class _Models:
    """The models of a checkpoint that is written."""

    described: dict[str, OnnxModel]
    """By the names of their files."""
    left_out: dict[str, str]
    """Behavior -> why its model does not do what its policy does."""


@dataclass(frozen=True)
class _Writing:
    """A checkpoint in the making."""

    message: messages.CheckpointWritten
    """The report to the supervisor once it is written."""
    written: Future[_Models]
    experiences: dict[str, int]
    """Behavior -> number of experiences in the replay buffer that is saved with it."""


class Checkpoints:
    """Writes the checkpoints of one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        parameters: EnvironmentParameters,
        selfplay: SelfPlayCoordinator,
        handle: Callable[[CollectorEvent], None],
    ) -> None:
        """`handle` takes the events that collectors report before they are at rest."""
        self._attempt = attempt
        self._parameters = parameters
        self._selfplay = selfplay
        self._handle = handle
        self._scratch = Path(attempt.job.scratch)
        self._is_frozen = attempt.is_inference or attempt.config.assessment is not None
        """Whether nothing is learned, so that there is nothing to save."""
        self._requested: int | None = None
        """Number of the request for a checkpoint that waits for behaviors to come."""
        self._number = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=lower_priority)
        self._writing: _Writing | None = None
        self._copied = True
        """Whether the state that is being written is a copy."""
        self._refused: messages.CheckpointRefused | None = None

    def request(self, request: int) -> None:
        """Store a user's request for a checkpoint; `write_requested` begins it."""
        self._requested = request

    def write_requested(self) -> None:
        """Begin the requested checkpoint, once there is a state to save; decline it if there will be none."""
        if self._requested is None or not (self._attempt.learners or self._is_frozen):
            return
        request, self._requested = self._requested, None
        if self._is_frozen:
            why = "the run plays without learning, and has nothing to save"
            self._attempt.supervisor.post(messages.CheckpointDeclined(request=request, detail=why))
            return
        self._finish_writing()
        self._begin("requested", request=request)
        if not self._copied:
            self._finish_writing()

    def begin(self) -> None:
        """Begin a checkpoint, unless one is being written: the state is copied now, a thread does the rest."""
        if self._writing is None and self._attempt.learners and not self._is_frozen:
            self._begin("interval")
            if not self._copied:
                self._finish_writing()

    def poll(self) -> None:
        """Report a checkpoint that has been written. Raise `ExportMismatch` like `write`."""
        if self._writing is not None and self._writing.written.done():
            self._finish_writing()

    def write(self, reason: messages.CheckpointReason, *, models_optional: bool = False) -> str | None:
        """Write a checkpoint of all behaviors; return its folder. Raise `ExportMismatch` unless models are optional."""
        if not self._attempt.learners or self._is_frozen:
            return None
        self._finish_writing()
        self._begin(reason, models_optional=models_optional)
        return self._finish_writing()

    def _begin(
        self, reason: messages.CheckpointReason, *, models_optional: bool = False, request: int | None = None
    ) -> None:
        """Copy the state, and submit it to the writing thread."""
        self._number += 1
        folder = self._scratch / f"checkpoint-{self._number}"
        learners = self._attempt.learners
        with self._hold() if reason != "final" else nullcontext(list[State]()) as collectors:
            state = self.state(collectors)
            self._copied = bytes_of(state) * 2 <= available_memory()
            if self._copied:
                state = copied(state)
        models = {name: learner.exporter() for name, learner in learners.items()}
        self._selfplay.report(at_once=True)  # the matches that the checkpoint counts
        steps = {name: state["progress"]["step"] for name, state in self._attempt.restored.items()}
        steps |= {name: learner.learned for name, learner in learners.items()}
        measured = {name: learner.recorder.take_checkpoint_return() for name, learner in learners.items()}
        message = messages.CheckpointWritten(
            folder=str(folder),
            step=sum(steps.values()),
            steps=steps,
            reason=reason,
            keep=max(learner.config.keep_checkpoints for learner in learners.values()),
            metrics={name: score and score[0] for name, score in measured.items()},
            scored_by={name: score[1] for name, score in measured.items() if score is not None},
            request=request,
        )
        for learner in self._attempt.learners.values():
            learner.checkpointed()
        written = self._writer.submit(_write, folder, state, models, models_optional=models_optional)
        saved = {name: state[name]["algorithm"].get("replay") for name in learners}
        experiences = {name: len(replay["steps"][0]) for name, replay in saved.items() if replay is not None}
        self._writing = _Writing(message, written, experiences)
        log.debug("checkpoint_begun", folder=message.folder, reason=reason, step=message.step, copied=self._copied)

    @contextmanager
    def _hold(self) -> Iterator[list[State]]:
        """Hold the collectors; yield each one's snapshot by its index, none if nothing can be continued exactly."""
        pool, states, learners = self._attempt.pool, dict[int, State](), self._attempt.learners.values()
        sections = [learner.config for learner in learners if isinstance(learner, BehaviorLearner)]
        in_lockstep = not any(section.threaded or section.self_play for section in sections)
        if not sections or not in_lockstep or self._attempt.ranks > 1:
            yield []
            return
        try:
            awaited = pool.hold(SIMULATOR_SECONDS)
            deadline = time.monotonic() + SIMULATOR_SECONDS + ANSWER_SECONDS
            while awaited - states.keys() and (seconds := deadline - time.monotonic()) > 0:
                for event in pool.poll(seconds):
                    if isinstance(event, HandedOver):
                        states[event.collector] = event.state
                        continue
                    if isinstance(event, CollectorDied | EdgeCollectorLeft):
                        awaited.discard(event.index)
                    self._handle(event)
            complete = not awaited - states.keys()
            yield [states.get(index, EMPTY) for index in range(max(states, default=-1) + 1)] if complete else []
        finally:
            pool.release()

    def _finish_writing(self) -> str | None:
        """Wait for the checkpoint that is being written, and report it; return its folder, None if there is none."""
        if self._writing is None:
            return None
        writing, self._writing = self._writing, None
        folder = writing.message.folder
        try:
            models = writing.written.result()
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # half of one holds the room that the next one needs
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            code = "storage_full" if full else "storage_unavailable"
            remedy = f"free space where {self._scratch.parent} lies, or lower what a checkpoint holds" if full else ""
            detail = f"The checkpoint could not be written: {error}" + (f"; {remedy}" if remedy else "")
            self._attempt.report("checkpoint_failed", detail, level="error", code=code)
            self._refused = messages.CheckpointRefused(folder=folder, code=code, detail=detail)
            if writing.message.request is not None:
                self._attempt.supervisor.post(
                    messages.CheckpointDeclined(request=writing.message.request, detail=detail)
                )
            return None
        for name, why in models.left_out.items():
            self._attempt.report("model_left_out", f"{name}: {why}", level="warning")
        self._attempt.supervisor.post(writing.message.model_copy(update={"models": models.described}))
        log.debug("checkpoint_written", folder=folder, step=writing.message.step)
        for name, count in writing.experiences.items():
            log.info("replay_buffer_saved", behavior=name, experiences=count, folder=folder)
        return folder

    def state(self, collectors: Sequence[State] = ()) -> State:
        """Return the state for a checkpoint, with the snapshots of collectors."""
        states: State = dict(self._attempt.restored)
        for name, learner in self._attempt.learners.items():
            states[name] = learner.state() | {"spec": spec_to_message(learner.spec).SerializeToString().hex()}
            if collectors and isinstance(learner, BehaviorLearner) and not learner.done:
                recorder = learner.recorder.state(learner.learned)
                states[name]["collection"] = {**learner.collection(), "recorder": recorder}
        if (parameters := self._parameters.state()) is not None:
            states[ENVIRONMENT_PARAMETERS] = parameters
        if self._attempt.amended:
            states[AMENDMENTS] = {"made": self._attempt.amended}
        if collectors:
            states[COLLECTORS] = list(collectors)
        return states

    def finish(self, outcome: messages.Outcome, reason: StopReason | None, detail: str) -> messages.Finished:
        """Write the final checkpoint, wait for its acknowledgement, and say how the attempt ended.

        The wait has no limit: a supervisor answers when the files are copied or have failed, and ends this process when
        it shall not wait any longer. A trainer that gave up would begin again where it ended, and again wait in vain.
        """
        failed = outcome == "failed"
        try:
            self._finish_writing()
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
            for message in self._attempt.supervisor.commands():
                match message:
                    case messages.CheckpointCommitted():
                        committed = committed or message.folder == folder
                    case messages.CheckpointRefused() if message.folder == folder:
                        self._refused = message
            time.sleep(0.01)
        if failed:  # for its own reason, whatever became of the checkpoint: another attempt would fail alike
            lost = "" if self._refused is None else f"; its last checkpoint could not be stored: {self._refused.detail}"
            return messages.Finished(outcome=outcome, reason=reason, detail=detail + lost)
        if self._refused is not None:
            full = self._refused.code == "storage_full"
            why = StopReason.STORAGE_FULL if full else StopReason.STORAGE_UNAVAILABLE
            return messages.Finished(outcome="failed", reason=why, detail=self._refused.detail)
        return messages.Finished(outcome=outcome, reason=reason, detail=detail)


def _write(
    folder: Path, state: State, models: Mapping[str, Callable[[Path], OnnxModel]], *, models_optional: bool
) -> _Models:
    """Write a checkpoint. Raise `ExportMismatch` unless models are optional; such a model is left out then."""
    written = _Models({}, {})
    folder.mkdir(parents=True)
    save(folder, state)
    for name, export in models.items():
        file = f"{file_name(name)}.onnx"
        try:
            written.described[file] = export(folder / file)
        except ExportMismatch as error:
            if not models_optional:
                raise
            written.left_out[name] = str(error)
    return written


def lower_priority() -> None:
    """Give this thread a lower priority than those that act and learn; Linux has one for each thread."""
    thread = threading.get_native_id()
    # Under `nice -n 15` a user who is not root may not go back to 10.
    os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), 10))
