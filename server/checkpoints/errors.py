"""Errors of checkpoints."""

from server.kit.errors import Conflict, Invalid, NotFound


class CheckpointRequestNotFound(NotFound, code="checkpoint_request_not_found"):
    """The run has had no such request for a checkpoint."""

    run_id: str
    seq: int
    sentence = "Run {run_id} has had no request {seq} for a checkpoint. Ask for one with `:checkpoint`."


class CheckpointInUse(Conflict, code="checkpoint_in_use"):
    """An uploaded checkpoint cannot be deleted: a run that has not ended begins with it."""

    checkpoint_id: str
    run_id: str
    sentence = (
        "Checkpoint {checkpoint_id} is used by run {run_id}, which has not ended. Wait for its end, or cancel it, and "
        "delete the checkpoint then."
    )


class CheckpointInvalid(Invalid, code="invalid_checkpoint"):
    """An uploaded file is no checkpoint."""

    problem: str
    sentence = "The checkpoint cannot be used: {problem}."


class AliasNotFound(NotFound, code="alias_not_found"):
    """No checkpoint has this alias."""

    name: str
    sentence = (
        "There is no alias {name!r}. Make it with `ludus checkpoint alias set {name} RUN/latest`, or name a checkpoint "
        "by its id (ckpt_...) or as RUN/latest."
    )


class AliasMoved(Conflict, code="alias_moved"):
    """An alias does not name the expected checkpoint: another request has moved it."""

    name: str
    expected: str | None
    actual: str | None

    def _sentence(self) -> str:
        stands = "stands for nothing" if self.actual is None else f"stands for {self.actual}"
        return (
            f"The alias {self.name!r} {stands}, not for {self.expected or 'nothing'} as expected: it was left as it "
            "is. Compare with what it stands for now, or move it without `expected`."
        )


class AliasInvalid(Invalid, code="invalid_alias"):
    """A checkpoint cannot have this alias."""

    name: str
    sentence = "{name!r} cannot be an alias: it means a checkpoint anyway. Choose another name."
