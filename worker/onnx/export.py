"""ONNX models that Unity's inference (ML-Agents 3.0.0, Sentis) and onnxruntime load.

The contract is ML-Agents' model version 3: opset 9, IR version 4, names and order of inputs and outputs below. The
graph is put together with `onnx.helper` from the operations that ML-Agents 1.1.0 exports, which Unity is known to
import (`worker.onnx.graph`). torch's own exporters were the other ways: the default one writes opset 18 only, in
seconds; the TorchScript one is deprecated, and what it writes changes with torch.

    obs_0 ...                           float32 [batch, *shape]      one for each observation, by its place in the spec
    action_masks                        float32 [batch, choices]     1 = allowed, 0 = forbidden; with branches only
    recurrent_in                        float32 [batch, 1, memory]   with a memory only; zeros at an episode's start
 -> version_number, memory_size         float32 [1]                  3 and the width of the memory
    continuous_actions                  float32 [batch, columns]     sampled; in [-1, 1]
    continuous_action_output_shape      float32 [1]                  columns
    deterministic_continuous_actions    float32 [batch, columns]     the mean; in [-1, 1]
    discrete_actions                    int64   [batch, branches]    sampled
    discrete_action_output_shape        float32 [1, branches]        choices of each branch
    deterministic_discrete_actions      int64   [batch, branches]    the likeliest
    recurrent_out                       float32 [batch, 1, memory]   with a memory only

Observations that only the critic sees are no inputs, and the others keep their numbers, since Unity fills `obs_2` from
its third sensor (and leaves out sensors that the model has no input for). The metadata's `unseen_observations` has the
numbers that are left out.

Vectors and entities are raw: normalisation is in the graph. Pictures are floats in [0, 1], as Unity gives them, also
where the simulator sent bytes.

Deviations from ML-Agents, on purpose:
 a. The deterministic action of a squashed actor (SAC) is `tanh(mean)`. ML-Agents exports the bare mean, which lies
    outside of what the environment takes, and is not what its policy is most likely to do.
 b. Padding among entities is what is all zeros (`networks.attention`).

Every export is checked before it is written: names, versions, and onnxruntime's answers against the torch policy's.
"""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from ludus.collector.layout import ActorLayout
from ludus.collector.spec_checks import ObservationKind
from ludus.play.model import UNSEEN
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas import OnnxModel, OnnxTensor
from worker.learning.functional.distributions import branch_bounds, masked_logits
from worker.learning.networks.actor import Actor
from worker.learning.networks.visual import scaled
from worker.onnx.graph import FLOAT, IR_VERSION, OPSET, Form, Graph, add_body
from worker.onnx.head_operations import GraphOperations, Node

MODEL_VERSION = 3.0
PENALTY = 1e8
"""Subtracted from the logit of a forbidden choice."""
TOLERANCE = 1e-4
"""How far an exported action, within [-1, 1], may lie from torch's: float32 sums in another order.

Of logits and memories, which have no bounds, it is the share of the largest one."""


class ExportMismatch(RuntimeError):
    """An exported model does not do what the policy does, or not in the form that was agreed. Nothing was written."""


def export_onnx(
    actor: Actor,
    spec: BehaviorSpec,
    path: Path,
    observations: Sequence[Tensor] = (),
    masks: Tensor | None = None,
) -> OnnxModel:
    """Write the policy to `path`, after a check against itself on recorded observations; describe the model.

    `observations` are `(B, *shape)` for each observation of the spec, `masks` `(B, choices)` or None (all allowed).
    Without observations (a run that ends before its first step) the check uses random ones. Raise `ExportMismatch`.
    """
    if not observations or len(observations[0]) == 0:
        observations, masks = _random_observations(actor.layout), None
    model = _build(actor, spec)
    _check_form(model, actor.layout)
    contents = model.SerializeToString()
    _check_answers(contents, actor, [part.detach().cpu() for part in observations], masks)
    path.write_bytes(contents)
    return _described(model, spec)


def exporter(
    actor: Actor, spec: BehaviorSpec, observations: Sequence[Tensor] = (), masks: Tensor | None = None
) -> Callable[[Path], OnnxModel]:
    """Copy a policy; return a function that writes it to a path (`export_onnx`), on any thread."""
    copied = copy.deepcopy(actor)
    return lambda path: export_onnx(copied, spec, path, observations, masks)


def inputs_of(layout: ActorLayout) -> dict[str, Form]:
    """Return the inputs of a model by name, in order."""
    number = int(TensorProto.FLOAT)
    shapes = {index: layout.body.observations[index].shape for index in layout.body.seen}
    inputs: dict[str, Form] = {f"obs_{index}": (number, ["batch", *shape]) for index, shape in shapes.items()}
    if layout.discrete_branches:
        inputs["action_masks"] = number, ["batch", sum(layout.discrete_branches)]
    if layout.memory_size:
        inputs["recurrent_in"] = number, ["batch", 1, layout.memory_size]
    return inputs


