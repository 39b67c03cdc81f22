"""Short names of metrics: the same in requests over HTTP, in the client, and on command lines."""

from collections.abc import Mapping
from typing import Final

SHORT_KEYS: Final[Mapping[str, str]] = {
    "reward": "Environment/Cumulative Reward",
    "length": "Environment/Episode Length",
    "win": "Environment/Win",
    "draw": "Environment/Draw",
    "loss": "Environment/Loss",
}
"""`reward` is the mean undiscounted return of the newest summary; `win`, `draw` and `loss` are shares of games against
scripted opponents (`ludus.play.scripted`).
"""


def full_key(key: str) -> str:
    """Return the metric that a short name stands for, and any other key as it is."""
    return SHORT_KEYS.get(key, key)
