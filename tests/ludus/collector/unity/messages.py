"""Players' messages for tests, made by protobuf."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
            num_continuous_actions=continuous,
            num_discrete_actions=len(branches),
            discrete_branch_sizes=branches,
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
