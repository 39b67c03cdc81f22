"""A collector beside the games: it acts there, and sends finished segments to the run over one stream."""

from typing import Final

VERSION: Final = 6
"""Of the messages between an edge collector and its attempt. Both speak the same one, or the collector is refused."""
