"""Network bodies as ONNX nodes of opset 9, written out with the operations that Unity's importer is known to take.

What its importer (Sentis 2.1) does not take, or ML-Agents avoids for it, is not used: no Split, no Expand, no constant
on the left of a subtraction, no transposition that moves more than two dimensions. Every method returns the name of a
tensor. Weights keep the names that they have in the actor, so that a model can be read beside its checkpoint.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from ludus.collector.activations import ACTIVATIONS
from ludus.collector.layout import BodyLayout
from ludus.collector.networks.normalizer import NORMALIZED_LIMIT
from ludus.collector.spec_checks import ObservationKind
from worker.learning.networks.attention import (
    EPSILON,
    NO_NUMBER,
    NORM_EPSILON,
    PADDING_SCORE,
    EntityEmbedding,
    ResidualSelfAttention,
)
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.conditional import ConditionalBody
from worker.learning.networks.dense import Dense, DenseBody
from worker.learning.networks.encoder import ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.normalizer import Normalizer
from worker.learning.networks.visual import ResidualBlock, VisualEncoder

FLOAT = int(TensorProto.FLOAT)
ONNX_GATES = (0, 3, 1, 2)
"""Where ONNX' gates (input, output, forget, cell) lie among torch's (input, forget, cell, output)."""


OPERATIONS = {"mul": "Mul", "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}
"""The operations of activations in opset 9."""


class Graph:
    """Nodes and constants of a model under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._named: set[str] = set()

    def constant(self, name: str, value: Tensor | NDArray[np.float32] | Sequence[float] | float) -> str:
        """Add a float32 constant; one that exists is used again."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return self._initializer(name, np.ascontiguousarray(array, np.float32).reshape(array.shape))

    def node(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add an operation with one output, of the same name as its node."""
        self.nodes.append(helper.make_node(operation, list(inputs), [output], name=output, **attributes))
        return output

    def linear(self, inputs: str, name: str, weight: Tensor, bias: Tensor) -> str:
        """Add a linear layer over rows."""
        constants = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [inputs, *constants], f"{name}/linear", transB=1)

    def each(self, inputs: str, name: str, weight: Tensor, bias: Tensor | None) -> str:
        """Add a linear layer over each entity of each row."""
        product = self.node("MatMul", [inputs, self.constant(f"{name}.weight", weight.t())], f"{name}/product")
        if bias is None:
            return product
        return self.node("Add", [product, self.constant(f"{name}.bias", bias)], f"{name}/linear")

    def reshape(self, inputs: str, output: str, shape: Sequence[int]) -> str:
        """Give rows another shape; -1 stands for how many there are."""
        name = self._initializer(f"shape/{'x'.join(map(str, shape))}", np.array(shape, np.int64))
        return self.node("Reshape", [inputs, name], output)

    def slice(self, inputs: str, output: str, axis: int, start: int, stop: int) -> str:
        """Take some columns."""
        return self.node("Slice", [inputs], output, axes=[axis], starts=[start], ends=[stop])

    def join(self, parts: Sequence[str], output: str, axis: int = 1) -> str:
        """Put tensors side by side."""
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, output, axis=axis)

    def one_minus(self, inputs: str, name: str) -> str:
        """Add `1 - x`, with the constant on the right."""
        negated = self.node("Mul", [inputs, self.constant("minus_one", -1.0)], f"{name}/negated")
        return self.node("Add", [negated, self.constant("one", 1.0)], name)

    def activation(self, activation: str, linear: str, name: str) -> str:
        """Add a nonlinearity (`ludus.collector.activations`)."""
        nodes = count()

        def add(operation: str, *operands: str) -> str:
            return self.node(OPERATIONS[operation], list(operands), f"{name}/{operation}.{next(nodes)}")

        operations = {operation: partial(add, operation) for operation in OPERATIONS}
        return ACTIVATIONS[activation].evaluate(linear, operations)

    def norm(self, inputs: str, name: str, axis: int) -> str:
        """Add a layer norm without parameters over the last dimension, which is `axis`."""
        mean = self.node("ReduceMean", [inputs], f"{name}/mean", axes=[axis], keepdims=1)
        centred = self.node("Sub", [inputs, mean], f"{name}/centred")
        squares = self.node("Pow", [centred, self.constant("two", 2.0)], f"{name}/squares")
        variance = self.node("ReduceMean", [squares], f"{name}/variance", axes=[axis], keepdims=1)
        guarded = self.node("Add", [variance, self.constant("norm_epsilon", NORM_EPSILON)], f"{name}/guarded")
        return self.node("Div", [centred, self.node("Sqrt", [guarded], f"{name}/deviation")], f"{name}/normed")

    def _initializer(self, name: str, array: NDArray[Any]) -> str:
        if name not in self._named:
            self._named.add(name)
            self.initializers.append(numpy_helper.from_array(array, name))
        return name


