"""Environment parameters of runs."""

from collections.abc import Mapping
from typing import Any

from ludus.client.transport import Transport, segment
from ludus.schemas import EnvironmentParameters


class Parameters(Transport):
    """Requests about environment parameters."""

    def environment_parameters(self, run: str) -> EnvironmentParameters:
        """Return where each environment parameter of a run is in its lessons, and what it waits for."""
        return self._read(EnvironmentParameters, self._get(f"/v1/runs/{segment(run)}/environment_parameters"))

    def set_lesson(self, run: str, parameter: str, lesson: int | str) -> EnvironmentParameters:
        """Begin another lesson of a parameter, by its name or its number from 1, while the run goes on.

        Like `set_parameter`, this returns at once; the event `lesson_changed` says when the trainer has done it.
        """
        return self._change_parameter(run, parameter, {"lesson": lesson})

    def set_parameter(self, run: str, parameter: str, value: float | Mapping[str, Any]) -> EnvironmentParameters:
        """Give the present lesson of a parameter another value, a number or a sampler, while the run goes on."""
        return self._change_parameter(run, parameter, {"value": value})

    def _change_parameter(self, run: str, parameter: str, change: Mapping[str, Any]) -> EnvironmentParameters:
        path = f"/v1/runs/{segment(run)}/environment_parameters"
        return self._read(EnvironmentParameters, self._patch(path, {"parameters": {parameter: change}}))
