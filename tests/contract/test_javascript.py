"""clients/js passes the compliance kit over WebSockets, and what it sends is what its game said."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, Aggregation, BehaviorBatch
from ludus.protocol.codec import encode_actions
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import spec_from_message
from ludus.sdk.contract.kit import SCENARIOS, WEBSOCKET_SCENARIOS, Scenario, try_client
from ludus.sdk.contract.scripted import Peer, ScriptedServer
from ludus.sdk.contract.websocket import WebSocketDoor

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "js" / "ludus.js"
SECONDS = 60
LINES = 400


def node() -> list[str]:
    """Return the command of Node.js, with WebSockets."""
    program = shutil.which("node")
    assert program is not None
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return [program, *(["--experimental-websocket"] if int(version[1:].split(".")[0]) < 22 else [])]


@pytest.mark.node
@pytest.mark.parametrize("scenario", SCENARIOS + WEBSOCKET_SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_javascript_client_passes_the_kit(scenario: Scenario) -> None:
    game = str(ROOT / "examples" / "browser" / "node.mjs")

    verdict = try_client(
        scenario, [*node(), game, "--run", "{run}", "--server", "{websocket}", "--baskets", "3"], SECONDS
    )

    assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


@pytest.mark.node
def test_all_that_a_game_can_say_arrives() -> None:
    said: list[BehaviorBatch] = []
    specs: list[BehaviorSpec] = []

    def acted(step_id: int, name: str, agents: list[int], moves: Any, choices: Any) -> pb.ConnectResponse:
        ids, moved = np.array(agents, np.int32), np.array(moves, np.float32)
        answer = ActionBatch(name, ids, moved, np.array(choices, np.int32).reshape(len(agents), -1))
        return pb.ConnectResponse(actions=encode_actions(step_id, [answer]))

    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        specs.extend(map(spec_from_message, peer.hello().behaviors))
        yield peer.welcome({"gravity": 9.5})
        (moth, decided), (pair, paired) = peer.step(), peer.step()
        said.extend([*decided, *paired])
        yield acted(pair, "Pair?team=1", [2, 1], [[0.75], [-1]], [])  # in other orders than the questions
        yield acted(moth, "Moth", [-3], [[0, 0]], [[1, 2]])
        yield acted(moth, "Moth", [7], [[0.5, -0.25]], [[0, 1]])
        said.extend(peer.read_step(peer._next().step))
        peer._next()
        yield peer.close()

    with ScriptedServer(script) as server, WebSocketDoor(server.address) as door:
        command = [*node(), str(Path(__file__).with_name("everything.mjs")), door.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert (server.violations, done.returncode) == ([], 0), done.stderr
    *facts, mistake = json.loads(done.stdout)
    assert facts == [45, 9.5, 0.5, -0.25, 0, 1, 1, 2, 0.75]
    assert mistake == "observation 0 of Moth 1 has 1 numbers instead of 400"
    eye = ObservationSpec((1, 20, 20), "eye", "uint8")
    assert specs == [
        BehaviorSpec("Moth", (eye, ObservationSpec((2,))), ActionSpec(2, (2, 3))),
        BehaviorSpec("Pair?team=1", (ObservationSpec((1,)),), ActionSpec(1)),
    ]
    assert [(stat.key, stat.value, stat.aggregation) for stat in server.stats] == [
        ("Speed", 2.5, Aggregation.AVERAGE),
        ("Environment/Falls", 3.0, Aggregation.SUM),
    ]
    (_, moths, _), (_, pairs, _), (_, _, ended) = said
    assert moths is not None
    assert moths.agent_ids.tolist() == [7, -3]
    assert moths.observations[0].shape == (2, 1, 20, 20)
    assert moths.observations[0][0].ravel().tolist() == [index % 256 for index in range(400)]
    assert moths.observations[1].tolist() == [[0.5, -1], [0, 2]]
    assert moths.action_masks is not None
    assert moths.action_masks.tolist() == [[1, 0, 1, 1, 0], [1] * 5]
    assert pairs is not None
    assert (pairs.rewards.tolist(), pairs.group_ids.tolist(), pairs.group_rewards.tolist()) == (
        [9, 0],
        [4, 0],
        [0.5, 0],
    )
    assert ended is not None
    assert (ended.rewards.tolist(), ended.truncated.tolist(), ended.outcomes.tolist()) == (
        [1, 0],
        [True, False],
        [1, 3],
    )


def test_the_client_is_one_module_of_at_most_400_lines_without_dependencies() -> None:
    lines = CLIENT.read_text().splitlines()

    assert len(lines) <= LINES
    assert not [line for line in lines if line.startswith("import ") or "require(" in line]
    assert max(map(len, lines)) <= 140
