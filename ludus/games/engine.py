"""Engine settings that were typed on the game machine: they override those of the run."""

import struct
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ludus.protocol.codes import ProtocolError
from ludus.protocol.side_channels import ENGINE_CONFIGURATION, EngineConfiguration, engine_configuration, join, split

_RESOLUTION: Final = struct.Struct("<iii")
"""Kind of property 0, width, height."""
_FRAME_OF: Final = {
    "width": 0,
    "height": 0,
    "quality_level": 1,
    "time_scale": 2,
    "target_frame_rate": 3,
    "capture_frame_rate": 4,
}
"""Property -> its frame, of the five frames of an engine configuration."""


@dataclass(frozen=True)
class EngineOverrides:
    """The engine's properties, as in `EngineConfiguration`. None: as the run says."""

    width: int | None = None
    height: int | None = None
    quality_level: int | None = None
    time_scale: float | None = None
    target_frame_rate: int | None = None
    capture_frame_rate: int | None = None

    def __bool__(self) -> bool:
        """Whether anything was typed."""
        return bool(self._typed())

    def frames(self, run_frames: bytes) -> bytes:
        """Return frames to append to those of the run: one for each property that was typed.

        Width and height share a frame, so that one that was not typed is taken from the run.
        """
        typed = self._typed()
        all_frames = engine_configuration(replace(_resolution(run_frames), **typed))
        return join(all_frames[index] for index in sorted({_FRAME_OF[name] for name in typed}))

    def _typed(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def _resolution(run_frames: bytes) -> EngineConfiguration:
    """Return a configuration whose width and height are those in the frames, or else the defaults."""
    configuration = EngineConfiguration()
    try:
        frames = split(run_frames)
    except ProtocolError:
        return configuration
    for channel, payload in frames:
        if channel == ENGINE_CONFIGURATION and len(payload) == _RESOLUTION.size:
            kind, width, height = _RESOLUTION.unpack(payload)
            if kind == 0:
                configuration = EngineConfiguration(width=width, height=height)
    return configuration
