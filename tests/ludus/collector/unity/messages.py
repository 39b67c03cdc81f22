"""Players' messages for tests, made by protobuf."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from ludus.collector.unity.decoding import InfoReader, Tell
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.mlagents import unity_pb2 as unity

NAME = "Walker?team=0"


def numbers(values: Any, *, properties: Sequence[int] = (1,), name: str = "", goal: bool = False) -> Any:
    """An observation of plain numbers."""
    array = np.asarray(values, np.float32)
    return agent.ObservationProto(
        shape=array.shape,
        dimension_properties=properties,
        float_data=agent.ObservationProto.FloatData(data=array.reshape(-1).tolist()),
        observation_type=agent.GOAL_SIGNAL if goal else agent.DEFAULT,
        name=name,
    )


def brain(name: str = NAME, continuous: int = 2, branches: Sequence[int] = ()) -> Any:
    """An announcement of today's packages."""
    return agent.BrainParametersProto(
        brain_name=name,
        is_training=True,
        action_spec=agent.ActionSpecProto(
            num_continuous_actions=continuous, num_discrete_actions=len(branches), discrete_branch_sizes=branches
        ),
    )


def message(agents: dict[str, list[Any]], brains: Sequence[Any] = (), side_channel: bytes = b"") -> Any:
    """A player's third or later call."""
    return unity.UnityMessageProto(
        header=unity.HeaderProto(status=200),
        unity_output=unity.UnityOutputProto(
            rl_output=unity.UnityRLOutputProto(
                agentInfos={
                    name: unity.UnityRLOutputProto.ListAgentInfoProto(value=infos) for name, infos in agents.items()
                },
                side_channel=side_channel,
            ),
            rl_initialization_output=unity.UnityRLInitializationOutputProto(brain_parameters=brains)
            if brains
            else None,
        ),
    )


def infos_of(agents: list[Any]) -> list[shallow.Info]:
    """The same agents as a collector sees them."""
    content = message({NAME: agents}).SerializeToString()
    return list(shallow.Message.FromString(content).unity_output.rl_output.agent_infos[NAME].value)


def compressed(pixels: np.ndarray) -> Any:
    """An observation that is one PNG file, of (height, width, channels)."""
    height, width, channels = pixels.shape
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return agent.ObservationProto(
        shape=(channels, height, width),
        compression_type=agent.PNG,
        compressed_data=content.getvalue(),
        dimension_properties=(1, 2, 2),
    )


def silent(code: str, sentence: str) -> None:
    """No mistake of a game is expected."""
    raise AssertionError(f"{code}: {sentence}")


def reader_of(agents: list[Any], announced: Any | None = None, tell: Tell = silent) -> InfoReader:
    """A reader of one behavior that has seen its first agent."""
    return InfoReader.of(announced or brain(), infos_of(agents)[0], tell)
