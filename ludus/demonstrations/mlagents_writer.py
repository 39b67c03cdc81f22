"""Writes ML-Agents' recordings, `.demo`. `ludus.demonstrations.mlagents` describes the format and reads it."""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message

from ludus.demonstrations.demonstration import Demonstration, DemonstrationError
from ludus.demonstrations.mlagents import META_BYTES
from ludus.mlagents.pictures import PictureError, encode_pictures
from ludus.mlagents.specs import CHANNELS_FIRST
from ludus.protocol.batches import Array
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import demonstration_pb2 as pb
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec
from ludus.protocol.wire import varint

NAME_LENGTH: Final = 16
"""Maximum number of characters of a recording's name, so that the meta message fits its area."""


def encode(demonstration: Demonstration) -> bytes:
    """Render a file that ML-Agents and Unity read, in their pairing: each record carries the action before it.

    The format cannot hold everything: a piece that is neither terminated nor truncated is written as truncated, and one
    that did not begin with its episode as if it had. Observations of uint8 are written as PNG, which needs pillow.
    """
    spec = demonstration.spec
    episodes = demonstration.pieces
    steps = demonstration.steps + episodes
    head = pb.DemonstrationMetaProto(
        api_version=1,
        demonstration_name=re.sub(r"[^a-zA-Z0-9 -]", "", spec.behavior)[:NAME_LENGTH],
        number_steps=steps,
        number_episodes=episodes + 1,  # as Unity counts
        mean_reward=float(demonstration.rewards.sum(dtype=np.float64) / (episodes + 1)),
    )
    parts = [_delimited(head).ljust(META_BYTES, b"\0"), _delimited(_brain(spec))]
    parts += [_delimited(record) for record in _records(demonstration)]
    return b"".join(parts)


def _brain(spec: BehaviorSpec) -> Any:
    actions = spec.actions
    return agent.BrainParametersProto(
        brain_name=spec.name if "?" in spec.name else f"{spec.name}?team=0",
        action_spec=agent.ActionSpecProto(
            num_continuous_actions=actions.continuous_size,
            num_discrete_actions=len(actions.discrete_branches),
            discrete_branch_sizes=actions.discrete_branches,
        ),
    )


def _records(demonstration: Demonstration) -> Iterator[Any]:
    """Yield a record for every row, and one for the end of every piece."""
    groups = demonstration.group_rewards
    bounds = zip(demonstration.starts.tolist(), demonstration.ends.tolist(), strict=True)
    for piece, (start, end) in enumerate(bounds):
        for row in range(start, end + 2):
            final = row > end
            values = demonstration.final_observations if final else demonstration.observations
            info = agent.AgentInfoProto(
                observations=[
                    _observation_message(column[piece if final else row], spec)
                    for column, spec in zip(values, demonstration.spec.observations, strict=True)
                ],
                done=final,
                max_step_reached=final and not demonstration.terminated[end],
                group_id=0 if demonstration.group_ids is None else int(demonstration.group_ids[min(row, end)]),
            )
            if demonstration.action_masks is not None and not final:
                info.action_mask.extend((demonstration.action_masks[row] == 0).tolist())
            action = agent.AgentActionProto(
                continuous_actions=[0.0] * demonstration.continuous.shape[1],
                discrete_actions=[0] * demonstration.discrete.shape[1],
            )
            if row > start:
                info.reward = demonstration.rewards[row - 1]
                info.group_reward = 0.0 if groups is None else groups[row - 1]
                action.continuous_actions[:] = demonstration.continuous[row - 1].tolist()
                action.discrete_actions[:] = demonstration.discrete[row - 1].tolist()
            yield pb.AgentInfoActionPairProto(agent_info=info, action_info=action)


def _observation_message(values: Array, spec: ObservationSpec) -> Any:
    message = agent.ObservationProto(
        shape=spec.shape,
        dimension_properties=[int(value) for value in spec.dimension_properties or _properties(spec)],
        observation_type=int(spec.type) - 1,  # type: ignore[arg-type]  # the stub wants its own enum
        name=spec.name,
    )
    if spec.dtype == "uint8" and len(spec.shape) == 3:
        message.compression_type = agent.PNG
        try:
            message.compressed_data = encode_pictures(values)
        except PictureError as error:
            raise DemonstrationError(str(error)) from None
    else:
        message.float_data.data.extend(values.astype(np.float32).reshape(-1).tolist())
    return message


def _properties(spec: ObservationSpec) -> tuple[DimensionProperty, ...]:
    """Return ML-Agents' dimension properties for a spec that has none."""
    match len(spec.shape):
        case 2:
            return DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE
        case 3:
            return CHANNELS_FIRST
        case _:
            return (DimensionProperty.NONE,) * len(spec.shape)


def _delimited(message: Message) -> bytes:
    content = message.SerializeToString()
    return varint(len(content)) + content
