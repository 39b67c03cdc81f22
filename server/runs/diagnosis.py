"""Names what holds a run back, from the measurements of its trainer.

The simulators' time is split into what they spend it on; the largest part is the cause. Without that part, steps per
second would be higher by 1 / (1 - share): that is the figure of what would be won, until another limit is reached.
"""

from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from struct import Struct
from typing import Final, Self

from ludus.config.run import RunConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.schemas import Bottleneck, BottleneckCause

_WHOLE: Final = {"at": "d", "steps": "q", "collectors": "i", "simulators": "i", "latest_simulator": "i"}
"""The fields that are packed without rounding, with their form of `struct`."""
_NONE: Final = -1
"""`latest_simulator` where no simulator is the latest."""


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """Means over `seconds`. Shares are from 0 to 1.

    Simulators share one time: `away` + `waiting_for_...` + what is left, in which collectors act for them, is 1.
    """

    at: float
    """Seconds since 1970."""
    seconds: float
    steps: int
    """Agent steps of all behaviors in this time."""
    learning: float
    """Share of the trainer's time in updates."""
    checkpointing: float
    """Share of the trainer's time in work on checkpoints."""
    collectors: int
    simulators: int
    """That play."""
    busy: float
    """Share of the time in which the busiest collector computes. Time in which other processes keep it from a processor
    does not count.
    """
    collecting: float
    """The same of all collectors, in the mean."""
    waiting_for_learner: float
    """Share of the simulators' time in which agents wait for a reason of `ludus.collector.agent_waits`."""
    waiting_for_stragglers: float
    waiting_for_checkpoint: float
    waiting_for_network: float
    away: float
    """Share of the simulators' time between an answer and the next step, in the game and on the way."""
    game: float
    """Share of it in the game; all of `away` where no simulator says how long its game takes (Unity's do not)."""
    game_seconds: float
    """Of one step."""
    way_seconds: float
    """To the game and back: of the quickest step of each simulator, in the mean, because others also wait for a
    processor at either end; 0 where no simulator says how long its game takes.
    """
    latest_simulator: int | None
    """Number of the simulator that the others waited for the longest."""
    latest_simulator_share: float
    """Share of these waits that were for it."""

    @property
    def learner_idle(self) -> float:
        """Share of the trainer's time in which it neither learns nor works on checkpoints: it waits for experience."""
        return max(1.0 - self.learning - self.checkpointing, 0.0)

    @property
    def collectors_idle(self) -> float:
        """Share of the collectors' time in which they compute nothing, mean over them: they wait for games, for the
        learner, or for a checkpoint.
        """
        return max(1.0 - self.collecting, 0.0)

    def pack(self) -> bytes:
        """Return the values in 84 bytes, because each heartbeat writes them; shares and times are rounded."""
        return _PACKED.pack(*(_NONE if value is None else value for value in astuple(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> Self | None:
        """Return the values of `pack`; None for the bytes of a release that has other fields."""
        if len(packed) != _PACKED.size:
            return None
        pairs = zip(fields(cls), _PACKED.unpack(packed), strict=True)
        values = {field.name: value if field.name in _WHOLE else round(value, 6) for field, value in pairs}
        latest = values["latest_simulator"]
        return cls(**{**values, "latest_simulator": None if latest == _NONE else latest})


_PACKED: Final = Struct("<" + "".join(_WHOLE.get(each.name, "f") for each in fields(TimeSpent)))


Cause = BottleneckCause
SLOW_WAY_SECONDS: Final = 0.002
"""If the quickest steps take less to the game and back, no network is crossed: it is the work of messages."""
BUSY: Final = 0.6
"""A collector that uses this share of its processor while agents wait for it is busy; below, it waits itself."""


def diagnose(spent: TimeSpent, config: RunConfig) -> Bottleneck:
    """Return the cause with its figures, and what to change."""
    shares = _shares(spent)
    cause = max(shares, key=lambda limit: shares[limit])
    share = min(shares[cause], 0.99)
    speed = spent.steps / spent.seconds
    message, advice = _words(cause, share, spent, config)
    if spent.simulators:
        message += (
            f"; collectors are idle {spent.collectors_idle:.0%} of the time, the learner {spent.learner_idle:.0%}"
        )
    return Bottleneck(
        cause=cause,
        message=message,
        advice=advice,
        share=share,
        steps_per_second=speed,
        steps_per_second_without=speed / (1.0 - share),
        simulator=spent.latest_simulator if cause is Cause.STRAGGLERS else None,
        measured_at=datetime.fromtimestamp(spent.at, UTC),
        shares={limit.value: round(value, 4) for limit, value in shares.items()},
        learner_idle=round(spent.learner_idle, 4),
        collectors_idle=round(spent.collectors_idle, 4),
    )


def _shares(spent: TimeSpent) -> dict[BottleneckCause, float]:
    if not spent.simulators:
        return {Cause.TOO_FEW_SIMULATORS: 1.0}
    # While agents wait for the learner it may be at a checkpoint, or be waiting itself: for another collector's round.
    waited = spent.waiting_for_learner
    checkpoint = min(max(spent.checkpointing - spent.waiting_for_checkpoint, 0.0), waited)
    learner = min(spent.learning, waited - checkpoint) if spent.collectors > 1 else waited - checkpoint
    stragglers = spent.waiting_for_stragglers + (waited - checkpoint - learner)
    way = spent.away - spent.game if spent.way_seconds >= SLOW_WAY_SECONDS else 0.0
    waits = waited + spent.waiting_for_stragglers + spent.waiting_for_checkpoint + spent.waiting_for_network
    remainder = max(1.0 - waits - spent.game - way, 0.0)
    is_busy = spent.busy >= BUSY * max(1.0 - waits, 0.05)
    return {
        Cause.GAMES: spent.game,
        Cause.ACTING: remainder if is_busy else 0.0,
        Cause.NETWORK: way + spent.waiting_for_network,
        Cause.LEARNER: learner,
        Cause.STRAGGLERS: stragglers,
        Cause.TOO_FEW_SIMULATORS: 0.0 if is_busy else remainder,
        Cause.CHECKPOINTS: checkpoint + spent.waiting_for_checkpoint,
    }


def _words(cause: BottleneckCause, share: float, spent: TimeSpent, config: RunConfig) -> tuple[str, str]:
    """Return the sentence, and the advice."""
    of_time = f"{share:.0%} of the simulators' time"
    step, way = (f"{1000 * seconds:.1f} ms" for seconds in (spent.game_seconds, spent.way_seconds))
    match cause:
        case Cause.GAMES:
            message = f"The games take {of_time}, {step} for a step"
            advice = (
                "start more simulators, on more machines if these have no idle processor, or make the games faster "
                f"(Unity: engine_settings.time_scale, now {config.engine_settings.time_scale:g})"
            )
        case Cause.ACTING:
            message = (
                f"Acting takes {of_time}; of {spent.collectors} collectors the busiest computes "
                f"{min(spent.busy, 1.0):.0%} of the time in which it can have a processor"
            )
            advice = (
                f"set simulators.collectors.local to {spent.collectors + 1}, or let edge collectors act beside the "
                "games (ludus collect)"
            )
        case Cause.NETWORK if spent.waiting_for_network > spent.away - spent.game:
            message = f"The network of an edge collector is slower than its games, which wait for it {of_time}"
            advice = "move the games closer to the server, or give each edge collector fewer of them"
        case Cause.NETWORK:
            message = f"The network takes {of_time}, at least {way} for a step to a game and back"
            advice = "let an edge collector act beside the games: ludus collect, or --collect here"
        case Cause.LEARNER:
            message = f"Simulators wait for the learner {of_time}"
            behaviors = [
                behavior for behavior in config.behaviors.values() if isinstance(behavior, ReinforcementConfig)
            ]
            ways = [] if all(each.threaded for each in behaviors) else ["set threaded: true, so that games play on"]
            advice = ", or ".join([*ways, "train on a GPU", "use fewer epochs or a smaller network"])
        case Cause.STRAGGLERS:
            message = f"Simulators wait for the last steps of a round {of_time}"
            if spent.latest_simulator is not None:
                message += f", {spent.latest_simulator_share:.0%} of that for simulator {spent.latest_simulator}"
            advice = "look at the slowest simulator, let rounds be longer (a larger buffer_size), or set threaded: true"
        case Cause.TOO_FEW_SIMULATORS if not spent.simulators:
            message = "No simulator plays"
            advice = "start simulators (ludus simulate, ludus unity)"
        case Cause.TOO_FEW_SIMULATORS:
            message = f"There are too few simulators ({spent.simulators}), and a game's step takes only {step}"
            advice = "start more simulators, or put more agents into each"
        case Cause.CHECKPOINTS:
            message = f"Simulators wait for checkpoints {of_time}"
            advice = "use a larger checkpoint_interval, or a faster disk for the worker's scratch folder"
    return message, advice
