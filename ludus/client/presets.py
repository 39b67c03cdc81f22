"""Presets: configurations that come with the server."""

from collections.abc import Sequence

from ludus.client.transport import Resource, segment
from ludus.schemas import Preset, PresetSummary


class Presets(Resource):
    """Requests about presets."""

    def list(self) -> Sequence[PresetSummary]:
        """Return all presets, by name."""
        return [*self._transport.pages(PresetSummary, "/v1/presets")]

    def get(self, name: str) -> Preset:
        """Return one preset. Its `source` is a configuration for `runs.create`."""
        return self._transport.get(Preset, f"/v1/presets/{segment(name)}")
