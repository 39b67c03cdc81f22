"""Environment parameters of runs."""

from collections.abc import Mapping
from typing import Any

from ludus import schemas
from ludus.client.transport import Resource, segment


class EnvironmentParameters(Resource):
    """Requests about environment parameters."""

    def get(self, run: str) -> schemas.EnvironmentParameters:
        """Return each environment parameter of a run: its lesson, its value, and when the next lesson begins."""
        return self._transport.get(schemas.EnvironmentParameters, _path(run))

    def set_lesson(self, run: str, parameter: str, lesson: int | str) -> schemas.EnvironmentParameters:
        """Begin another lesson of a parameter, by its name or its number from 1, while the run continues.

        Like `set_value`, this returns at once; the event `lesson_changed` says when the trainer has done it.
        """
        return self._change(run, parameter, {"lesson": lesson})

    def set_value(self, run: str, parameter: str, value: float | Mapping[str, Any]) -> schemas.EnvironmentParameters:
        """Give the present lesson of a parameter another value, a number or a sampler, while the run continues."""
        return self._change(run, parameter, {"value": value})

    def _change(self, run: str, parameter: str, change: Mapping[str, Any]) -> schemas.EnvironmentParameters:
        return self._transport.patch(schemas.EnvironmentParameters, _path(run), {"parameters": {parameter: change}})


def _path(run: str) -> str:
    return f"/v1/runs/{segment(run)}/environment_parameters"
