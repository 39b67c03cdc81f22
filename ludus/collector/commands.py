"""The messages of the learner to a collector; `ludus.collector.messages` has their format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from ludus.collector.arena import ArenaLayout
from ludus.collector.heads import head_of
from ludus.collector.layout import NetworkGraph
from ludus.collector.messages import Message
from ludus.config.network import NetworkSettings
from ludus.config.recording import RecordConfig
from ludus.plugins import OWN, Kind, PluginError, installed
from ludus.protocol.environment_parameters import ParameterValue

CHAMPION_ALONE: Final = -1
"""In place of a team in an evaluation: the champion plays all of them."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The description from which a collector builds one network."""

    network_settings: NetworkSettings
    head: str
    """The kind of its last layer: a key of `ludus.collector.heads.HEADS`."""
    graph: NetworkGraph | None = None
    """That of a network that is not dense (`ludus.collector.layout`): it acts with ONNX Runtime on a CPU."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The description from which a collector builds the acting policy of a behavior."""

    network_settings: NetworkSettings
    weights_size: int
    """Length of the flat weight vector."""
    time_horizon: int
    """Longest segment, in steps."""
    head: str = "gaussian"
    """The kind of the last layer: a key of `ludus.collector.heads.HEADS`."""
    pink_noise: bool = False
    """Whether the noise of continuous actions is pink (`ludus.collector.exploration`)."""
    device: str = "cpu"
    """Where policies act that are not plain: `cpu`, `cuda` or `cuda:N`."""
    graph: NetworkGraph | None = None
    """As `NetworkSpec.graph`."""
    self_play: bool = False
    """Whether one team learns and the others play frozen policies: no agent is answered before `Opponents` came."""
    evaluated: tuple[NetworkSpec, ...] = ()
    """The policies of an evaluation, which answer all agents: the candidate, then the champion. Weights are not
    published and steps are not granted; games of simulators before `BeginEvaluation` do not count."""
    packages: tuple[str, ...] = ()
    """Those that an edge collector needs, since their plug-ins have the heads."""

    @property
    def portable(self) -> Self:
        """The policy for an edge collector, which needs no plug-in of an encoder (`NetworkSettings.portable`)."""
        evaluated = tuple(replace(spec, network_settings=spec.network_settings.portable) for spec in self.evaluated)
        plugins = [installed(Kind.EXPLORERS).get(head) for head in self._heads()]
        packages = tuple(sorted({plugin.package for plugin in plugins if plugin is not None} - {OWN}))
        settings = self.network_settings.portable
        return replace(self, network_settings=settings, evaluated=evaluated, packages=packages)

    def check_heads(self) -> None:
        """Raise PluginError if a head is a plug-in's that is not here. The error says which packages have it."""
        try:
            for head in self._heads():
                head_of(head)
        except PluginError as error:
            raise PluginError(
                f"{error}: pip install {' '.join(self.packages)}" if self.packages else str(error)
            ) from None

    def _heads(self) -> set[str]:
        return {self.head, *(spec.head for spec in self.evaluated)}


@dataclass(frozen=True, slots=True)
class OpponentAssignment:
    """Which team of a behavior learns, and which policies the others play. Keys as in `ludus.collector.opponents`."""

    learning: int | None
    """None: no team of this behavior."""
    teams: Mapping[int, Sequence[int]]
    """The draws of each team: simulator `n` plays draw `n mod k`."""
    others: Sequence[int]
    """Draws of teams that are not among them."""

    @property
    def keys(self) -> set[int]:
        """All policies that are named."""
        return {key for keys in (*self.teams.values(), self.others) for key in keys}


@dataclass(frozen=True, slots=True)
class Settings(Message):
    """First message to a collector. `settings` is the output of `CollectorSettings.to_json`."""

    index: int
    generation: int
    """Counts the processes of this collector."""
    first_number: int
    """Number of the first simulator that comes without a ticket."""
    number_step: int
    """Distance to the number of the next one."""
    settings: str
    restored: bool = False
    """Whether a frame of kind RESTORED follows: the snapshots of a former attempt (`snapshots.state.pack`)."""


