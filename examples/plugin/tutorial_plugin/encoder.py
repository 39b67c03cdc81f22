"""The configuration of the tiles encoder."""

from typing import ClassVar

from pydantic import Field

from ludus.config.encoder import EncoderConfig
from ludus.config.values import Whole


class TilesConfig(EncoderConfig):
    """Encoder for games drawn in tiles: each tile becomes a few numbers, then neighbours are compared."""

    implementation: ClassVar[str] = "tutorial_plugin.layers:tiles"
    minimum_size: ClassVar[int] = 12
    tile: Whole = Field(default=4, ge=1, le=4)
    """Width and height of a tile, in pixels."""
    channels: Whole = Field(default=16, ge=1, le=256)
    """Numbers that describe a tile."""
