"""ONNX models that Unity's inference (ML-Agents 3.0.0, Sentis) and onnxruntime load.

The contract is ML-Agents' model version 3: opset 9, IR version 4, names and order of inputs and outputs below.
The graph is put together with `onnx.helper` from the operations that ML-Agents 1.1.0 exports, which Unity is known to
import. torch's own exporters were the other ways: the default one writes opset 18 only, in seconds; the TorchScript
one is deprecated, and what it writes changes with torch.

    obs_0 ...                           float32 [batch, size]        raw: normalisation is in the graph
    action_masks                        float32 [batch, choices]     1 = allowed, 0 = forbidden; with branches only
 -> version_number, memory_size         float32 [1]                  3 and 0
    continuous_actions                  float32 [batch, columns]     sampled; in [-1, 1]
    continuous_action_output_shape      float32 [1]                  columns
    deterministic_continuous_actions    float32 [batch, columns]     the mean; in [-1, 1]
    discrete_actions                    int64   [batch, branches]    sampled
    discrete_action_output_shape        float32 [1, branches]        choices of each branch
    deterministic_discrete_actions      int64   [batch, branches]    the likeliest

Every export is checked before it is written: names, versions, and onnxruntime's answers against the torch policy's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from ludus.spec import BehaviorSpec
from worker.functional.distributions import branch_bounds, masked_logits
from worker.networks.actor import Actor
from worker.networks.dense import Dense
from worker.networks.layout import ActorLayout
from worker.networks.normalizer import CLIP

OPSET, IR_VERSION, MODEL_VERSION = 9, 4, 3.0
TOLERANCE = 1e-4
"""How far an exported action, within [-1, 1], or a logit may lie from torch's: float32 sums in another order."""


class ExportMismatch(RuntimeError):
    """An exported model does not do what the policy does, or not in the form that was agreed. Nothing was written."""


def export_onnx(
    actor: Actor,
    spec: BehaviorSpec,
    path: Path,
    observations: Sequence[Tensor] = (),
    masks: Tensor | None = None,
) -> None:
    """Write the policy to `path`, after a check against itself on recorded observations.

    `observations` are `(B, size)` for each observation of the spec, `masks` `(B, choices)` or None (all allowed).
    Without observations (a run that ends before its first step) the check uses random ones. Raise `ExportMismatch`.
    """
    if not observations or len(observations[0]) == 0:
        observations, masks = _random_observations(spec), None
    model = _build(actor, spec)
    _check_form(model, actor.layout)
    contents = model.SerializeToString()
    _check_answers(contents, actor, [part.detach().cpu() for part in observations], masks)
    path.write_bytes(contents)


def output_names(layout: ActorLayout) -> list[str]:
    """Return the names of a model's outputs, in order."""
    names = ["version_number", "memory_size"]
    if layout.continuous_size:
        names += ["continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions"]
    if layout.discrete_branches:
        names += ["discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions"]
    return names


def input_names(layout: ActorLayout) -> list[str]:
    """Return the names of a model's inputs, in order."""
    names = [f"obs_{index}" for index in range(len(layout.observation_sizes))]
    return [*names, "action_masks"] if layout.discrete_branches else names


