"""Errors of demonstrations."""

from server.kit.errors import Conflict, Invalid, NotFound


class DemonstrationNotFound(NotFound, code="demonstration_not_found"):
    """No demonstration has this id."""

    demonstration_id: str
    sentence = "There is no demonstration {demonstration_id!r}. List the demonstrations to see what there is."


class DemonstrationInUse(Conflict, code="demonstration_in_use"):
    """A demonstration cannot be deleted: a run that has not ended uses it."""

    demonstration_id: str
    run_id: str
    sentence = (
        "Demonstration {demonstration_id} is used by run {run_id}, which has not ended. Wait for its end, or cancel "
        "it, and delete the demonstration then."
    )


class DemonstrationInvalid(Invalid, code="invalid_demonstration"):
    """A file is no demonstration, or the requested one cannot be made of it."""

    problem: str
    name: str = ""
    position: int | None = None

    def _sentence(self) -> str:
        where = f" {self.name}" if self.name else ""
        at = "" if self.position is None else f" (at byte {self.position})"
        return f"The demonstration{where} cannot be used{at}: {self.problem}."