def add_body(graph: Graph, body: NetworkBody) -> str:
    """Add everything from the observations (`obs_0`, ...) to the features; `recurrent_out`, too, where there is one."""
    encoding = _encoding(graph, body.encoder, body.normalizer, body.layout)
    activation = body.layout.activation
    if isinstance(body.hidden, ConditionalBody):
        columns = enumerate(body.encoder.goal_columns)
        parts = [graph.slice(encoding, f"goal/{index}", 1, start, stop) for index, (start, stop) in columns]
        features = _conditional(graph, body.hidden, encoding, graph.join(parts, "goal"), activation)
    else:
        features = _dense(graph, body.hidden, encoding, "body.hidden", activation)
    return features if body.memory is None else _memory(graph, body.memory, features)


def _encoding(graph: Graph, encoder: ObservationEncoder, normalizer: Normalizer | None, layout: BodyLayout) -> str:
    parts = []
    vectors = [f"obs_{index}" for index in layout.of_kind(ObservationKind.VECTOR)]
    if vectors:
        joined = graph.join(vectors, "observations")
        parts.append(joined if normalizer is None else _normalized(graph, normalizer, joined))
    for place, index in enumerate(layout.of_kind(ObservationKind.VISUAL)):
        visual = encoder.visuals[place]
        assert isinstance(visual, VisualEncoder)
        parts.append(_picture(graph, visual.layers, f"obs_{index}", f"body.encoder.visuals.{place}.layers"))
    if encoder.attention is not None:
        parts.append(_attention(graph, encoder, encoder.attention, parts, layout))
    return graph.join(parts, "encoding")


def _normalized(graph: Graph, normalizer: Normalizer, inputs: str) -> str:
    mean = graph.constant("normalizer.mean", normalizer.mean)
    std = graph.constant("normalizer.std", normalizer.std())
    scaled = graph.node("Div", [graph.node("Sub", [inputs, mean], "centred"), std], "scaled")
    return graph.node("Clip", [scaled], "normalized", min=-NORMALIZED_LIMIT, max=NORMALIZED_LIMIT)


def _dense(graph: Graph, body: DenseBody, hidden: str, name: str, activation: str) -> str:
    for index, layer in enumerate(body.layers):
        assert isinstance(layer, Dense)
        linear = graph.linear(hidden, f"{name}.layers.{index}", layer.weight, layer.bias)
        hidden = graph.activation(activation, linear, f"{name}.layers.{index}")
    return hidden


def _picture(graph: Graph, layers: nn.Module, inputs: str, prefix: str) -> str:
    for index, layer in enumerate(layers.children()):
        name = f"{prefix}.{index}"
        match layer:
            case nn.Conv2d():
                inputs = _convolution(graph, layer, inputs, name)
            case ResidualBlock():
                inputs = _residual(graph, layer, inputs, name)
            case nn.MaxPool2d():
                inputs = graph.node(
                    "MaxPool", [inputs], f"{name}/pool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 0, 0]
                )
            case nn.LeakyReLU():
                inputs = graph.node("LeakyRelu", [inputs], f"{name}/leaky_relu", alpha=layer.negative_slope)
            case nn.ReLU():
                inputs = graph.activation("relu", inputs, name)
            case nn.SiLU():
                inputs = graph.activation("swish", inputs, name)
            case nn.Flatten():
                dense = layers[-2] if isinstance(layers, nn.Sequential) else None
                assert isinstance(dense, Dense)
                inputs = graph.reshape(inputs, f"{name}/flat", [-1, dense.in_features])
            case Dense():
                inputs = graph.linear(inputs, name, layer.weight, layer.bias)
            case _:
                raise TypeError(f"no ONNX form of {type(layer).__name__}")
    return inputs


