"""TensorBoard's own reading of event files, and where ML-Agents' real ones lie."""

from collections import defaultdict
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

REAL = Path(__file__).parents[3] / "data" / "mlagents-results"
"""What ML-Agents 1.1.0 wrote itself."""
PPO = REAL / "ppo-lstm-curiosity-rnd-curriculum"
SAC = REAL / "sac-replay-buffer"
SELF_PLAY = REAL / "selfplay-gail-vail-bc"


def events_in(folder: Path) -> list[Event]:
    """Return all events of a folder's files, in the order in which they were written."""
    return [
        Event.FromString(raw)
        for file in sorted(folder.glob("events.out.tfevents.*"))
        for raw in RawEventFileLoader(str(file)).Load()
    ]


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of every scalar that was written, by tag; superseded ones too."""
    found: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in events_in(folder):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found[value.tag].append((event.step, value.simple_value))
    return dict(found)


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of every scalar as TensorBoard shows it, by tag."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }
