"""Hand-made answers are the bytes that protobuf makes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch
from ludus.protocol.codec import encode_actions, encode_answer


@given(
    step_id=st.integers(1, 2**64 - 1),
    name=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=200),
    agents=st.integers(0, 300),
    continuous=st.integers(0, 3),
    branches=st.integers(0, 3),
    named=st.booleans(),
)
def test_an_answer_is_what_protobuf_would_send(
    step_id: int, name: str, agents: int, continuous: int, branches: int, named: bool
) -> None:
    rng = np.random.default_rng(agents)
    ids = np.arange(agents, dtype=np.int32) if named else None
    sample = rng.standard_normal((agents, continuous), np.float32)
    chosen = rng.integers(0, 9, (agents, branches), np.int32)

    news = pb.Actions(environment_parameters={"gravity": step_id % 7} if named else {})
    answer = encode_answer(
        step_id,
        name,
        b"" if ids is None else ids.tobytes(),
        sample.tobytes(),
        chosen.tobytes(),
        news.SerializeToString(),
    )

    actions = encode_actions(step_id, [ActionBatch(name, ids, sample, chosen)])
    actions.MergeFrom(news)
    assert answer == pb.ConnectResponse(actions=actions).SerializeToString()


def test_a_field_that_is_added_to_the_messages_must_be_encoded_by_hand_too() -> None:
    fields = {
        kind.DESCRIPTOR.name: {field.name for field in kind.DESCRIPTOR.fields}
        for kind in (pb.Actions, pb.BehaviorActions)
    }

    # The last two of `Actions` travel as `news`, which protobuf serialises. Add a field to `encode_answer` and here.
    assert fields == {
        "Actions": {"step_id", "behaviors", "environment_parameters", "samplers"},
        "BehaviorActions": {"behavior", "agent_ids", "continuous", "discrete"},
    }
