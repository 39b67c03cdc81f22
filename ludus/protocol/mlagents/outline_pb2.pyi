from ludus.protocol.mlagents import unity_pb2 as _unity_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outline(_message.Message):
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
    rl_initialization_output: Initialization
    def __init__(self, rl_output: _Optional[_Union[RLOutput, _Mapping]] = ..., rl_initialization_output: _Optional[_Union[Initialization, _Mapping]] = ...) -> None: ...

class RLOutput(_message.Message):
    __slots__ = ("agent_infos", "side_channel")
    class AgentInfosEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    AGENT_INFOS_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    agent_infos: _containers.ScalarMap[str, bytes]
    side_channel: bytes
    def __init__(self, agent_infos: _Optional[_Mapping[str, bytes]] = ..., side_channel: _Optional[bytes] = ...) -> None: ...

class Initialization(_message.Message):
    __slots__ = ("communication_version", "brain_parameters")
    COMMUNICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    BRAIN_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    communication_version: str
    brain_parameters: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, communication_version: _Optional[str] = ..., brain_parameters: _Optional[_Iterable[bytes]] = ...) -> None: ...