class _Graph:
    """Nodes and constants of a model under construction. Every method returns the name of a tensor."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Tensor | NDArray[np.float32] | Sequence[float] | float) -> str:
        """Add a float32 constant."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name))
        return name

    def node(self, operation: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add an operation with one output, of the same name as its node."""
        self.nodes.append(helper.make_node(operation, list(inputs), [output], name=output, **attributes))
        return output

    def linear(self, inputs: str, name: str, weight: Tensor, bias: Tensor) -> str:
        """Add a linear layer."""
        constants = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [inputs, *constants], f"{name}/linear", transB=1)


def _build(actor: Actor, spec: BehaviorSpec) -> onnx.ModelProto:
    """Return the model of a policy."""
    layout, graph = actor.layout, _Graph()
    for name, number in (("version_number", MODEL_VERSION), ("memory_size", 0.0)):
        graph.node("Identity", [graph.constant(f"{name}.value", [number])], name)
    features = _body(graph, actor)
    if layout.continuous_size:
        _continuous(graph, actor, features)
    if layout.discrete_branches:
        _discrete(graph, actor, features)
    proto = helper.make_graph(
        graph.nodes, spec.behavior, list(_inputs(spec)), list(_outputs(layout)), initializer=graph.initializers
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(proto, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ludus")


def _inputs(spec: BehaviorSpec) -> Iterator[onnx.ValueInfoProto]:
    for index, observation in enumerate(spec.observations):
        yield helper.make_tensor_value_info(f"obs_{index}", TensorProto.FLOAT, ["batch", *observation.shape])
    if spec.actions.discrete_branches:
        yield helper.make_tensor_value_info("action_masks", TensorProto.FLOAT, ["batch", spec.actions.mask_size])


def _outputs(layout: ActorLayout) -> Iterator[onnx.ValueInfoProto]:
    branches = len(layout.discrete_branches)
    for name in output_names(layout):
        if name == "discrete_action_output_shape":
            yield helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, branches])
        elif name.endswith("discrete_actions"):
            yield helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", branches])
        elif name.endswith("continuous_actions"):
            yield helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", layout.continuous_size])
        else:
            yield helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])


def _body(graph: _Graph, actor: Actor) -> str:
    """Add everything up to the features of the last hidden layer."""
    observations = [f"obs_{index}" for index in range(len(actor.layout.observation_sizes))]
    hidden = observations[0] if len(observations) == 1 else graph.node("Concat", observations, "observations", axis=1)
    if actor.normalizer is not None:
        mean = graph.constant("normalizer.mean", actor.normalizer.mean)
        std = graph.constant("normalizer.std", actor.normalizer.std())
        scaled = graph.node("Div", [graph.node("Sub", [hidden, mean], "centred"), std], "scaled")
        hidden = graph.node("Clip", [scaled], "normalized", min=-CLIP, max=CLIP)
    for index, layer in enumerate(actor.body.layers):
        assert isinstance(layer, Dense)
        linear = graph.linear(hidden, f"body.{index}", layer.weight, layer.bias)
        hidden = _activation(graph, actor.layout.activation, linear, f"body.{index}")
    return hidden


def _activation(graph: _Graph, activation: str, linear: str, name: str) -> str:
    if activation == "swish":  # no operation of its own in opset 9
        return graph.node("Mul", [linear, graph.node("Sigmoid", [linear], f"{name}/gate")], f"{name}/swish")
    return graph.node({"tanh": "Tanh", "relu": "Relu"}[activation], [linear], f"{name}/{activation}")


def _continuous(graph: _Graph, actor: Actor, features: str) -> None:
    """Add the outputs of continuous actions."""
    size = actor.layout.continuous_size
    mean = graph.linear(features, "mean", actor.head.weight[:size], actor.head.bias[:size])
    sigma = graph.node("Exp", [graph.constant("log_sigma", actor.log_sigma)], "sigma")
    noise = graph.node("RandomNormalLike", [mean], "noise", dtype=int(TensorProto.FLOAT))
    sample = graph.node("Add", [mean, graph.node("Mul", [noise, sigma], "deviation")], "sample")
    scale = graph.constant("scale", 3.0)
    for action, output in ((sample, "continuous_actions"), (mean, "deterministic_continuous_actions")):
        clipped = graph.node("Clip", [action], f"{action}/clipped", min=-3.0, max=3.0)
        graph.node("Div", [clipped, scale], output)
    graph.node("Identity", [graph.constant("columns", [float(size)])], "continuous_action_output_shape")


def _discrete(graph: _Graph, actor: Actor, features: str) -> None:
    """Add the outputs of discrete actions. A forbidden choice has the logit -1e8, ML-Agents' number."""
    size = actor.layout.continuous_size
    minus_one, one = graph.constant("minus_one", -1.0), graph.constant("one", 1.0)
    penalty = graph.constant("penalty", 1e8)
    sampled, likeliest = [], []
    for index, (start, stop) in enumerate(branch_bounds(actor.layout.discrete_branches)):
        name, rows = f"branch.{index}", slice(size + start, size + stop)
        logits = graph.linear(features, name, actor.head.weight[rows], actor.head.bias[rows])
        mask = graph.node("Slice", ["action_masks"], f"{name}/mask", axes=[1], starts=[start], ends=[stop])
        # 1 - mask, written so that Unity's importer takes it: no constant may stand on the left of a subtraction.
        negated = graph.node("Mul", [mask, minus_one], f"{name}/negated")
        forbidden = graph.node(
            "Mul", [graph.node("Add", [negated, one], f"{name}/forbidden"), penalty], f"{name}/penalty"
        )
        masked = graph.node(
            "Sub", [graph.node("Mul", [logits, mask], f"{name}/allowed"), forbidden], f"{name}/masked_logits"
        )
        log_p = graph.node("Log", [graph.node("Softmax", [masked], f"{name}/p", axis=1)], f"{name}/log_p")
        sampled.append(
            graph.node("Multinomial", [log_p], f"{name}/sample", dtype=int(TensorProto.INT64), sample_size=1)
        )
        likeliest.append(graph.node("ArgMax", [masked], f"{name}/likeliest", axis=1, keepdims=1))
    graph.node("Concat", sampled, "discrete_actions", axis=1)
    graph.node("Concat", likeliest, "deterministic_discrete_actions", axis=1)
    sizes = np.array([actor.layout.discrete_branches], np.float32)
    graph.node("Identity", [graph.constant("branches", sizes)], "discrete_action_output_shape")


def _check_form(model: onnx.ModelProto, layout: ActorLayout) -> None:
    """Raise `ExportMismatch` unless versions and names are those of the contract."""
    onnx.checker.check_model(model, full_check=True)
    found = {
        "IR version": (model.ir_version, IR_VERSION),
        "opsets": ([(opset.domain, opset.version) for opset in model.opset_import], [("", OPSET)]),
        "inputs": ([entry.name for entry in model.graph.input], input_names(layout)),
        "outputs": ([entry.name for entry in model.graph.output], output_names(layout)),
    }
    for what, (got, expected) in found.items():
        if got != expected:
            raise ExportMismatch(f"the exported model has {what} {got}, not {expected}")


@torch.no_grad()
def _check_answers(contents: bytes, actor: Actor, observations: list[Tensor], masks: Tensor | None) -> None:
    """Raise `ExportMismatch` unless onnxruntime's deterministic actions are torch's, and sampled ones are legal."""
    layout = actor.layout
    allowed = torch.ones(len(observations[0]), sum(layout.discrete_branches), dtype=torch.bool)
    if masks is not None:
        allowed = masks.detach().cpu().bool()
    answers = _run(contents, [*observations, allowed.float()])
    device = actor.log_sigma.device
    raw = torch.cat(observations, 1).to(device)
    means, _ = actor.deterministic(raw, allowed.to(device))
    if layout.continuous_size:
        _check_close("deterministic_continuous_actions", answers, means.cpu())
        _check_legal("continuous_actions", bool((answers["continuous_actions"].abs() <= 1.0).all()))
    logits = masked_logits(actor(actor.encode(raw))[:, layout.continuous_size :].cpu(), allowed)
    for branch, (start, stop) in enumerate(branch_bounds(layout.discrete_branches)):
        columns, choosable = logits[:, start:stop], allowed[:, start:stop]
        chosen = columns.gather(1, answers["deterministic_discrete_actions"][:, branch : branch + 1])
        # Where two choices are equally likely but for rounding, either may be the answer.
        _check_legal(f"branch {branch}", bool((columns.amax(1, keepdim=True) - chosen <= TOLERANCE).all()))
        drawn = choosable.gather(1, answers["discrete_actions"][:, branch : branch + 1])
        _check_legal(f"samples of branch {branch}", bool((drawn | ~choosable.any(1, keepdim=True)).all()))


def _run(contents: bytes, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return what onnxruntime makes of the inputs, by output name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    feed = {entry.name: part.numpy() for entry, part in zip(session.get_inputs(), inputs, strict=False)}
    names = [entry.name for entry in session.get_outputs()]
    return {name: torch.from_numpy(array) for name, array in zip(names, session.run(names, feed), strict=True)}


def _check_close(name: str, answers: dict[str, Tensor], expected: Tensor) -> None:
    difference = float((answers[name] - expected).abs().max())
    if not difference <= TOLERANCE:
        raise ExportMismatch(f"{name} of the exported model differ from the policy's by {difference:.2g}")


def _check_legal(what: str, legal: bool) -> None:
    if not legal:
        raise ExportMismatch(f"{what} of the exported model are not what the policy allows")


def _random_observations(spec: BehaviorSpec) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(16, *observation.shape, generator=generator) for observation in spec.observations]