def outputs_of(layout: ActorLayout) -> dict[str, Form]:
    """Return the outputs of a model by name, in order."""
    number, columns, branches = int(TensorProto.FLOAT), layout.continuous_size, len(layout.discrete_branches)
    outputs: dict[str, Form] = {"version_number": (number, [1]), "memory_size": (number, [1])}
    if columns:
        outputs["continuous_actions"] = number, ["batch", columns]
        outputs["continuous_action_output_shape"] = number, [1]
        outputs["deterministic_continuous_actions"] = number, ["batch", columns]
    if branches:
        outputs["discrete_actions"] = int(TensorProto.INT64), ["batch", branches]
        outputs["discrete_action_output_shape"] = number, [1, branches]
        outputs["deterministic_discrete_actions"] = int(TensorProto.INT64), ["batch", branches]
    if layout.memory_size:
        outputs["recurrent_out"] = number, ["batch", 1, layout.memory_size]
    return outputs


def _build(actor: Actor, spec: BehaviorSpec) -> onnx.ModelProto:
    """Return the model of a policy."""
    layout, graph = actor.layout, Graph()
    for name, number in (("version_number", MODEL_VERSION), ("memory_size", float(layout.memory_size))):
        graph.node("Identity", [graph.constant(f"{name}.value", [number])], name)
    features, on = add_body(graph, actor.body), GraphOperations(graph)
    head = Node(on, graph.linear(features, "head", actor.head))
    if layout.continuous_size:
        _continuous(graph, actor, head, on)
    if layout.discrete_branches:
        _discrete(graph, actor, head, on)
    model = graph.model(spec.behavior, inputs_of(layout), outputs_of(layout))
    unseen = layout.body.of_kind(ObservationKind.UNSEEN)
    properties = {"game_layout": spec.game_layout, UNSEEN: json.dumps(unseen) if unseen else ""}
    helper.set_model_props(model, {key: text for key, text in properties.items() if text})
    return model


def _described(model: onnx.ModelProto, spec: BehaviorSpec) -> OnnxModel:
    """Return what a game must know of a model that fits the contract."""
    inputs, outputs = (
        tuple(
            OnnxTensor(
                name=entry.name,
                dtype=helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type).name,
                shape=tuple(side.dim_param or side.dim_value for side in entry.type.tensor_type.shape.dim),
            )
            for entry in entries
        )
        for entries in (model.graph.input, model.graph.output)
    )
    memory = [tensor.shape[-1] for tensor in inputs if tensor.name == "recurrent_in"]
    return OnnxModel(
        behavior=spec.behavior,
        opset=model.opset_import[0].version,
        inputs=inputs,
        outputs=outputs,
        continuous_actions=spec.actions.continuous_size,
        discrete_branches=spec.actions.discrete_branches,
        action_masks=any(tensor.name == "action_masks" for tensor in inputs),
        memory_size=int(memory[0]) if memory else 0,
    )


def _continuous(graph: Graph, actor: Actor, head: Node, on: GraphOperations) -> None:
    """Add the outputs of continuous actions."""
    size, continuous = actor.layout.continuous_size, actor.layout.kind.continuous
    assert continuous is not None, "layouts refuse columns for such heads"
    mean, log_sigma = continuous.moments(on, head, _parameters(graph, actor, on), size)
    sample = mean
    if not continuous.explores:
        sample = mean + on.node("RandomNormalLike", mean, dtype=FLOAT) * on.exp(log_sigma)
    for drawn, output in ((sample, "continuous_actions"), (mean, "deterministic_continuous_actions")):
        graph.node("Identity", [continuous.action(on, continuous.recorded(on, drawn)).name], output)
    graph.node("Identity", [graph.constant("columns", [float(size)])], "continuous_action_output_shape")


def _discrete(graph: Graph, actor: Actor, head: Node, on: GraphOperations) -> None:
    """Add the outputs of discrete actions. A forbidden choice has the logit -1e8, ML-Agents' number."""
    first, discrete = actor.layout.logits_start, actor.layout.kind.discrete
    drawn, best = [], []
    for start, stop in branch_bounds(actor.layout.discrete_branches):
        mask = Node(on, "action_masks")[:, start:stop]
        values = head[:, first + start : first + stop] * mask - (1.0 - mask) * PENALTY
        best.append(on.node("ArgMax", values, axis=1, keepdims=1))
        if discrete.explores:
            drawn.append(best[-1])
        else:
            logits = discrete.logits(on, values, _parameters(graph, actor, on))
            log_p = on.log(on.node("Softmax", logits, axis=1))
            drawn.append(on.node("Multinomial", log_p, dtype=int(TensorProto.INT64), sample_size=1))
    for choices, output in ((drawn, "discrete_actions"), (best, "deterministic_discrete_actions")):
        graph.node("Concat", [choice.name for choice in choices], output, axis=1)
    sizes = np.array([actor.layout.discrete_branches], np.float32)
    graph.node("Identity", [graph.constant("branches", sizes)], "discrete_action_output_shape")


