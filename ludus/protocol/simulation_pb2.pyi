from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObservationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBSERVATION_TYPE_UNSPECIFIED: _ClassVar[ObservationType]
    OBSERVATION_TYPE_DEFAULT: _ClassVar[ObservationType]
    OBSERVATION_TYPE_GOAL_SIGNAL: _ClassVar[ObservationType]

class DimensionProperty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIMENSION_PROPERTY_UNSPECIFIED: _ClassVar[DimensionProperty]
    DIMENSION_PROPERTY_NONE: _ClassVar[DimensionProperty]
    DIMENSION_PROPERTY_TRANSLATIONAL_EQUIVARIANCE: _ClassVar[DimensionProperty]
    DIMENSION_PROPERTY_VARIABLE_SIZE: _ClassVar[DimensionProperty]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_WIN: _ClassVar[Outcome]
    OUTCOME_DRAW: _ClassVar[Outcome]
    OUTCOME_LOSS: _ClassVar[Outcome]

class Aggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_UNSPECIFIED: _ClassVar[Aggregation]
    AGGREGATION_AVERAGE: _ClassVar[Aggregation]
    AGGREGATION_MOST_RECENT: _ClassVar[Aggregation]
    AGGREGATION_SUM: _ClassVar[Aggregation]
    AGGREGATION_HISTOGRAM: _ClassVar[Aggregation]
OBSERVATION_TYPE_UNSPECIFIED: ObservationType
OBSERVATION_TYPE_DEFAULT: ObservationType
OBSERVATION_TYPE_GOAL_SIGNAL: ObservationType
DIMENSION_PROPERTY_UNSPECIFIED: DimensionProperty
DIMENSION_PROPERTY_NONE: DimensionProperty
DIMENSION_PROPERTY_TRANSLATIONAL_EQUIVARIANCE: DimensionProperty
DIMENSION_PROPERTY_VARIABLE_SIZE: DimensionProperty
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_UINT8: DType
DTYPE_INT32: DType
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_WIN: Outcome
OUTCOME_DRAW: Outcome
OUTCOME_LOSS: Outcome
AGGREGATION_UNSPECIFIED: Aggregation
AGGREGATION_AVERAGE: Aggregation
AGGREGATION_MOST_RECENT: Aggregation
AGGREGATION_SUM: Aggregation
AGGREGATION_HISTOGRAM: Aggregation

