"""Models that ML-Agents 1.1.0 exported, and actors of ours with the same weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import Tensor

from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec
from worker.learning.networks.actor import Actor
from worker.learning.networks.attention import EntityEmbedding
from worker.learning.networks.conditional import ConditionalBody
from worker.learning.networks.dense import Dense

FOLDER = Path(__file__).parents[3] / "data" / "mlagents"

MODELS: dict[str, tuple[BehaviorSpec, dict[str, object], bool]] = {
    "cont": (make_spec(continuous=2), {"normalize": True}, False),
    "cont_lstm": (make_spec(continuous=2), {"memory": {"memory_size": 8}}, False),
    "hybrid": (make_spec(observations=(4, (3, 84, 84)), continuous=2, branches=(3, 2)), {}, False),
    "resnet": (make_spec(observations=((3, 36, 36),), branches=(3,)), {"vis_encode_type": "resnet"}, False),
    "sac_cont": (make_spec(continuous=2), {}, True),
    "varonly": (make_spec(observations=((5, 3),), continuous=1), {}, False),
    "PushButton": (make_spec(branches=(3, 3, 2)), {"hidden_units": 128}, False),
}
"""What each was exported for: the behavior, its network settings, and whether SAC made it. With 2 x 16 units, but for
`PushButton`, which is of a Unity project and an older release (0.30)."""


def load(name: str) -> onnx.ModelProto:
    return onnx.load(FOLDER / f"{name}.onnx")


def run(model: onnx.ModelProto | Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what onnxruntime makes of inputs, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    contents = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    feed = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def make_actor(name: str, generator: torch.Generator | None = None) -> Actor:
    """An actor of ours as ML-Agents built that of a model, with weights of its own."""
    spec, settings, squashed = MODELS[name]
    network = NetworkSettings.model_validate({"hidden_units": 16, "num_layers": 2, **settings})
    return Actor(
        spec, network, generator or torch.Generator().manual_seed(1), head="squashed" if squashed else "gaussian"
    )


@torch.no_grad()
def adopt(actor: Actor, model: onnx.ModelProto) -> None:
    """Give an actor the weights of a model of ML-Agents."""
    weights = {entry.name: torch.tensor(numpy_helper.to_array(entry)) for entry in model.graph.initializer}
    for node in model.graph.node:  # tensors that were equal when they were exported are stored once
        if node.op_type == "Identity" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    body, prefix = actor.body, "network_body.observation_encoder"
    if actor.normalizer is not None:
        mean = weights[f"{prefix}.processors.0.normalizer.running_mean"]
        (std,) = _inputs(model, "Div", weights)[:1]
        actor.normalizer.set_scale(mean=mean, std=std)
    convolutions = iter(_inputs(model, "Conv", weights))
    for visual in body.encoder.visuals:
        for layer in visual.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.weight.copy_(next(convolutions))
                assert layer.bias is not None
                layer.bias.copy_(next(convolutions))
    matrices = iter(_inputs(model, "MatMul", weights))
    for embedding in body.encoder.embeddings:
        assert isinstance(embedding, EntityEmbedding)
        embedding.dense.weight.copy_(next(matrices).t())
        embedding.dense.bias.copy_(weights[f"{prefix}.processors.0.self_ent_encoder.seq_layers.0.bias"])
    if (attention := body.encoder.attention) is not None:
        for ours, theirs in (
            (attention.query, "q"),
            (attention.key, "k"),
            (attention.value, "v"),
            (attention.out, "out"),
        ):
            ours.weight.copy_(next(matrices).t())
            ours.bias.copy_(weights[f"{prefix}.rsa.fc_{theirs}.bias"])
    if (memory := body.memory) is not None:
        inputs, hidden, biases = _inputs(model, "LSTM", weights)
        for ours, theirs in (
            (memory.input_weight, inputs[0]),
            (memory.hidden_weight, hidden[0]),
            (memory.input_bias, biases[0].chunk(2)[0]),
            (memory.hidden_bias, biases[0].chunk(2)[1]),
        ):
            gates = theirs.chunk(4)  # ONNX: input, output, forget, cell; torch: input, forget, cell, output
            ours.copy_(torch.cat([gates[0], gates[2], gates[3], gates[1]]))
    dense = iter(_inputs(model, "Gemm", weights))
    for visual in body.encoder.visuals:
        _fill(visual.dense, next(dense), next(dense))
    assert not isinstance(body.hidden, ConditionalBody)
    for layer in body.hidden.layers:
        assert isinstance(layer, Dense)
        _fill(layer, next(dense), next(dense))
    heads = list(dense)
    actor.head.weight.copy_(torch.cat(heads[0::2]))
    actor.head.bias.copy_(torch.cat(heads[1::2]))
    if actor.log_sigma.numel():
        actor.log_sigma.copy_(weights["action_model._continuous_distribution.log_sigma"][0])


def _fill(layer: Dense, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def _inputs(model: onnx.ModelProto, operation: str, weights: dict[str, Tensor]) -> list[Tensor]:
    """Return the weights that operations of a kind take, in the graph's order."""
    nodes = [node for node in model.graph.node if node.op_type == operation]
    return [weights[name] for node in nodes for name in node.input if name in weights]


def forms(model: onnx.ModelProto, direction: str) -> list[tuple[str, int, Sequence[str | int]]]:
    """Return name, type and shape of the inputs or outputs; sizes that follow the batch are `batch`."""
    entries = model.graph.input if direction == "inputs" else model.graph.output
    return [
        (
            entry.name,
            entry.type.tensor_type.elem_type,
            ["batch" if item.dim_param else item.dim_value for item in entry.type.tensor_type.shape.dim],
        )
        for entry in entries
    ]
