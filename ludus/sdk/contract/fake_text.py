"""Messages of the fake server in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ludus.protocol.batches import BehaviorBatch, StatValue

MAX_SHOWN: Final = 5
"""Maximum number of agents, rewards, ... of one message that are printed."""


def step_text(batches: Sequence[BehaviorBatch], stats: Sequence[StatValue]) -> Iterator[str]:
    """Yield a text for each part of a step."""
    for name, decisions, terminals in batches:
        if terminals is not None:
            truncated = int(terminals.truncated.sum())
            yield (
                f"{name}: episodes of agents {shortened(terminals.agent_ids.tolist())} ended "
                f"({len(terminals.agent_ids) - truncated} terminated, {truncated} truncated), rewards "
                f"{shortened(terminals.rewards.tolist())}"
            )
        if decisions is not None:
            masked = "" if decisions.action_masks is None else ", with masks"
            yield (
                f"{name}: agents {shortened(decisions.agent_ids.tolist())} ask, rewards "
                f"{shortened(decisions.rewards.tolist())}{masked}"
            )
    if stats:
        yield f"stats {shortened([f'{stat.key} {stat.value:g}' for stat in stats])}"


def shortened(values: Sequence[Any]) -> str:
    """Return the first MAX_SHOWN values, and the number of the others."""
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values[:MAX_SHOWN]]
    return ", ".join(shown) + (f" and {len(values) - MAX_SHOWN} more" if len(values) > MAX_SHOWN else "")


def agents_text(agents: Mapping[str, set[int]]) -> str:
    """Return the agents of each behavior."""
    return ", ".join(f"{shortened(sorted(ids))} of {name}" for name, ids in agents.items()) or "none"