class JoinRequest(_message.Message):
    __slots__ = ("run", "session_id", "protocol_version", "relay", "label", "client", "max_wait_seconds")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run: str
    session_id: str
    protocol_version: int
    relay: bool
    label: str
    client: str
    max_wait_seconds: float
    def __init__(self, run: _Optional[str] = ..., session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., relay: _Optional[bool] = ..., label: _Optional[str] = ..., client: _Optional[str] = ..., max_wait_seconds: _Optional[float] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("run", "session_id", "code", "sentence")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    session_id: str
    code: str
    sentence: str
    def __init__(self, run: _Optional[str] = ..., session_id: _Optional[str] = ..., code: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("assignment", "wait")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    wait: Wait
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("address", "ticket", "ticket_valid_seconds", "relay", "tls", "simulator_number", "run_id")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TICKET_VALID_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    SIMULATOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    ticket: str
    ticket_valid_seconds: int
    relay: bool
    tls: bool
    simulator_number: int
    run_id: str
    def __init__(self, address: _Optional[str] = ..., ticket: _Optional[str] = ..., ticket_valid_seconds: _Optional[int] = ..., relay: _Optional[bool] = ..., tls: _Optional[bool] = ..., simulator_number: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "retry_after_seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry_after_seconds: float
    def __init__(self, reason: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("hello", "announce", "step", "saved")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    announce: Announce
    step: Step
    saved: Saved
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("welcome", "actions", "reset", "wait", "close", "save")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    actions: Actions
    reset: Reset
    wait: Wait
    close: Close
    save: Save
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("ticket", "protocol_version", "session_id", "behaviors", "client", "resumes")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BEHAVIORS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    ticket: str
    protocol_version: int
    session_id: str
    behaviors: _containers.RepeatedCompositeFieldContainer[BehaviorSpec]
    client: str
    resumes: bool
    def __init__(self, ticket: _Optional[str] = ..., protocol_version: _Optional[int] = ..., session_id: _Optional[str] = ..., behaviors: _Optional[_Iterable[_Union[BehaviorSpec, _Mapping]]] = ..., client: _Optional[str] = ..., resumes: _Optional[bool] = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("behaviors",)
    BEHAVIORS_FIELD_NUMBER: _ClassVar[int]
    behaviors: _containers.RepeatedCompositeFieldContainer[BehaviorSpec]
    def __init__(self, behaviors: _Optional[_Iterable[_Union[BehaviorSpec, _Mapping]]] = ...) -> None: ...

class BehaviorSpec(_message.Message):
    __slots__ = ("name", "observations", "actions", "game_layout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    GAME_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    observations: _containers.RepeatedCompositeFieldContainer[ObservationSpec]
    actions: ActionSpec
    game_layout: str
    def __init__(self, name: _Optional[str] = ..., observations: _Optional[_Iterable[_Union[ObservationSpec, _Mapping]]] = ..., actions: _Optional[_Union[ActionSpec, _Mapping]] = ..., game_layout: _Optional[str] = ...) -> None: ...

class ObservationSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype", "type", "dimension_properties")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DType
    type: ObservationType
    dimension_properties: _containers.RepeatedScalarFieldContainer[DimensionProperty]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DType, str]] = ..., type: _Optional[_Union[ObservationType, str]] = ..., dimension_properties: _Optional[_Iterable[_Union[DimensionProperty, str]]] = ...) -> None: ...

class ActionSpec(_message.Message):
    __slots__ = ("continuous_size", "discrete_branches")
    CONTINUOUS_SIZE_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    continuous_size: int
    discrete_branches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, continuous_size: _Optional[int] = ..., discrete_branches: _Optional[_Iterable[int]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step_id", "behaviors", "stats", "reset_id", "resumed", "game_seconds")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    BEHAVIORS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    GAME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    behaviors: _containers.RepeatedCompositeFieldContainer[BehaviorStep]
    stats: _containers.RepeatedCompositeFieldContainer[Stat]
    reset_id: int
    resumed: bool
    game_seconds: float
    def __init__(self, step_id: _Optional[int] = ..., behaviors: _Optional[_Iterable[_Union[BehaviorStep, _Mapping]]] = ..., stats: _Optional[_Iterable[_Union[Stat, _Mapping]]] = ..., reset_id: _Optional[int] = ..., resumed: _Optional[bool] = ..., game_seconds: _Optional[float] = ...) -> None: ...

class BehaviorStep(_message.Message):
    __slots__ = ("behavior", "decisions", "terminals")
    BEHAVIOR_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    behavior: str
    decisions: DecisionSteps
    terminals: TerminalSteps
    def __init__(self, behavior: _Optional[str] = ..., decisions: _Optional[_Union[DecisionSteps, _Mapping]] = ..., terminals: _Optional[_Union[TerminalSteps, _Mapping]] = ...) -> None: ...

class DecisionSteps(_message.Message):
    __slots__ = ("agent_ids", "rewards", "observations", "action_masks", "group_ids", "group_rewards")
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_REWARDS_FIELD_NUMBER: _ClassVar[int]
    agent_ids: bytes
    rewards: bytes
    observations: _containers.RepeatedCompositeFieldContainer[Tensor]
    action_masks: bytes
    group_ids: bytes
    group_rewards: bytes
    def __init__(self, agent_ids: _Optional[bytes] = ..., rewards: _Optional[bytes] = ..., observations: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., action_masks: _Optional[bytes] = ..., group_ids: _Optional[bytes] = ..., group_rewards: _Optional[bytes] = ...) -> None: ...

class TerminalSteps(_message.Message):
    __slots__ = ("agent_ids", "rewards", "observations", "truncated", "group_ids", "group_rewards", "outcomes")
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_REWARDS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    agent_ids: bytes
    rewards: bytes
    observations: _containers.RepeatedCompositeFieldContainer[Tensor]
    truncated: bytes
    group_ids: bytes
    group_rewards: bytes
    outcomes: bytes
    def __init__(self, agent_ids: _Optional[bytes] = ..., rewards: _Optional[bytes] = ..., observations: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., truncated: _Optional[bytes] = ..., group_ids: _Optional[bytes] = ..., group_rewards: _Optional[bytes] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class Stat(_message.Message):
    __slots__ = ("key", "value", "aggregation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    aggregation: Aggregation
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ..., aggregation: _Optional[_Union[Aggregation, str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run_id", "simulator_number", "seed", "environment_parameters", "max_message_bytes", "step_timeout_seconds", "samplers", "position")
    class EnvironmentParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SamplersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Sampler
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Sampler, _Mapping]] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SIMULATOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    simulator_number: int
    seed: int
    environment_parameters: _containers.ScalarMap[str, float]
    max_message_bytes: int
    step_timeout_seconds: float
    samplers: _containers.MessageMap[str, Sampler]
    position: bytes
    def __init__(self, run_id: _Optional[str] = ..., simulator_number: _Optional[int] = ..., seed: _Optional[int] = ..., environment_parameters: _Optional[_Mapping[str, float]] = ..., max_message_bytes: _Optional[int] = ..., step_timeout_seconds: _Optional[float] = ..., samplers: _Optional[_Mapping[str, Sampler]] = ..., position: _Optional[bytes] = ...) -> None: ...

class Sampler(_message.Message):
    __slots__ = ("seed", "uniform", "gaussian", "multi_range_uniform")
    SEED_FIELD_NUMBER: _ClassVar[int]
    UNIFORM_FIELD_NUMBER: _ClassVar[int]
    GAUSSIAN_FIELD_NUMBER: _ClassVar[int]
    MULTI_RANGE_UNIFORM_FIELD_NUMBER: _ClassVar[int]
    seed: int
    uniform: UniformDistribution
    gaussian: GaussianDistribution
    multi_range_uniform: MultiRangeUniformDistribution
    def __init__(self, seed: _Optional[int] = ..., uniform: _Optional[_Union[UniformDistribution, _Mapping]] = ..., gaussian: _Optional[_Union[GaussianDistribution, _Mapping]] = ..., multi_range_uniform: _Optional[_Union[MultiRangeUniformDistribution, _Mapping]] = ...) -> None: ...

class UniformDistribution(_message.Message):
    __slots__ = ("min_value", "max_value")
    MIN_VALUE_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUE_FIELD_NUMBER: _ClassVar[int]
    min_value: float
    max_value: float
    def __init__(self, min_value: _Optional[float] = ..., max_value: _Optional[float] = ...) -> None: ...

class GaussianDistribution(_message.Message):
    __slots__ = ("mean", "st_dev")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    ST_DEV_FIELD_NUMBER: _ClassVar[int]
    mean: float
    st_dev: float
    def __init__(self, mean: _Optional[float] = ..., st_dev: _Optional[float] = ...) -> None: ...

class MultiRangeUniformDistribution(_message.Message):
    __slots__ = ("min_values", "max_values")
    MIN_VALUES_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUES_FIELD_NUMBER: _ClassVar[int]
    min_values: _containers.RepeatedScalarFieldContainer[float]
    max_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, min_values: _Optional[_Iterable[float]] = ..., max_values: _Optional[_Iterable[float]] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("step_id", "behaviors", "environment_parameters", "samplers")
    class EnvironmentParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SamplersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Sampler
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Sampler, _Mapping]] = ...) -> None: ...
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    BEHAVIORS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    behaviors: _containers.RepeatedCompositeFieldContainer[BehaviorActions]
    environment_parameters: _containers.ScalarMap[str, float]
    samplers: _containers.MessageMap[str, Sampler]
    def __init__(self, step_id: _Optional[int] = ..., behaviors: _Optional[_Iterable[_Union[BehaviorActions, _Mapping]]] = ..., environment_parameters: _Optional[_Mapping[str, float]] = ..., samplers: _Optional[_Mapping[str, Sampler]] = ...) -> None: ...

class BehaviorActions(_message.Message):
    __slots__ = ("behavior", "agent_ids", "continuous", "discrete")
    BEHAVIOR_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    behavior: str
    agent_ids: bytes
    continuous: bytes
    discrete: bytes
    def __init__(self, behavior: _Optional[str] = ..., agent_ids: _Optional[bytes] = ..., continuous: _Optional[bytes] = ..., discrete: _Optional[bytes] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("reset_id", "environment_parameters", "samplers")
    class EnvironmentParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SamplersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Sampler
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Sampler, _Mapping]] = ...) -> None: ...
    RESET_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    reset_id: int
    environment_parameters: _containers.ScalarMap[str, float]
    samplers: _containers.MessageMap[str, Sampler]
    def __init__(self, reset_id: _Optional[int] = ..., environment_parameters: _Optional[_Mapping[str, float]] = ..., samplers: _Optional[_Mapping[str, Sampler]] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("save_id",)
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    save_id: int
    def __init__(self, save_id: _Optional[int] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("save_id", "position")
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    save_id: int
    position: bytes
    def __init__(self, save_id: _Optional[int] = ..., position: _Optional[bytes] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("code", "reason", "rejoin")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    rejoin: bool
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., rejoin: _Optional[bool] = ...) -> None: ...
