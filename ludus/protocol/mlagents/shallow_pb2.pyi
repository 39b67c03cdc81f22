from ludus.protocol.mlagents import unity_pb2 as _unity_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Message(_message.Message):
    __slots__ = ("header", "unity_output")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    UNITY_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    header: _unity_pb2.HeaderProto
    unity_output: Output
    def __init__(self, header: _Optional[_Union[_unity_pb2.HeaderProto, _Mapping]] = ..., unity_output: _Optional[_Union[Output, _Mapping]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("rl_output", "rl_initialization_output")
    RL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RL_INITIALIZATION_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    rl_output: RLOutput
    rl_initialization_output: _unity_pb2.UnityRLInitializationOutputProto
    def __init__(self, rl_output: _Optional[_Union[RLOutput, _Mapping]] = ..., rl_initialization_output: _Optional[_Union[_unity_pb2.UnityRLInitializationOutputProto, _Mapping]] = ...) -> None: ...

class RLOutput(_message.Message):
    __slots__ = ("agent_infos", "side_channel")
    class AgentInfosEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Infos
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Infos, _Mapping]] = ...) -> None: ...
    AGENT_INFOS_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    agent_infos: _containers.MessageMap[str, Infos]
    side_channel: bytes
    def __init__(self, agent_infos: _Optional[_Mapping[str, Infos]] = ..., side_channel: _Optional[bytes] = ...) -> None: ...

class Infos(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[Info]
    def __init__(self, value: _Optional[_Iterable[_Union[Info, _Mapping]]] = ...) -> None: ...

class Info(_message.Message):
    __slots__ = ("reward", "done", "max_step_reached", "id", "action_mask", "observations", "group_id", "group_reward")
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_REACHED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_REWARD_FIELD_NUMBER: _ClassVar[int]
    reward: float
    done: bool
    max_step_reached: bool
    id: int
    action_mask: bytes
    observations: _containers.RepeatedScalarFieldContainer[bytes]
    group_id: int
    group_reward: float
    def __init__(self, reward: _Optional[float] = ..., done: _Optional[bool] = ..., max_step_reached: _Optional[bool] = ..., id: _Optional[int] = ..., action_mask: _Optional[bytes] = ..., observations: _Optional[_Iterable[bytes]] = ..., group_id: _Optional[int] = ..., group_reward: _Optional[float] = ...) -> None: ...
