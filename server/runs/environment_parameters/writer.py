"""The environment parameters of an attempt's run: edits to apply, and their published values."""

from collections.abc import Mapping, Sequence
from typing import Any

from server.runs.attempts.repository import AttemptFence
from server.runs.environment_parameters.repository import ParameterRepository


class ParameterWriter:
    """Reads edits of environment parameters, and publishes where the parameters are."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def edits(self, after: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Return number, parameter and change of the edits behind `after`. Not fenced: edits never change."""
        with self._fence.database.read() as session:
            edits = ParameterRepository(session).edits(self._fence.run_id, after)
            return [(edit.seq, edit.parameter, edit.change) for edit in edits]

    def publish(self, parameters: Sequence[Mapping[str, Any]], edit: int) -> None:
        """Store where the parameters are, and the number of the last edit that the trainer has applied.

        Raises LeaseLost.
        """
        with self._fence.write() as (session, run):
            ParameterRepository(session).store_report(run.id, parameters, edit)