def _convolution(graph: Graph, layer: nn.Conv2d, inputs: str, name: str) -> str:
    assert layer.bias is not None
    constants = [graph.constant(f"{name}.weight", layer.weight), graph.constant(f"{name}.bias", layer.bias)]
    return graph.node(
        "Conv",
        [inputs, *constants],
        f"{name}/conv",
        dilations=[1, 1],
        group=1,
        kernel_shape=list(layer.kernel_size),
        pads=[int(layer.padding[0])] * 4,
        strides=list(layer.stride),
    )


def _residual(graph: Graph, block: ResidualBlock, inputs: str, name: str) -> str:
    hidden = inputs
    for part, layer in (("first", block.first), ("second", block.second)):
        swish = graph.activation("swish", hidden, f"{name}.{part}/before")
        hidden = _convolution(graph, layer, swish, f"{name}.{part}")
    return graph.node("Add", [inputs, hidden], f"{name}/residual")


def _attention(
    graph: Graph, encoder: ObservationEncoder, attention: ResidualSelfAttention, own: list[str], layout: BodyLayout
) -> str:
    """Add embeddings of all entities and the attention over them; `own` is what the agent knows of itself."""
    prefix, agent = "body.encoder", None
    if encoder.own_embedding is not None:
        embedding = encoder.own_embedding
        name = f"{prefix}.own_embedding"
        linear = graph.linear(graph.join(own, "own"), name, embedding.weight, embedding.bias)
        agent = graph.activation("swish", linear, name)
    embedded, padding, count = [], [], 0
    for place, index in enumerate(layout.of_kind(ObservationKind.ENTITIES)):
        layer = encoder.embeddings[place]
        assert isinstance(layer, EntityEmbedding)
        embedded.append(_embedding(graph, layer, f"obs_{index}", agent, f"{prefix}.embeddings.{place}"))
        sizes = graph.node("Abs", [f"obs_{index}"], f"entities.{index}/absolute")
        totals = graph.node("ReduceSum", [sizes], f"entities.{index}/total", axes=[2], keepdims=0)
        nothing = graph.node("Less", [totals, graph.constant("no_number", NO_NUMBER)], f"entities.{index}/nothing")
        padding.append(graph.node("Cast", [nothing], f"entities.{index}/padding", to=FLOAT))
        count += layout.observations[index].shape[0]
    entities = graph.join(embedded, "entities")
    return _self_attention(graph, attention, entities, graph.join(padding, "padding"), count)


def _embedding(graph: Graph, layer: EntityEmbedding, entities: str, agent: str | None, name: str) -> str:
    weight, bias, width = layer.dense.weight, layer.dense.bias, layer.dense.out_features
    if agent is None:
        linear = graph.each(entities, f"{name}.dense", weight, bias)
    else:
        shared = graph.linear(agent, f"{name}.dense.own", weight[:, : layer.self_size], bias)
        shared = graph.reshape(shared, f"{name}/shared", [-1, 1, width])
        own = graph.each(entities, f"{name}.dense.entity", weight[:, layer.self_size :], None)
        linear = graph.node("Add", [own, shared], f"{name}/linear")
    return graph.activation("swish", linear, name)


