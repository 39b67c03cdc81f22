"""An admitted behavior, the pool's side: what its collectors are given, and what of it they still hold.

They are given weights, permits, blocks and frozen policies; none of it is lost with one that dies. Everything is called
under the pool's lock, and nothing waits.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ludus.collector import messages
from ludus.collector.arena import Arena, ArenaLayout
from ludus.collector.messages import Kind, pack_lane
from ludus.collector.segments import Segment, blocks_of
from ludus.collector.weights import WeightBuffers, freeze
from ludus.protocol.environment_parameters import ParameterValue, to_plain
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.children import Child, Children
from worker.collectors.programs import Opposition, PolicyProgram
from worker.collectors.sharing import Grant, Order, RoundSharing
from worker.experience.blocks import BlockLedger

BLOCK_CHUNK = 512
"""Blocks that are lent at a time, at most. Few, because those that were used last are lent first and are still in the
cache."""
FEWEST_BLOCKS = 64
CHUNK_BYTES = 32 << 20
"""Blocks of pictures are lent in smaller numbers: what a collector holds becomes memory as it writes all of it in turn.
One that needs more, because more agents than that act at once, asks again."""


def block_chunk(layout: ArenaLayout) -> int:
    """Return how many blocks are lent at a time."""
    return max(FEWEST_BLOCKS, min(BLOCK_CHUNK, CHUNK_BYTES // layout.block_bytes))


class AdmittedBehavior:
    """See the module's text."""

    def __init__(self, lane: int, spec: BehaviorSpec, program: PolicyProgram, arena: Arena, children: Children) -> None:
        self.spec = spec
        self.ledger = BlockLedger(arena.layout.blocks)
        self._lane = lane
        self._program = program
        self._arena = arena
        self._children = children
        self._sharing = RoundSharing()
        self._weights = WeightBuffers.create(program.weights_size, len(children))
        self._version = -1
        """Newest published version; -1 = none."""
        self._index = -1
        """Buffer that holds it."""
        self._reading: dict[int, int] = {}
        """Collector -> buffer that it was told of and has not acknowledged."""
        self._told: dict[int, int] = {}
        """Collector -> newest version that it was told of."""
        self._chunk = block_chunk(arena.layout)
        """Blocks that are lent at a time."""
        self._starving: set[int] = set()
        """Collectors that asked for blocks when none was free."""
        self._recorded = not program.assessment
        self._opposition: Opposition | None = None
        self._frozen = {key: freeze(each.weights) for key, each in enumerate(program.assessment)}
        """Key -> descriptor of the weights, of all policies that the opposition names, or that an assessment is about.
        """

    @property
    def name(self) -> str:
        """Of the behavior."""
        return self.spec.behavior

    def introduce(self, child: Child) -> None:
        """Make the behavior known to a collector."""
        program, layout = self._program, self._arena.layout
        message = messages.Admit(
            lane=self._lane,
            spec=messages.spec_to_text(self.spec),
            network_settings=dict(program.network_settings),
            squashed=program.squashed,
            pink_noise=program.pink_noise,
            device=program.device,
            time_horizon=program.time_horizon,
            rows=layout.rows,
            blocks=layout.blocks,
            memory_size=layout.memory_size,
            weights_size=self._weights.layout.size,
            weight_buffers=self._weights.layout.buffers,
            low_blocks=self._chunk // 2,
            self_play=program.self_play,
            assessment=[
                {"network_settings": dict(each.network_settings), "squashed": each.squashed}
                for each in program.assessment
            ],
        )
        if program.assessment:
            self._children.tell(child, message, (self._arena.fd, *self._frozen.values()))
            return
        self._children.tell(child, message, (self._arena.fd, self._weights.fd))
        self.lend_blocks(child)
        if self._version >= 0:
            self._offer_weights(child)
        if not self._recorded:
            self._children.tell(child, messages.Unrecorded(self._lane))
        if self._opposition is not None:
            self._tell_opposition(child, self._opposition, self._frozen)
        self._send_orders(self._sharing.add(child.index))

    def forget(self, child: Child) -> int:
        """Take back what a dead collector had; return how many steps of the round are lost."""
        self.ledger.reclaim_from(child.index)
        self._starving.discard(child.index)
        self._told.pop(child.index, None)
        if child.index in self._reading:
            self._weights.release(self._reading.pop(child.index))
        lost, orders = self._sharing.remove(child.index)
        self._send_orders(orders)
        return lost

    def close(self) -> None:
        """Give the weights up. The collectors have ended."""
        self._weights.close()
        for fd in self._frozen.values():
            os.close(fd)

    # Weights ----------------------------------------------------------------------------------------------------

    def publish(self, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Make newer weights act."""
        self._index = self._weights.write(version, weights)
        self._version = version
        for child in self._children.listening:
            self._offer_weights(child)

    def weights_read(self, child: Child) -> None:
        """Note that a collector has taken the weights that it was told of."""
        self._weights.release(self._reading.pop(child.index))
        self._offer_weights(child)

    def _offer_weights(self, child: Child) -> None:
        """Tell a collector of the newest weights, unless it is still reading others."""
        if child.index in self._reading or self._told.get(child.index) == self._version:
            return
        self._weights.hold(self._index)
        self._reading[child.index] = self._index
        self._told[child.index] = self._version
        self._children.tell(child, messages.Weights(self._lane, self._index, self._version))

    # Permits ----------------------------------------------------------------------------------------------------

    def restore_rounds(
        self, number: int, delivered: Sequence[tuple[int, int]], advance: Sequence[tuple[int, int, int]]
    ) -> None:
        """Count what a former attempt has delivered (`RoundSharing.restore`)."""
        self._sharing.restore(number, delivered, advance)

    def grant(self, number: int, steps: int) -> None:
        """Permit a round of answers."""
        self._send_orders(self._sharing.grant(number, steps))

    def want(self, child: Child, message: messages.Want) -> None:
        """Serve a collector that has used up its permits."""
        self._send_orders(self._sharing.want(child.index, message.round))

    def returned(self, child: Child, message: messages.Returned) -> None:
        """Take permits back."""
        self._send_orders(self._sharing.returned(child.index, message.round, message.steps, idle=message.idle))

    def borrowed(self, child: Child, message: messages.Borrowed) -> None:
        """Note what was answered in advance."""
        for number, steps in message.steps:
            self._sharing.borrowed(child.index, number, steps)

    def collected(self) -> tuple[int, int] | None:
        """Return (round, steps) once when every step of the current round has arrived."""
        return self._sharing.collected()

    def stop_recording(self) -> None:
        """Let everybody be answered without limits and without recording."""
        self._recorded = False
        self._children.tell_all(messages.Unrecorded(self._lane))

    def _send_orders(self, orders: Sequence[Order]) -> None:
        for order in orders:
            message: messages.Message
            if isinstance(order, Grant):
                message = messages.GrantSteps(
                    self._lane, order.round, order.steps, order.size, order.closed, self._version
                )
            else:
                message = messages.RecallSteps(self._lane, order.round)
            self._children.tell(self._children[order.collector], message)

    # Blocks -----------------------------------------------------------------------------------------------------

    def delivered(self, child: Child, segments: Sequence[Segment]) -> int:
        """Take segments over; return their steps."""
        self.ledger.deliver(child.index, blocks_of(segments).tolist())
        steps = 0
        for segment in segments:
            self._sharing.delivered(child.index, segment.round, segment.length)
            steps += segment.length
        return steps

    def reclaim(self, segments: Sequence[Segment]) -> None:
        """Free the blocks of delivered segments, for those who starve first."""
        self.ledger.reclaim(blocks_of(segments).tolist())
        for index in list(self._starving):
            self.lend_blocks(self._children[index])

    def lend_blocks(self, child: Child) -> None:
        """Give a collector blocks to write, now or when there are some."""
        blocks = self.ledger.lend(child.index, self._chunk)
        if len(blocks):
            self._starving.discard(child.index)
            self._children.send(child, Kind.BLOCKS, pack_lane(self._lane, blocks.tobytes()))
        else:
            self._starving.add(child.index)

    # Frozen policies --------------------------------------------------------------------------------------------

    def oppose(self, opposition: Opposition, weights: Mapping[int, npt.NDArray[np.float32]]) -> None:
        """Say which team learns, and what the others play; `weights` has those that were not named the last time."""
        named, known = opposition.keys, self._frozen
        expected = self._program.weights_size
        for key in named - known.keys():
            if weights[key].shape != (expected,):
                raise ValueError(f"policy {key} has {weights[key].size} weights, {self.name} takes {expected}")
        fresh = {key: freeze(weights[key]) for key in sorted(named - known.keys())}
        self._children.retire([known[key] for key in known if key not in named])
        self._frozen = {key: fd for key, fd in (known | fresh).items() if key in named}
        self._opposition = opposition
        for child in self._children.listening:
            self._tell_opposition(child, opposition, fresh)

    def sit(self, incarnation: str, sitting: int, team: int | None, parameters: Mapping[str, ParameterValue]) -> None:
        """Let a simulator begin anew with a sitting, if it is connected."""
        message = messages.Sit(self._lane, incarnation, sitting, team, to_plain(parameters))
        for child in self._children.listening:
            if incarnation in child.simulators:
                self._children.tell(child, message)

    def _tell_opposition(self, child: Child, opposition: Opposition, fresh: Mapping[int, int]) -> None:
        """Tell a collector of the opponents; `fresh` are those that it does not know."""
        for key, fd in fresh.items():
            self._children.tell(child, messages.FrozenPolicy(self._lane, key), (fd,))
        teams = [(team, list(keys)) for team, keys in opposition.teams.items()]
        message = messages.Opponents(self._lane, opposition.learning, teams, list(opposition.others))
        self._children.tell(child, message)
