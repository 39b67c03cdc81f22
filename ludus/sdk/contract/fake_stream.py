"""One stream of the fake server: prints each message, answers with random or scripted actions."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import numpy as np

from ludus.http2.calls import EOF
from ludus.play.players import RandomPlayer
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, BehaviorBatch, DecisionBatch, Floats, Ints
from ludus.protocol.codec import decode_stats, encode_actions, spec_from_message
from ludus.protocol.codes import CloseCode
from ludus.protocol.contract import (
    HELLO_SECONDS,
    check_first,
    check_hello,
    check_saved,
    hello_timeout,
    parse_request,
    step_timeout,
)
from ludus.protocol.options import TICKET_METADATA
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.contract.fake_text import agents_text, step_text
from ludus.sdk.contract.served_stream import LATER_MESSAGE, RUN_ID, ServedStream

if TYPE_CHECKING:
    from ludus.sdk.contract.fake_server import FakeServer

LINGER_SECONDS: Final = 5.0
"""How long a stream stays open after Close, unless its client ends it. Real servers allow 1 s; a loaded developer's
machine may take longer."""
BREAKS: Final = "break"
"""The ending of a run that breaks the stream off, without `Close`."""


class FakeStream(ServedStream):
    """The server's end of one stream."""

    def __init__(self, server: "FakeServer", name: str, context: Any) -> None:
        super().__init__(server.specs, server.behaviour.vis_encode_type)
        self.greeted = False
        self.breaks = False
        """Whether the stream ends without Close."""
        self.superseded = asyncio.Event()
        self._server = server
        self._behaviour = server.behaviour
        self._name = name
        self._context = context
        self._reading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The next message of the client."""
        self._players: dict[str, RandomPlayer] = {}
        self._saves = self._steps = self._scripted = 0
        self._resumes = False
        self._resumed_agents: dict[str, set[int]] | None = None
        """Agents that waited at the position in Welcome; None after the first step."""
        self._held: list[tuple[int, list[BehaviorBatch]]] = []
        """Steps whose answer waits for Saved."""
        self._due: deque[tuple[float, int, list[BehaviorBatch]]] = deque()
        """Steps with the times of their answers. Messages are read meanwhile, as by a real server."""
        self._owed_since: float | None = None
        """Time of the answer to a step whose agents have not asked again."""

    async def play(self) -> tuple[CloseCode, str] | None:
        """Read messages until the stream ends; return why the server closes it. Raises ProtocolError."""
        opened = time.monotonic()
        superseded = asyncio.ensure_future(self.superseded.wait())
        self._reading = asyncio.ensure_future(self._context.read())
        try:
            while True:
                left = HELLO_SECONDS - (time.monotonic() - opened) if not self.greeted else None
                if self._owed_since is not None:
                    left = self._behaviour.step_timeout_seconds - (time.monotonic() - self._owed_since)
                until_due = self._due[0][0] - time.monotonic() if self._due else None
                answers_next = until_due is not None and (left is None or until_due <= left)
                timeout = until_due if answers_next else left
                done, _ = await asyncio.wait(
                    {superseded, self._reading},
                    timeout=None if timeout is None else max(0.0, timeout),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if superseded in done:
                    return CloseCode.SUPERSEDED, "a newer stream of this session id took its place"
                if not done and answers_next:
                    _, step_id, asks = self._due.popleft()
                    close = await self._respond(step_id, asks)
                    if close is not None:
                        return close
                    continue
                if not done:
                    raise step_timeout(self._behaviour.step_timeout_seconds) if self.greeted else hello_timeout()
                data = self._reading.result()
                if data is EOF:
                    self._say("the client half-closed: it leaves")
                    return None
                close = await self._receive(data)
                if close is not None:
                    return close
                self._reading = asyncio.ensure_future(self._context.read())
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._say("the connection broke")
            return None
        finally:
            superseded.cancel()

    async def linger(self) -> None:
        """Read until the client ends the stream: a client whose write fails loses the messages that it has not read."""
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._reading
                while await self._context.read() is not EOF:
                    pass
        except (TimeoutError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            pass  # the client has gone, or does not end the stream

    async def _receive(self, data: bytes) -> tuple[CloseCode, str] | None:
        request = parse_request(data, self._behaviour.max_message_bytes)
        match request.WhichOneof("message"):
            case "hello":
                await self._hello(request.hello)
            case "announce":
                check_first(greeted=self.greeted)
                if not request.announce.behaviors:
                    self._violation("Announce names no behavior; it introduces at least one")
                for message in request.announce.behaviors:
                    self._announce(spec_from_message(message), "Announce")
            case "saved":
                check_first(greeted=self.greeted)
                return await self._saved(request.saved)
            case _:
                check_first(greeted=self.greeted)
                return await self._step(request.step)
        return None

    async def _hello(self, hello: pb.Hello) -> None:
        self._say(
            f"Hello: session id {hello.session_id!r}, client {hello.client!r}, protocol version "
            f"{hello.protocol_version}, {len(hello.behaviors)} behaviors{', resumes' if hello.resumes else ''}"
        )
        check_hello(hello, greeted=self.greeted)
        self.session_id, self._resumes = hello.session_id, hello.resumes
        given = metadata_of(self._context).get(TICKET_METADATA)
        if given is not None and given != hello.ticket:
            self._violation(f"the metadata {TICKET_METADATA} is not the ticket in Hello; both must be the assignment's")
        number = self._server.greet(self, hello.ticket)
        specs = [spec_from_message(message) for message in hello.behaviors]
        self.greeted = True
        kept = self._server.positions.pop(self.session_id, None) if self._resumes else None
        self._resumed_agents = None if kept is None else kept[1]
        welcome = pb.Welcome(
            run_id=RUN_ID,
            simulator_number=number,
            seed=self._behaviour.seed + number,
            environment_parameters=self._parameters(),
            max_message_bytes=self._behaviour.max_message_bytes,
            step_timeout_seconds=self._behaviour.step_timeout_seconds,
            position=None if kept is None else kept[0],
        )
        await self._write(pb.ConnectResponse(welcome=welcome))
        for spec in specs:
            self._announce(spec, "Hello")

    def _announce(self, spec: BehaviorSpec, message: str) -> None:
        observations = ", ".join(f"{part.dtype} {list(part.shape)}" for part in spec.observations)
        self._say(
            f"{message}: behavior {spec.name!r} sees {observations}; {spec.actions.continuous_size} continuous "
            f"actions, branches {list(spec.actions.discrete_branches)}"
        )
        self.introduce(spec)
        self._players.setdefault(spec.name, RandomPlayer(spec.actions, self._behaviour.seed))

    async def _step(self, step: pb.Step) -> tuple[CloseCode, str] | None:
        batches = self.read_step(step)
        stats = decode_stats(step)
        self._say(f"step {step.step_id}: {'; '.join(step_text(batches, stats)) or 'nothing'}")
        self._check_resumed(step, batches)
        if step.reset_id < self.reset_id:
            self._say(f"  ignored: it names reset {step.reset_id}, the last one is {self.reset_id}")
            return None
        for batch in batches:
            self.account(batch, lambda what: self._say(f"  ignored: {what}"))
        self._server.steps += 1
        self._owed_since = None
        asks = [batch for batch in batches if batch.decisions is not None]
        if not asks:
            return None
        if self._held:
            self._held.append((step.step_id, asks))  # another step in flight while a Save is unanswered
            return None
        if self._behaviour.delay_seconds:
            self._due.append((time.monotonic() + self._behaviour.delay_seconds, step.step_id, asks))
            return None
        return await self._respond(step.step_id, asks)

    def _check_resumed(self, step: pb.Step, batches: Sequence[BehaviorBatch]) -> None:
        expected, self._resumed_agents = self._resumed_agents, None
        if expected is None:
            if step.resumed:
                self._violation("the step says `resumed`, but Welcome named no position")
            return
        if not step.resumed:
            self._say("  it begins again, although Welcome named a position: that is allowed")
            return
        asked = {b.behavior: set(b.decisions.agent_ids.tolist()) for b in batches if b.decisions is not None}
        if asked != expected or step.stats or any(batch.terminals is not None for batch in batches):
            self._violation(
                f"a resumed step asks again for exactly the agents that waited then, {agents_text(expected)}, and has "
                f"no terminals and no stats; this one asks for {agents_text(asked)}. "
                "A run takes it as new (not_resumed)"
            )
        else:
            self._say("  it went back to where it was")

    async def _respond(self, step_id: int, asks: list[BehaviorBatch]) -> tuple[CloseCode, str] | None:
        """Answer a step, or send a Reset, a Save or the end of the run in its place."""
        if self._held:
            self._held.append((step_id, asks))
            return None
        behaviour, self._steps = self._behaviour, self._steps + 1
        if behaviour.steps is not None and self._steps > behaviour.steps:
            self.breaks = behaviour.ending == BREAKS
            return self._server.end_run()
        if behaviour.reset_every is not None and self._steps % behaviour.reset_every == 0:
            self.begin_reset()
            self._due.clear()
            parameters = self._parameters()
            self._say(f"  sent: Reset {self.reset_id}, environment parameters {parameters}")
            reset = pb.Reset(reset_id=self.reset_id, environment_parameters=parameters)
            await self._write(pb.ConnectResponse(reset=reset))
            return None
        if self._resumes and behaviour.save_every is not None and self._steps % behaviour.save_every == 0:
            self._saves += 1
            self._held.append((step_id, asks))
            self._say(f"  sent: Save {self._saves}")
            await self._write(pb.ConnectResponse(save=pb.Save(save_id=self._saves)))
            return None
        await self._answer(step_id, asks)
        return None

    async def _saved(self, saved: pb.Saved) -> tuple[CloseCode, str] | None:
        self._say(f"Saved {saved.save_id}: {len(saved.position)} bytes")
        check_saved(saved, asked=self._saves)
        waiting = {name: set(agents) for name, agents in self.waiting.items() if agents}
        self._server.positions[self.session_id] = (saved.position, waiting)
        held, self._held = self._held, []
        for step_id, asks in held:
            await self._answer(step_id, asks)
        return None

    async def _answer(self, step_id: int, asks: Sequence[BehaviorBatch]) -> None:
        if self._behaviour.future:
            await self._context.write(LATER_MESSAGE)
        whole = []
        for name, decisions, _ in asks:
            assert decisions is not None
            # Agents that have ended since do not wait for this step any more: their answers would be void.
            agents, waiting = decisions.agent_ids.tolist(), self.waiting[name]
            there = np.array([waiting.get(agent) == step_id for agent in agents], np.bool_)
            if not there.any():
                continue
            continuous, discrete = self._act(name, decisions)
            whole.append(ActionBatch(name, decisions.agent_ids[there], continuous[there], discrete[there]))
            self.stop_waiting(name, decisions.agent_ids[there].tolist())
        if not whole:
            return
        if self._behaviour.split:
            parts = [[part] for batch in whole for part in _one_by_one(batch)]
        else:
            # Like a real server, leave the agents out of an answer to all agents of a step.
            asked = {name: len(decisions.agent_ids) for name, decisions, _ in asks if decisions is not None}
            parts = [
                [
                    part._replace(agent_ids=None) if len(part.continuous) == asked[part.behavior] else part
                    for part in whole
                ]
            ]
        for part in parts:
            await self._write(pb.ConnectResponse(actions=encode_actions(step_id, part)))
        self._owed_since = time.monotonic()

    def _act(self, name: str, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        continuous, discrete = self._players[name].act(decisions)
        if not self._behaviour.script:
            return continuous, discrete
        starts = self.layouts[name].branch_starts.tolist()
        for row in range(len(decisions.agent_ids)):
            moves, choices = self._behaviour.script[self._scripted % len(self._behaviour.script)]
            self._scripted += 1
            for column, value in enumerate(moves[: continuous.shape[1]]):
                continuous[row, column] = value
            for branch, choice in enumerate(choices[: discrete.shape[1]]):
                masks = decisions.action_masks
                within = choice < self.specs[name].actions.discrete_branches[branch]
                if within and (masks is None or masks[row, starts[branch] + choice]):
                    discrete[row, branch] = choice
                else:
                    why = "the mask forbids it" if within else "there is no such choice"
                    self._say(f"  the script's choice {choice} of branch {branch} is replaced by a random one: {why}")
        return continuous, discrete

    def _parameters(self) -> dict[str, float]:
        return {name: value + self.reset_id for name, value in self._behaviour.parameters.items()}

    async def _write(self, response: pb.ConnectResponse) -> None:
        await self._context.write(response.SerializeToString())

    def _say(self, sentence: str) -> None:
        self._server.say(f"{self._name}: {sentence}")

    def _violation(self, sentence: str) -> None:
        self._server.violation(f"{self._name}: {sentence}")


def _one_by_one(batch: ActionBatch) -> Iterator[ActionBatch]:
    """Yield the actions of each agent alone, the last one first."""
    assert batch.agent_ids is not None
    for row in reversed(range(len(batch.agent_ids))):
        one = slice(row, row + 1)
        yield ActionBatch(batch.behavior, batch.agent_ids[one], batch.continuous[one], batch.discrete[one])


def metadata_of(context: Any) -> dict[str, str]:
    """Return the metadata of a call."""
    return {str(key): str(value) for key, value in context.invocation_metadata() or ()}
