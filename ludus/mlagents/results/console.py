"""The console output of `mlagents-learn`, word for word, because users' tools parse it.

`[INFO] A. Step: 200. Time Elapsed: 1.389 s. Mean Reward: 1.900. Std of Reward: 0.000. Training.`
"""

from collections.abc import Mapping
from dataclasses import dataclass

REWARD = "Environment/Cumulative Reward"
REWARD_STD = "Environment/Cumulative Reward Std"
GROUP_REWARD = "Environment/Group Cumulative Reward"
ELO = "Self-play/ELO"


@dataclass(frozen=True)
class Summary:
    """One behavior's summary: the metrics at a multiple of `summary_freq`."""

    behavior: str
    step: int
    elapsed: float
    """Seconds since training began."""
    values: Mapping[str, float]
    """The metrics that have a point at this step."""
    training: bool = True


def summary_line(summary: Summary) -> str:
    """Write the line that comes with each summary."""
    values = summary.values
    parts = [summary.behavior, f"Step: {summary.step}", f"Time Elapsed: {summary.elapsed:0.3f} s"]
    training = "Training" if summary.training else "Not Training"
    if REWARD not in values:
        parts += ["No episode was completed since last summary", training]
    else:
        parts.append(f"Mean Reward: {values[REWARD]:0.3f}")
        if GROUP_REWARD in values:
            parts.append(f"Mean Group Reward: {values[GROUP_REWARD]:0.3f}")
        else:
            parts.append(f"Std of Reward: {values.get(REWARD_STD, 0.0):0.3f}")
        parts.append(training)
        if ELO in values:
            parts.append(f"ELO: {values[ELO]:0.3f}")
    return info(". ".join(parts) + ".")


def hyperparameters(settings: Mapping[str, object], depth: int = 0) -> str:
    """Write a behavior's settings as a tree: the text of TensorBoard's `Hyperparameters`, too."""
    lines = []
    for key, item in settings.items():
        text = f"\n{hyperparameters(item, depth + 1)}" if isinstance(item, Mapping) else str(item)
        lines.append(f"\t{'  ' * depth}{key}:\t{text}")
    return "\n".join(lines)


def hyperparameters_line(behavior: str, settings: Mapping[str, object]) -> str:
    """Introduce a behavior whose training begins."""
    return info(f"Hyperparameters for behavior name {behavior}: \n{hyperparameters(settings)}")


def info(text: str) -> str:
    """Mark a line as information."""
    return f"[INFO] {text}"


def warning(text: str) -> str:
    """Mark a line as a warning."""
    return f"[WARNING] {text}"
