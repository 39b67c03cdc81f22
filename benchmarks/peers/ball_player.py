"""A ball on a tilting plate (3DBall), at the player's end of ML-Agents' protocol: the same for every trainer.

    python benchmarks/peers/ball_player.py --mlagents-port 5004 --agents 12 --seconds 20 --warmup 5

Prints one line of JSON at its end: agent steps, seconds, agent steps/s. With `--result FOLDER` it writes `PID.warm`
there when the warm-up is over, then `PID.json`, and plays on until it is ended, so that other players are measured
under the same load. It ignores other arguments of a Unity build, so that a trainer can launch it as one. It builds its
messages one agent at a time, as ML-Agents' package does, and one call is under way at a time.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import unity_pb2 as unity
from ludus.protocol.options import EXCHANGE

NAME = "3DBall?team=0"
HORIZON = 1000
OK = 200


class Plate:
    """N balls on N plates."""

    def __init__(self, agents: int, seed: int) -> None:
        self.agents = agents
        self._rng = np.random.default_rng(seed)
        self._tilt, self._ball, self._speed = (np.zeros((agents, 2), np.float32) for _ in range(3))
        self._age = np.zeros(agents, np.int64)
        self.begin(np.ones(agents, bool))

    def begin(self, which: Any) -> None:
        """Place some balls again."""
        count = int(which.sum())
        self._tilt[which] = self._rng.uniform(-0.17, 0.17, (count, 2))
        self._ball[which] = self._rng.uniform(-1.5, 1.5, (count, 2))
        self._speed[which] = 0
        self._age[which] = 0

    def observe(self) -> Any:
        """Return (N, 8)."""
        nothing = np.zeros((self.agents, 1), np.float32)
        return np.concatenate([self._tilt, self._ball, nothing, self._speed, nothing], 1)

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        """Tilt the plates; return rewards, and flags of fallen balls and of expired time."""
        self._tilt = np.clip(self._tilt + 0.035 * np.clip(actions, -1, 1), -0.25, 0.25).astype(np.float32)
        self._speed += 0.981 * np.sin(self._tilt)
        self._ball += 0.1 * self._speed
        self._age += 1
        fell = np.abs(self._ball).max(1) > 3
        return np.where(fell, -1.0, 0.1), fell, (self._age >= HORIZON) & ~fell


def info(number: int, observation: Any, reward: float, *, done: bool = False, limited: bool = False) -> Any:
    """Return one agent's message."""
    return agent.AgentInfoProto(
        id=number,
        reward=reward,
        done=done,
        max_step_reached=limited,
        observations=[
            agent.ObservationProto(
                shape=[8],
                dimension_properties=[1],
                float_data=agent.ObservationProto.FloatData(data=observation.tolist()),
            )
        ],
    )


def play(port: int, agents: int, seconds: float, warmup: float, result: Path | None) -> None:
    """Play until the time is over or the trainer ends it; write agent steps and seconds after the warm-up."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)])
    exchange = channel.unary_unary(
        EXCHANGE,
        request_serializer=unity.UnityMessageProto.SerializeToString,
        response_deserializer=unity.UnityMessageProto.FromString,
    )
    header = unity.HeaderProto(status=OK)

    def call(output: Any) -> Any:
        reply = exchange(unity.UnityMessageProto(header=header, unity_output=output), wait_for_ready=True, timeout=600)
        return reply.unity_input.rl_input if reply.header.status == OK else None

    everything = {field.name: True for field in unity.UnityRLCapabilitiesProto.DESCRIPTOR.fields}
    call(
        unity.UnityOutputProto(
            rl_initialization_output=unity.UnityRLInitializationOutputProto(
                name="ball",
                communication_version="1.5.0",
                package_version="3.0.0",
                capabilities=unity.UnityRLCapabilitiesProto(**everything),
            )
        )
    )
    call(None)
    spec = agent.ActionSpecProto(num_continuous_actions=2)
    brains = [agent.BrainParametersProto(brain_name=NAME, is_training=True, action_spec=spec)]
    plate = Plate(agents, seed=port)
    rewards, ended, limited = np.zeros(agents), np.zeros(agents, bool), np.zeros(agents, bool)
    final = plate.observe()
    begin = time.perf_counter()
    counted_from, steps, told = None, 0, False
    while True:
        observations = plate.observe()
        infos = [
            info(each, final[each], rewards[each], done=True, limited=bool(limited[each]))
            for each in np.flatnonzero(ended | limited).tolist()
        ]
        infos += [
            info(each, observations[each], 0.0 if ended[each] or limited[each] else rewards[each])
            for each in range(agents)
        ]
        agents_of = {NAME: unity.UnityRLOutputProto.ListAgentInfoProto(value=infos)}
        output = unity.UnityOutputProto(rl_output=unity.UnityRLOutputProto(agentInfos=agents_of))
        if brains:
            output.rl_initialization_output.brain_parameters.extend(brains)
            brains = []
        answer = call(output)
        now = time.perf_counter()
        if answer is None:
            break
        if counted_from is None and now - begin > warmup:
            counted_from, steps = now, 0
            if result is not None:
                (result / f"{os.getpid()}.warm").touch()
        if counted_from is not None and not told and now - counted_from > seconds:
            told = True
            tell(steps, now - counted_from, result)
            if result is None:
                break
        if answer.command == unity.RESET:
            plate.begin(np.ones(agents, bool))
            rewards, ended, limited = np.zeros(agents), np.zeros(agents, bool), np.zeros(agents, bool)
            continue
        steps += agents
        actions = [action.continuous_actions for action in answer.agent_actions[NAME].value]
        rewards, ended, limited = plate.step(np.array(actions, np.float32).reshape(agents, 2))
        final = plate.observe()
        plate.begin(ended | limited)
    if not told:
        tell(steps, time.perf_counter() - (counted_from or begin), result)


def tell(steps: int, seconds: float, result: Path | None) -> None:
    """Write the result."""
    line = json.dumps({"agent_steps": steps, "seconds": round(seconds, 3), "rate": round(steps / seconds, 1)})
    if result is None:
        print(line)
    else:
        written = result / f"{os.getpid()}.part"
        written.write_text(line)
        written.rename(written.with_suffix(".json"))


def main() -> None:
    """Play once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlagents-port", type=int, default=5004)
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--result", type=Path, help="folder for its files, instead of standard output")
    options, _ = parser.parse_known_args()
    play(options.mlagents_port, options.agents, options.seconds, options.warmup, options.result)


if __name__ == "__main__":
    main()
