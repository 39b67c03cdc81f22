"""Network bodies as ONNX nodes of opset 9, written out with the operations that Unity's importer is known to take.

What its importer (Sentis 2.1) does not take, or ML-Agents avoids for it, is not used: no Split, no Expand, no constant
on the left of a subtraction, no transposition that moves more than two dimensions. Every method returns the name of a
tensor. Weights keep the names that they have in the actor, so that a model can be read beside its checkpoint.

Collectors act with the same nodes (`acting_graph`), but for the weights: theirs come with each version.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from ludus.collector.activations import ACTIVATIONS
from ludus.collector.layout import NORM_EPSILON, NORMALIZED_LIMIT, BodyLayout, NetworkGraph
from ludus.collector.spec_checks import ObservationKind
from ludus.plugins import PluginError
from worker.learning.networks.actor import Actor
from worker.learning.networks.attention import (
    EPSILON,
    NO_NUMBER,
    PADDING_SCORE,
    EntityEmbedding,
    ResidualSelfAttention,
)
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.conditional import ConditionalBody
from worker.learning.networks.dense import Dense, DenseBody
from worker.learning.networks.encoder import ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.normed import LayerNormBody, SimbaBlock, SimbaBody
from worker.learning.networks.visual import BRIGHTEST, ResidualBlock, VisualEncoder

OPSET, IR_VERSION = 9, 4
FLOAT = int(TensorProto.FLOAT)
Form = tuple[int, list[str | int]]
"""Type and shape of an input or output."""
ONNX_GATES = (0, 3, 1, 2)
"""Where ONNX' gates (input, output, forget, cell) lie among torch's (input, forget, cell, output)."""
OPERATIONS = {"mul": "Mul", "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}
"""The operations of activations in opset 9."""

LAYERS: Mapping[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "swish", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}
"""Layers of encoders that are activations (`ludus.collector.activations`)."""


class Graph:
    """Nodes and constants of a model under construction."""

    def __init__(self, offsets: Mapping[str, int] | None = None) -> None:
        """`offsets`: where each weight lies in a flat vector that comes later; None: the model has its weights."""
        self.nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._offsets = offsets

    def constant(self, name: str, value: Tensor | NDArray[np.float32] | Sequence[float] | float) -> str:
        """Add a float32 constant; one that exists is used again."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return self._initializer(name, np.ascontiguousarray(array, np.float32).reshape(array.shape))

    def weight(self, name: str, values: Tensor) -> str:
        """Add a part of the actor's flat vector by its name there."""
        if self._offsets is None:
            return self.constant(name, values)
        tensor = TensorProto(name=name, data_type=FLOAT, dims=values.shape, data_location=TensorProto.EXTERNAL)
        place = {"location": NetworkGraph.WEIGHTS, "offset": 4 * self._offsets[name], "length": 4 * values.numel()}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor
        return name

    def folded(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add the result of an operation on constants; where weights come later, the operation."""
        if self._offsets is not None:
            return self.node(operation, inputs, output, **attributes)  # ONNX Runtime folds it for each session
        node = helper.make_node(operation, inputs, [output], **attributes)
        arrays = {name: numpy_helper.to_array(self._initializers[name]) for name in inputs}
        results = ReferenceEvaluator(node).run(None, arrays)
        assert isinstance(results, list)
        return self._initializer(output, results[0])

    def node(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add an operation with one output, of the same name as its node."""
        self.nodes.append(helper.make_node(operation, list(inputs), [output], name=output, **attributes))
        return output

    def linear(self, inputs: str, name: str, layer: nn.Linear) -> str:
        """Add a linear layer over rows."""
        return self.product(inputs, name, *self.layer(name, layer))

    def layer(self, name: str, layer: nn.Linear) -> tuple[str, str]:
        """Add the weights and the bias of a linear layer."""
        return self.weight(f"{name}.weight", layer.weight), self.weight(f"{name}.bias", layer.bias)

    def product(self, inputs: str, name: str, weight: str, bias: str) -> str:
        """Add `inputs @ weight.T + bias` over rows."""
        return self.node("Gemm", [inputs, weight, bias], f"{name}/linear", transB=1)

    def each(self, inputs: str, name: str, weight: str, bias: str | None) -> str:
        """Add a linear layer over each entity of each row."""
        transposed = self.folded("Transpose", [weight], f"{name}/transposed", perm=[1, 0])
        product = self.node("MatMul", [inputs, transposed], f"{name}/product")
        return product if bias is None else self.node("Add", [product, bias], f"{name}/linear")

    def reshape(self, inputs: str, output: str, shape: Sequence[int]) -> str:
        """Give rows another shape; -1 stands for how many there are."""
        name = self.indices(f"shape/{'x'.join(map(str, shape))}", shape)
        return self.node("Reshape", [inputs, name], output)

    def indices(self, name: str, numbers: Sequence[int] | NDArray[np.int64]) -> str:
        """Add integers; those that exist are used again."""
        return self._initializer(name, np.asarray(numbers, np.int64))

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

    def scaled_norm(self, inputs: str, name: str, layer: nn.LayerNorm) -> str:
        """Add a layer norm over the columns of rows, with its scale and shift."""
        scale, shift = self.weight(f"{name}.weight", layer.weight), self.weight(f"{name}.bias", layer.bias)
        scaled = self.node("Mul", [self.norm(inputs, name, 1), scale], f"{name}/scaled")
        return self.node("Add", [scaled, shift], f"{name}/shifted")

    def model(self, name: str, inputs: Mapping[str, Form], outputs: Mapping[str, Form]) -> onnx.ModelProto:
        """Return the model, with the constants that its nodes use."""
        used = {name for node in self.nodes for name in node.input}
        proto = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(name, *form) for name, form in inputs.items()],
            [helper.make_tensor_value_info(name, *form) for name, form in outputs.items()],
            initializer=[tensor for name, tensor in self._initializers.items() if name in used],
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(proto, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ludus")

    def _initializer(self, name: str, array: NDArray[np.generic]) -> str:
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name


@runtime_checkable
class OnnxLayer(Protocol):
    """A layer of a plug-in's encoder that writes its ONNX form itself."""

    def onnx(self, graph: Graph, inputs: str, name: str) -> str:
        """Add the layer, and return the name of its result. Weights are called as in the module, behind `name`."""


def acting_graph(actor: Actor) -> NetworkGraph | None:
    """Return the graph with which collectors act; None for a dense actor, which acts in numpy.

    Its inputs are the observations as simulators send them.
    """
    if actor.layout.dense:
        return None
    body, offsets, starts, start = actor.body, dict[str, int](), dict[int, int](), 0
    if actor.normalizer is not None:
        offsets = {"normalizer.mean": 0, "normalizer.std": body.layout.vector_size}
        start = 2 * body.layout.vector_size
    for parameter in (*body.parameters(), *actor.head.parameters()):
        starts[id(parameter)] = start
        start += parameter.numel()
    for name, parameter in actor.named_parameters(remove_duplicate=False):  # the last layer of pictures has two names
        if id(parameter) in starts:
            offsets[name] = starts[id(parameter)]
    graph, inputs = Graph(offsets), dict[str, Form]()
    for index in body.layout.seen:
        observation = body.layout.observations[index]
        shape: list[str | int] = ["batch", *observation.shape]
        if observation.dtype == "uint8":
            inputs[f"bytes_{index}"] = int(TensorProto.UINT8), shape
            floats = graph.node("Cast", [f"bytes_{index}"], f"floats_{index}", to=FLOAT)
            graph.node("Div", [floats, graph.constant("brightest", BRIGHTEST)], f"obs_{index}")
        else:
            inputs[f"obs_{index}"] = FLOAT, shape
    outputs: dict[str, Form] = {}
    columns = graph.linear(add_body(graph, body), "head", actor.head)
    outputs[columns] = FLOAT, ["batch", actor.layout.head_size]
    if actor.memory_size:
        inputs["recurrent_in"] = outputs["recurrent_out"] = FLOAT, ["batch", 1, actor.memory_size]
    model = graph.model("policy", inputs, outputs).SerializeToString()
    return NetworkGraph(base64.b64encode(model).decode(), actor.flat_size)


def add_body(graph: Graph, body: NetworkBody) -> str:
    """Add everything from the observations (`obs_0`, ...) to the features; `recurrent_out`, too, where there is one."""
    layout, encoder, normalizer = body.layout, body.encoder, body.normalizer
    parts = []
    vectors = [f"obs_{index}" for index in layout.of_kind(ObservationKind.VECTOR)]
    if vectors:
        joined = graph.join(vectors, "observations")
        if normalizer is not None:
            mean = graph.weight("normalizer.mean", normalizer.mean)
            std = graph.weight("normalizer.std", normalizer.std())
            scaled = graph.node("Div", [graph.node("Sub", [joined, mean], "centred"), std], "scaled")
            joined = graph.node("Clip", [scaled], "normalized", min=-NORMALIZED_LIMIT, max=NORMALIZED_LIMIT)
        parts.append(joined)
    for place, index in enumerate(layout.of_kind(ObservationKind.VISUAL)):
        visual = encoder.visuals[place]
        assert isinstance(visual, VisualEncoder)
        parts.append(_picture(graph, visual.layers, f"obs_{index}", f"body.encoder.visuals.{place}.layers"))
    if encoder.attention is not None:
        parts.append(_attention(graph, encoder, encoder.attention, parts, layout))
    encoding, activation = graph.join(parts, "encoding"), layout.activation
    if isinstance(body.hidden, ConditionalBody):
        columns = enumerate(encoder.goal_columns)
        goals = [graph.slice(encoding, f"goal/{index}", 1, start, stop) for index, (start, stop) in columns]
        features = _conditional(graph, body.hidden, encoding, graph.join(goals, "goal"), activation)
    elif isinstance(body.hidden, LayerNormBody):
        features = _layer_norm(graph, body.hidden, encoding, "body.hidden", activation)
    elif isinstance(body.hidden, SimbaBody):
        features = _simba(graph, body.hidden, encoding, "body.hidden", activation)
    else:
        features = _dense(graph, body.hidden, encoding, "body.hidden", activation)
    return features if body.memory is None else _memory(graph, body.memory, features)


def _dense(graph: Graph, body: DenseBody, hidden: str, name: str, activation: str) -> str:
    for index, layer in enumerate(body.layers):
        assert isinstance(layer, Dense)
        linear = graph.linear(hidden, f"{name}.layers.{index}", layer)
        hidden = graph.activation(activation, linear, f"{name}.layers.{index}")
    return hidden


def _layer_norm(graph: Graph, body: LayerNormBody, hidden: str, name: str, activation: str) -> str:
    for index, (layer, norm) in enumerate(zip(body.layers, body.norms, strict=True)):
        assert isinstance(layer, Dense)
        assert isinstance(norm, nn.LayerNorm)
        linear = graph.linear(hidden, f"{name}.layers.{index}", layer)
        normed = graph.scaled_norm(linear, f"{name}.norms.{index}", norm)
        hidden = graph.activation(activation, normed, f"{name}.layers.{index}")
    return hidden


def _simba(graph: Graph, body: SimbaBody, inputs: str, name: str, activation: str) -> str:
    hidden = graph.linear(inputs, f"{name}.embedding", body.embedding)
    for index, block in enumerate(body.blocks):
        assert isinstance(block, SimbaBlock)
        prefix = f"{name}.blocks.{index}"
        normed = graph.scaled_norm(hidden, f"{prefix}.norm", block.norm)
        wide = graph.activation(activation, graph.linear(normed, f"{prefix}.widening", block.widening), prefix)
        narrow = graph.linear(wide, f"{prefix}.narrowing", block.narrowing)
        hidden = graph.node("Add", [hidden, narrow], f"{prefix}/residual")
    return graph.scaled_norm(hidden, f"{name}.norm", body.norm)


def _picture(graph: Graph, layers: nn.Module, inputs: str, prefix: str) -> str:
    for index, layer in enumerate(layers.children()):
        name = f"{prefix}.{index}"
        match layer:
            case nn.Conv2d():
                inputs = _convolution(graph, layer, inputs, name)
            case ResidualBlock():
                hidden = inputs
                for part, kernel in (("first", layer.first), ("second", layer.second)):
                    swish = graph.activation("swish", hidden, f"{name}.{part}/before")
                    hidden = _convolution(graph, kernel, swish, f"{name}.{part}")
                inputs = graph.node("Add", [inputs, hidden], f"{name}/residual")
            case nn.MaxPool2d(dilation=1, ceil_mode=False):
                window = {"kernel_shape": _pair(layer.kernel_size), "strides": _pair(layer.stride)}
                inputs = graph.node("MaxPool", [inputs], f"{name}/pool", **window, pads=2 * _pair(layer.padding))
            case OnnxLayer():
                inputs = layer.onnx(graph, inputs, name)
            case nn.LeakyReLU():
                inputs = graph.node("LeakyRelu", [inputs], f"{name}/leaky_relu", alpha=layer.negative_slope)
            case nn.ReLU() | nn.SiLU() | nn.Sigmoid() | nn.Tanh():
                inputs = graph.activation(LAYERS[type(layer)], inputs, name)
            case nn.Flatten():
                dense = layers[-2] if isinstance(layers, nn.Sequential) else None
                assert isinstance(dense, Dense)
                inputs = graph.reshape(inputs, f"{name}/flat", [-1, dense.in_features])
            case Dense():
                inputs = graph.linear(inputs, name, layer)
            case _:
                reason = f"{layer} has no ONNX form: take another layer, or give it the method of {OnnxLayer.__name__}"
                raise PluginError(reason)
    return inputs


def _convolution(graph: Graph, layer: nn.Conv2d, inputs: str, name: str) -> str:
    weights = [graph.weight(f"{name}.weight", layer.weight)]
    weights += [] if layer.bias is None else [graph.weight(f"{name}.bias", layer.bias)]
    return graph.node(
        "Conv",
        [inputs, *weights],
        f"{name}/conv",
        dilations=list(layer.dilation),
        group=layer.groups,
        kernel_shape=list(layer.kernel_size),
        pads=2 * _pair(layer.padding),
        strides=list(layer.stride),
    )


def _pair(sizes: Any) -> list[int]:
    return [int(size) for size in (sizes if isinstance(sizes, tuple) else (sizes, sizes))]


def _attention(
    graph: Graph, encoder: ObservationEncoder, attention: ResidualSelfAttention, own: list[str], layout: BodyLayout
) -> str:
    """Add embeddings of all entities and the attention over them; `own` is what the agent knows of itself."""
    prefix, agent = "body.encoder", None
    if encoder.own_embedding is not None:
        name = f"{prefix}.own_embedding"
        linear = graph.linear(graph.join(own, "own"), name, encoder.own_embedding)
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
    weight, bias = graph.layer(f"{name}.dense", layer.dense)
    if agent is None:
        linear = graph.each(entities, f"{name}.dense", weight, bias)
    else:
        size, width = layer.self_size, layer.dense.out_features
        of_agent = graph.folded("Slice", [weight], f"{name}.dense.own/weight", axes=[1], starts=[0], ends=[size])
        of_entity = graph.folded(
            "Slice", [weight], f"{name}.dense.entity/weight", axes=[1], starts=[size], ends=[layer.dense.in_features]
        )
        shared = graph.product(agent, f"{name}.dense.own", of_agent, bias)
        shared = graph.reshape(shared, f"{name}/shared", [-1, 1, width])
        linear = graph.node(
            "Add", [graph.each(entities, f"{name}.dense.entity", of_entity, None), shared], f"{name}/linear"
        )
    return graph.activation("swish", linear, name)


def _self_attention(graph: Graph, attention: ResidualSelfAttention, entities: str, padding: str, count: int) -> str:
    name, width, heads = "body.encoder.attention", attention.width, attention.heads
    real = graph.one_minus(padding, "real")
    normed = graph.norm(entities, f"{name}/before", axis=2)

    def heads_of(layer: Dense, part: str) -> str:
        linear = graph.each(normed, f"{name}.{part}", *graph.layer(f"{name}.{part}", layer))
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
    out = graph.each(attended, f"{name}.out", *graph.layer(f"{name}.out", attention.out))
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
    flat = graph.linear(normed, f"{name}.weights", body.weights)
    weights = graph.reshape(flat, f"{name}/weights", [-1, inputs, units])
    row = graph.reshape(hidden, f"{name}/row", [-1, 1, inputs])
    product = graph.reshape(graph.node("MatMul", [row, weights], f"{name}/product"), f"{name}/flat", [-1, units])
    linear = graph.node("Add", [product, graph.weight(f"{name}.bias", body.bias)], f"{name}/linear")
    return graph.activation(activation, linear, name)


def _memory(graph: Graph, memory: Memory, features: str) -> str:
    """Add the LSTM between `recurrent_in` and `recurrent_out`, both (batch, 1, [h | c])."""
    units, inputs = memory.units, memory.input_weight.shape[1]

    rows = np.concatenate([np.arange(gate * units, (gate + 1) * units) for gate in ONNX_GATES])
    order = graph.indices("memory/gates", rows)

    def gates(name: str, parameter: Tensor) -> str:
        return graph.folded("Gather", [graph.weight(f"body.memory.{name}", parameter), order], f"memory/{name}", axis=0)

    def forward(name: str, *shape: int) -> str:
        """Put the dimension of directions, of which there is one, before the others."""
        sizes = graph.indices(f"shape/{name}", [1, *shape])
        return graph.folded("Reshape", [name, sizes], f"{name}/forward")

    weight = forward(gates("input_weight", memory.input_weight), 4 * units, inputs)
    recurrent = forward(gates("hidden_weight", memory.hidden_weight), 4 * units, units)
    biases = [gates("input_bias", memory.input_bias), gates("hidden_bias", memory.hidden_bias)]
    bias = forward(graph.folded("Concat", biases, "memory/bias", axis=0), 8 * units)
    before = graph.reshape("recurrent_in", "memory/before", [1, -1, 2 * units])
    hidden = graph.slice(before, "memory/hidden", 2, 0, units)
    cell = graph.slice(before, "memory/cell", 2, units, 2 * units)
    steps = graph.reshape(features, "memory/steps", [1, -1, inputs])  # one step of each row
    outputs = ["memory/outputs", "memory/hidden_after", "memory/cell_after"]
    graph.nodes.append(
        helper.make_node(
            "LSTM",
            [steps, weight, recurrent, bias, "", hidden, cell],
            outputs,
            name="memory/lstm",
            hidden_size=units,
        )
    )
    after = graph.node("Concat", outputs[1:], "memory/after", axis=2)
    graph.reshape(after, "recurrent_out", [-1, 1, 2 * units])
    return graph.reshape(outputs[0], "memory/features", [-1, units])
