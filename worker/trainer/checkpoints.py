"""Checkpoints of one attempt: written to its scratch folder, and told to the superior, who keeps them.

Nothing here waits for the superior, except the last checkpoint for its acknowledgement.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from ludus.spec import file_name
from server.runs.states import StopReason
from worker.checkpoint import ENVIRONMENT_PARAMETERS, save
from worker.export import ExportMismatch
from worker.learner import Learner
from worker.link import CheckpointCommitted, CheckpointReason, CheckpointRefused, CheckpointWritten, Finished, Outcome
from worker.trainer.contest import Contest
from worker.trainer.lessons import Lessons
from worker.trainer.superior import Events, Superior

log = structlog.get_logger()

COMMIT_SECONDS: Final = 60.0
"""How long the last checkpoint may take to be acknowledged."""


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
        *,
        plays: bool,
    ) -> None:
        """`waiting` are the states of behaviors that have not come yet: they go on into the next checkpoint.

        `plays`: nothing is learnt, so that there is nothing to keep.
        """
        self._scratch = scratch
        self._superior = superior
        self._events = Events(superior)
        self._learners = learners
        self._waiting = waiting
        self._lessons = lessons
        self._contest = contest
        self._plays = plays
        self._number = 0
        self._refused: CheckpointRefused | None = None

    def write(self, reason: CheckpointReason, *, models_optional: bool = False) -> str | None:
        """Write a checkpoint of all behaviors to the scratch folder; return the folder.

        Raise `ExportMismatch` where a model does not do what its policy does, unless it may be left out.
        """
        if not self._learners or self._plays:
            return None
        self._number += 1
        folder = self._scratch / f"checkpoint-{self._number}"
        try:
            folder.mkdir(parents=True)
            save(folder, self.state())
            for learner in self._learners.values():
                try:
                    learner.export(folder / f"{file_name(learner.name)}.onnx")
                except ExportMismatch as error:
                    if not models_optional:
                        raise
                    self._events.tell("model_left_out", f"{learner.name}: {error}", level="warning")
        except OSError as error:
            self._events.tell(
                "checkpoint_failed",
                f"The checkpoint could not be written: {error}",
                level="error",
                data={"code": "storage_full"},
            )
            self._refused = CheckpointRefused(folder=str(folder), code="storage_full", detail=str(error))
            for learner in self._learners.values():
                learner.checkpointed()
            return None
        self._contest.tell(at_once=True)  # those that the checkpoint counts
        steps = {name: state["progress"]["step"] for name, state in self._waiting.items()}
        steps |= {name: learner.learnt for name, learner in self._learners.items()}
        self._superior.post(
            CheckpointWritten(
                folder=str(folder),
                step=sum(steps.values()),
                steps=steps,
                reason=reason,
                keep=max(learner.config.keep_checkpoints for learner in self._learners.values()),
                metrics={name: learner.recorder.take_checkpoint_return() for name, learner in self._learners.items()},
            )
        )
        for learner in self._learners.values():
            learner.checkpointed()
        return str(folder)

    def state(self) -> dict[str, object]:
        """Return what a checkpoint must hold to go on from here."""
        states = {**self._waiting, **{name: learner.state() for name, learner in self._learners.items()}}
        return states | ({ENVIRONMENT_PARAMETERS: self._lessons.state()} if self._lessons.samplers else {})

    def finish(self, outcome: Outcome, reason: StopReason, detail: str) -> Finished:
        """Write the final checkpoint, wait for its acknowledgement, and say how the attempt ended."""
        self._refused = None
        failed = outcome == "failed"
        folder = self.write(
            "final" if failed or outcome == "succeeded" else "requested",
            models_optional=failed,  # what made updates fail (observations of 1e30) may spoil the check of a model, too
        )
        deadline = time.monotonic() + COMMIT_SECONDS
        committed = folder is None
        while not committed and self._refused is None and time.monotonic() < deadline:
            for message in self._superior.commands():
                match message:
                    case CheckpointCommitted():
                        committed = committed or message.folder == folder
                    case CheckpointRefused() if message.folder == folder:
                        self._refused = message
            time.sleep(0.01)
        if not committed and self._refused is None:
            log.warning("final_checkpoint_not_acknowledged", folder=folder)
        if failed:  # for its own reason, whatever became of the checkpoint: another attempt would fail alike
            lost = "" if self._refused is None else f"; its last checkpoint could not be stored: {self._refused.detail}"
            return Finished(outcome=outcome, reason=reason, detail=detail + lost)
        if self._refused is not None:
            return Finished(outcome="failed", reason=StopReason.STORAGE_FULL, detail=self._refused.detail)
        if not committed:
            return Finished(outcome="released", detail="the final checkpoint was not acknowledged in time")
        return Finished(outcome=outcome, reason=reason, detail=detail)