def _self_attention(graph: Graph, attention: ResidualSelfAttention, entities: str, padding: str, count: int) -> str:
    name, width, heads = "body.encoder.attention", attention.width, attention.heads
    real = graph.one_minus(padding, "real")
    normed = graph.norm(entities, f"{name}/before", axis=2)

    def heads_of(layer: Dense, part: str) -> str:
        linear = graph.each(normed, f"{name}.{part}", layer.weight, layer.bias)
        split = graph.reshape(linear, f"{name}.{part}/heads", [-1, count, heads, width // heads])
        return graph.node("Transpose", [split], f"{name}.{part}/by_head", perm=[0, 2, 1, 3])  # (batch, heads, E, head)

    query, value = heads_of(attention.query, "query"), heads_of(attention.value, "value")
    key = graph.node("Transpose", [heads_of(attention.key, "key")], f"{name}.key/turned", perm=[0, 1, 3, 2])
    scale = graph.constant(f"{name}/scale", math.sqrt(width))
    scores = graph.node("Div", [graph.node("MatMul", [query, key], f"{name}/products"), scale], f"{name}/scores")
    real_keys = graph.reshape(real, f"{name}/real_keys", [-1, 1, 1, count])
    padding_keys = graph.reshape(padding, f"{name}/padding_keys", [-1, 1, 1, count])
    penalty = graph.node("Mul", [padding_keys, graph.constant("padding_score", PADDING_SCORE)], f"{name}/penalty")
    allowed = graph.node("Mul", [scores, real_keys], f"{name}/allowed")
    masked = graph.node("Add", [allowed, penalty], f"{name}/masked")
    weights = graph.node("Softmax", [masked], f"{name}/weights", axis=3)
    attended = graph.node("MatMul", [weights, value], f"{name}/attended")
    attended = graph.node("Transpose", [attended], f"{name}/joined", perm=[0, 2, 1, 3])
    attended = graph.reshape(attended, f"{name}/flat", [-1, count, width])
    out = graph.each(attended, f"{name}.out", attention.out.weight, attention.out.bias)
    result = graph.norm(graph.node("Add", [out, normed], f"{name}/residual"), f"{name}/after", axis=2)

    weight = graph.reshape(real, f"{name}/real_rows", [-1, count, 1])
    counted = graph.node("Mul", [result, weight], f"{name}/counted")
    total = graph.node("ReduceSum", [counted], f"{name}/total", axes=[1], keepdims=0)
    number = graph.node("ReduceSum", [real], f"{name}/number", axes=[1], keepdims=1)
    guarded = graph.node("Add", [number, graph.constant("entity_epsilon", EPSILON)], f"{name}/guarded")
    return graph.node("Div", [total, guarded], f"{name}/mean")


def _conditional(graph: Graph, body: ConditionalBody, encoding: str, goal: str, activation: str) -> str:
    name, units, inputs = "body.hidden", body.units, body.last_inputs
    hidden = _dense(graph, body.before, encoding, f"{name}.before", activation)
    hyper = _dense(graph, body.hyper, goal, f"{name}.hyper", activation)
    normed = graph.norm(hyper, f"{name}/hyper", axis=1)
    flat = graph.linear(normed, f"{name}.weights", body.weights.weight, body.weights.bias)
    weights = graph.reshape(flat, f"{name}/weights", [-1, inputs, units])
    row = graph.reshape(hidden, f"{name}/row", [-1, 1, inputs])
    product = graph.reshape(graph.node("MatMul", [row, weights], f"{name}/product"), f"{name}/flat", [-1, units])
    linear = graph.node("Add", [product, graph.constant(f"{name}.bias", body.bias)], f"{name}/linear")
    return graph.activation(activation, linear, name)


def _memory(graph: Graph, memory: Memory, features: str) -> str:
    """Add the LSTM between `recurrent_in` and `recurrent_out`, both (batch, 1, [h | c])."""
    units, inputs = memory.units, memory.input_weight.shape[1]

    def gates(parameter: Tensor) -> Tensor:
        blocks = parameter.detach().chunk(4)
        return parameter.new_tensor(np.concatenate([blocks[gate].cpu().numpy() for gate in ONNX_GATES]))

    before = graph.node("Transpose", ["recurrent_in"], "memory/before", perm=[1, 0, 2])  # (1, batch, S)
    hidden = graph.slice(before, "memory/hidden", 2, 0, units)
    cell = graph.slice(before, "memory/cell", 2, units, 2 * units)
    steps = graph.reshape(features, "memory/step", [-1, 1, inputs])
    steps = graph.node("Transpose", [steps], "memory/steps", perm=[1, 0, 2])  # (1, batch, I)
    weight = graph.constant("body.memory.input_weight", gates(memory.input_weight)[None])
    recurrent = graph.constant("body.memory.hidden_weight", gates(memory.hidden_weight)[None])
    biases = np.concatenate([gates(bias).cpu().numpy() for bias in (memory.input_bias, memory.hidden_bias)])
    outputs = ["memory/outputs", "memory/hidden_after", "memory/cell_after"]
    graph.nodes.append(
        helper.make_node(
            "LSTM",
            [steps, weight, recurrent, graph.constant("body.memory.bias", biases[None]), "", hidden, cell],
            outputs,
            name="memory/lstm",
            hidden_size=units,
        )
    )
    after = graph.node("Concat", outputs[1:], "memory/after", axis=2)
    graph.node("Transpose", [after], "recurrent_out", perm=[1, 0, 2])
    squeezed = graph.node("Squeeze", [outputs[0]], "memory/squeezed", axes=[1])  # (1, batch, U)
    turned = graph.node("Transpose", [squeezed], "memory/turned", perm=[1, 0, 2])
    return graph.reshape(turned, "memory/features", [-1, units])
