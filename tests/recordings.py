"""A recording as a test wants it: the messages of a game with two agents, which ends in an error."""

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ludus.play.recordings.file import Direction, End, Frame, Header, pack_end, pack_frames, pack_header
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch, DecisionBatch
from ludus.protocol.codec import encode_answer, encode_step
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import spec_to_message
from server.simulators.recordings.repository import NewRecording
from tests.server.app.world import Trainer

SPEC = BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(1, (2,)))
SPOILED = End("error", "malformed_message", "a message of 1 bytes is no ConnectRequest", ("CartPole",))


def frames(steps: int) -> list[Frame]:
    """Return a hello, so many answered steps, and a message that is none."""
    hello = pb.Hello(protocol_version=1, session_id="session-x", client="test", behaviors=[spec_to_message(SPEC)])
    got, sent = Direction.RECEIVED, Direction.SENT
    listed = [Frame(0.0, got, pb.ConnectRequest(hello=hello).SerializeToString())]
    for number in range(1, steps + 1):
        ids = np.array([0, 7], np.int32)
        values = np.array([[math.sin(number / 9 + row), number / 100, row, 0.5] for row in range(2)], np.float32)
        rewards = np.array([1.0, math.cos(number / 5)], np.float32)
        batch = BehaviorBatch("CartPole", DecisionBatch(ids, rewards, (values,)), None)
        step = pb.ConnectRequest(step=encode_step(number, [batch])).SerializeToString()
        continuous, discrete = np.array([[0.25], [-0.5]], np.float32), np.array([[0], [1]], np.int32)
        answer = encode_answer(number, "CartPole", b"", continuous.tobytes(), discrete.tobytes())
        listed += [Frame(number / 50, got, step), Frame(number / 50 + 0.01, sent, answer)]
    return [*listed, Frame(steps / 50 + 1, got, b"\xff")]


def content(listed: Sequence[Frame], run_id: str = "run_1", end: End = SPOILED) -> bytes:
    """Return a file."""
    header = Header(run_id, 1, "session-x", 3, "native", 1.7e9, 7)
    return pack_header(header) + pack_frames(listed, 0.0) + pack_end(end)


_numbers = itertools.count(1)


def store(trainer: Trainer, scratch: Path, steps: int = 40, end: End = SPOILED) -> NewRecording:
    """Publish a recording of a run, as its supervisor does."""
    id_ = f"rec_{next(_numbers):05}"
    listed = frames(steps)
    file = scratch / f"{id_}.ludusrec"
    file.write_bytes(content(listed, trainer.run_id, end))
    path = f"runs/{trainer.run_id}/{trainer.attempt}/recordings/{id_}.ludusrec"
    (stored,) = trainer.services.artifacts.publish(file, path)
    new = NewRecording(
        id=id_,
        session_id="session-x",
        simulator=3,
        carrier="native",
        behaviors=end.behaviors,
        cause=end.cause,
        code=end.code,
        reason=end.reason,
        frames=len(listed),
        seconds=listed[-1].seconds,
        path=path,
        size=stored.size,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        started_at=1.7e9,
    )
    trainer.ledger.recordings.add(new)
    return new