@dataclass(frozen=True, slots=True)
class OpenPlace(Message):
    """To the edge reader: a place for an edge collector. Carries the descriptor of the place's channel to the pool."""

    index: int
    """Of the collector that the place is to the pool."""
    former: str = ""
    """`PlaceTaken.identity` of the collector that had it in the former attempt, whose snapshots wait for it there."""


@dataclass(frozen=True, slots=True)
class Admit(Message):
    """A behavior may act.

    Carries the descriptor of its arena, and that of its weight buffers. An assessment has none of the latter, but the
    weights of each of its policies (`weights.freeze`).
    """

    runner: int
    arena: ArenaLayout
    """With the spec that the behavior was announced with first."""
    policy: PolicySpec
    weight_buffers: int
    low_blocks: int
    """Ask for blocks when fewer than this are free."""


@dataclass(frozen=True, slots=True)
class Refuse(Message):
    """Sessions that announce this behavior, or have done so, end with this code."""

    behavior: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Weights(Message):
    """A newer version lies in a buffer. Answered by WeightsRead."""

    runner: int
    index: int
    version: int


@dataclass(frozen=True, slots=True)
class FrozenPolicy(Message):
    """A policy that `Opponents` names from now on. Carries the descriptor of its weights (`weights.freeze`)."""

    runner: int
    key: int
    """As in `ludus.collector.opponents`."""


@dataclass(frozen=True, slots=True)
class Opponents(Message):
    """The learning team, and the policies of the others; after another team follows a reset (`Parameters`)."""

    runner: int
    assignment: OpponentAssignment


@dataclass(frozen=True, slots=True)
class BeginEvaluation(Message):
    """A simulator begins new episodes, with an evaluation batch. Answered by EvaluationEnded if it stays."""

    runner: int
    session_id: str
    episode_batch: int
    team: int | None
    """Number of the team that the candidate plays; None: all of them."""
    parameters: Mapping[str, ParameterValue]
    """Environment parameters of its own, on top of the run's."""


@dataclass(frozen=True, slots=True)
class GrantSteps(Message):
    """Quota of a round; the fields but `version` are those of `StepQuota.grant`."""

    runner: int
    round: int
    steps: int
    size: int
    report_every: int
    version: int
    """No decision is answered by weights older than this."""
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class EndRound(Message):
    """A round is complete: answer no more of it. Steps that are outstanding are delivered as they return."""

    runner: int
    round: int


@dataclass(frozen=True, slots=True)
class Unrecorded(Message):
    """Answer this behavior without limits and without recording."""

    runner: int


@dataclass(frozen=True, slots=True)
class EndSession(Message):
    """End one simulator's session."""

    session_id: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Parameters(Message):
    """Environment parameters: every simulator gets them with its next answer, and begins later episodes with them."""

    environment_parameters: Mapping[str, ParameterValue]
    parameter_set: int
    """Number of this set of parameters; counts changes from 0."""
    reset: bool
    """Whether simulators get them at once, by a reset: every simulator abandons its episodes."""


@dataclass(frozen=True, slots=True)
class Record(Message):
    """Record other sessions from now on, or within other limits."""

    record: RecordConfig


@dataclass(frozen=True, slots=True)
class Hold(Message):
    """Answer no agent until Release, and send the snapshot. Answered by a frame of kind SNAPSHOTS."""

    timeout: float
    """Seconds to wait for simulators to come to rest."""


@dataclass(frozen=True, slots=True)
class Release(Message):
    """The checkpoint has been taken: go on."""


@dataclass(frozen=True, slots=True)
class Forget(Message):
    """A simulator plays at another collector: it does not come back to where it was in a former attempt."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CloseAll(Message):
    """Close every session and exit."""

    code: str
    reason: str
    rejoin: bool
