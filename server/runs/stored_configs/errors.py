"""Errors of stored configurations and presets."""

from collections.abc import Sequence

from server.kit.errors import NotFound


class PresetNotFound(NotFound, code="preset_not_found"):
    """No preset has this name."""

    name: str
    names: Sequence[str]

    def _sentence(self) -> str:
        return f"There is no preset {self.name!r}. There are {', '.join(self.names)}."