def _parameters(graph: Graph, actor: Actor, on: GraphOperations) -> dict[str, Node]:
    """Return the parameters of the head as constants."""
    return {name: Node(on, graph.constant(name, values)) for name, values in actor.head_parameters().items()}


def _check_form(model: onnx.ModelProto, layout: ActorLayout) -> None:
    """Raise `ExportMismatch` unless versions and names are those of the contract."""
    onnx.checker.check_model(model, full_check=True)
    found = {
        "IR version": (model.ir_version, IR_VERSION),
        "opsets": ([(opset.domain, opset.version) for opset in model.opset_import], [("", OPSET)]),
        "inputs": ([entry.name for entry in model.graph.input], list(inputs_of(layout))),
        "outputs": ([entry.name for entry in model.graph.output], list(outputs_of(layout))),
    }
    for what, (got, expected) in found.items():
        if got != expected:
            raise ExportMismatch(f"the exported model has {what} {got}, not {expected}")


@torch.no_grad()
def _check_answers(contents: bytes, actor: Actor, observations: list[Tensor], masks: Tensor | None) -> None:
    """Raise `ExportMismatch` unless onnxruntime's deterministic actions are torch's, and sampled ones are legal."""
    # On a GPU convolutions and LSTMs compute in TF32, which is further off than an export may be: it is played on CPUs.
    layout, actor = actor.layout, copy.deepcopy(actor).cpu()
    rows = len(observations[0])
    allowed = torch.ones(rows, sum(layout.discrete_branches), dtype=torch.bool)
    if masks is not None:
        allowed = masks.detach().cpu().bool()
    memory = torch.rand(rows, layout.memory_size, generator=torch.Generator().manual_seed(0)) - 0.5
    feed = {f"obs_{index}": scaled(observation).contiguous() for index, observation in enumerate(observations)}
    answers = _run(contents, {**feed, "action_masks": allowed.float(), "recurrent_in": memory.unsqueeze(1)})
    before = memory if layout.memory_size else None
    means, _, after = actor.deterministic(observations, allowed, before)
    if layout.continuous_size:
        _check_close("deterministic_continuous_actions", answers, means)
        _check_legal("continuous_actions", bool((answers["continuous_actions"].abs() <= 1.0).all()))
    if after is not None:
        _check_close("recurrent_out", answers, after.unsqueeze(1))
    logits = actor(actor.encode(observations), before)[0][:, layout.logits_start :]
    masked = masked_logits(logits, allowed)
    for branch, (start, stop) in enumerate(branch_bounds(layout.discrete_branches)):
        columns, choosable = masked[:, start:stop], allowed[:, start:stop]
        chosen = columns.gather(1, answers["deterministic_discrete_actions"][:, branch : branch + 1])
        # Where two choices are equally likely but for rounding, either may be the answer.
        _check_legal(f"branch {branch}", bool((columns.amax(1, keepdim=True) - chosen <= _tolerance(logits)).all()))
        drawn = choosable.gather(1, answers["discrete_actions"][:, branch : branch + 1])
        _check_legal(f"samples of branch {branch}", bool((drawn | ~choosable.any(1, keepdim=True)).all()))


def _run(contents: bytes, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of onnxruntime for the inputs that the model has, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    feed = {entry.name: inputs[entry.name].numpy() for entry in session.get_inputs()}
    names = [entry.name for entry in session.get_outputs()]
    return {name: torch.from_numpy(array) for name, array in zip(names, session.run(names, feed), strict=True)}


def _tolerance(expected: Tensor) -> float:
    return TOLERANCE * max(float(expected.abs().max()), 1.0)


def _check_close(name: str, answers: dict[str, Tensor], expected: Tensor) -> None:
    difference = float((answers[name] - expected).abs().max())
    if not difference <= _tolerance(expected):
        raise ExportMismatch(f"{name} of the exported model differ from the policy's by {difference:.2g}")


def _check_legal(what: str, legal: bool) -> None:
    if not legal:
        raise ExportMismatch(f"{what} of the exported model are not what the policy allows")


def _random_observations(layout: ActorLayout, rows: int = 16) -> list[Tensor]:
    """Return observations as they might be: pictures within their range, some padding behind the entities."""
    generator = torch.Generator().manual_seed(0)
    observations = []
    for observation, kind in zip(layout.body.observations, layout.body.kinds, strict=True):
        if kind is ObservationKind.VISUAL:
            values = torch.rand(rows, *observation.shape, generator=generator)
            values = (values * 255).to(torch.uint8) if observation.dtype == "uint8" else values
        else:
            values = torch.randn(rows, *observation.shape, generator=generator)
        if kind is ObservationKind.ENTITIES:
            count = observation.shape[0]
            values[torch.arange(count) >= torch.randint(0, count + 1, (rows, 1), generator=generator)] = 0
        observations.append(values)
    return observations
