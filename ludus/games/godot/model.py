"""Exported models in the form that the plug-in of Godot RL Agents loads.

The model of a checkpoint (ML-Agents' form, `worker.onnx.export`) is rewritten: the same weights and operations, with
other inputs and outputs. What the plug-in (ONNX Runtime 1.15, opset up to 19, IR version up to 9) takes:

    KEY ...     float32 [batch, n]   one for each entry of get_obs that the policy sees, under its name; raw,
                                     normalisation is in the graph
    state_ins   float32 [batch]
 -> output      float32 [batch, m]   over the actions in the game's order: means of continuous, logits of discrete ones
    state_outs  float32 [batch]      dropped by the plug-in: models with a memory are refused

Where a behavior has actions of both kinds, the plug-in reads twice as many columns of each continuous one, and skips
the second half; here they repeat the first. Masks are constants: everything is allowed.

Needs the package `onnx`, which is imported when a model is written.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

OUTPUT, STATE_IN, STATE_OUT = "output", "state_ins", "state_outs"
LAYOUT: Final = "game_layout"
"""The entry of a model's metadata that has names and order (`ludus.protocol.spec.BehaviorSpec`)."""
PREFIX: Final = "ludus/"
"""Begins the names of all tensors inside a model."""
ROWS: Final = 8
TOLERANCE: Final = 1e-5
"""How far a rewritten model's numbers may lie from the original's."""


class NotForGodot(Exception):
    """A model has no form for Godot. The message says why, and what to do."""


def write_for_godot(model: Path, target: Path) -> Path:
    """Write an exported model in the plug-in's form to `target`, which may be the same file. Returns it.

    Where onnxruntime is installed the result is compared with the original first. Raises NotForGodot.
    """
    try:
        import onnx  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        raise NotForGodot(
            f"{model} was not rewritten for Godot: onnx is not installed here; pip install onnx"
        ) from None
    try:
        original = onnx.load(model)
    except DecodeError as error:
        raise NotForGodot(f"{model} is no ONNX model ({error})") from None
    rewritten = rewrite(original, model.name)
    compare(original, rewritten)
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(rewritten, target)
    return target


def rewrite(model: Any, name: str) -> Any:
    """Return an `onnx.ModelProto` in the plug-in's form. `name` stands for the model in errors. Raises NotForGodot."""
    import onnx  # noqa: PLC0415  an optional package
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415  likewise

    layout = _layout(model, name)
    graph = copy.deepcopy(model.graph)
    shapes = {value.name: [side.dim_value for side in value.type.tensor_type.shape.dim] for value in graph.input}
    if "recurrent_in" in shapes:
        raise NotForGodot(f"{name} has a memory, and the plug-in keeps none between steps: train without `memory`")
    keys = {index: key for index, key in enumerate(layout["observations"]) if f"obs_{index}" in shapes}
    renamed = {}
    for index, key in keys.items():
        if len(shapes[f"obs_{index}"]) != 2:
            raise NotForGodot(f"{name} sees the picture {key!r}, and the plug-in hands its models numbers only")
        if key in layout["choices"]:
            raise NotForGodot(
                f"{name} sees {key!r} as the number of a choice; give its models a box, one column for each"
            )
        renamed[f"obs_{index}"] = key
    if reserved := {OUTPUT, STATE_IN, STATE_OUT} & {*keys.values()}:
        raise NotForGodot(
            f"{name} sees {reserved.pop()!r}, a name that the plug-in has for itself: rename it in get_obs"
        )
    made_by = {output: node for node in graph.node for output in node.output}
    nodes: list[Any] = []
    parts: list[str] = []
    column = branch = 0
    mixed = len({discrete for _, _, discrete in layout["actions"]}) > 1
    logits = _logits(made_by)
    for _, size, discrete in layout["actions"]:
        part = f"part_{len(parts)}"
        if discrete:
            nodes.append(helper.make_node("Identity", [logits[branch]], [part]))
            branch += 1
        else:
            source = "deterministic_continuous_actions"
            nodes.append(helper.make_node("Slice", [source], [part], axes=[1], starts=[column], ends=[column + size]))
            column += size
            if mixed:
                parts.append(part)
        parts.append(part)
    nodes.append(helper.make_node("Concat", parts, [OUTPUT], axis=1))
    nodes.append(helper.make_node("Identity", [STATE_IN], [STATE_OUT]))
    constants = list(graph.initializer)
    if "action_masks" in shapes:  # broadcast over the rows
        constants.append(numpy_helper.from_array(np.ones((1, shapes["action_masks"][1]), np.float32), "action_masks"))
    kept = _reached([*graph.node, *nodes], [OUTPUT, STATE_OUT])
    fixed = {OUTPUT, STATE_IN, STATE_OUT, ""}
    for node in kept:  # a key may have the name of any of them
        node.input[:] = [renamed.get(value, value if value in fixed else PREFIX + value) for value in node.input]
        node.output[:] = [value if value in fixed else PREFIX + value for value in node.output]
    for tensor in constants:
        tensor.name = PREFIX + tensor.name
    used = {value for node in kept for value in node.input}
    width = sum(size * (2 if mixed and not discrete else 1) for _, size, discrete in layout["actions"])
    number = TensorProto.FLOAT
    rewritten = helper.make_graph(
        kept,
        graph.name,
        [
            *(
                helper.make_tensor_value_info(key, number, ["batch", *shapes[f"obs_{index}"][1:]])
                for index, key in keys.items()
            ),
            helper.make_tensor_value_info(STATE_IN, number, ["batch"]),
        ],
        [
            helper.make_tensor_value_info(OUTPUT, number, ["batch", width]),
            helper.make_tensor_value_info(STATE_OUT, number, ["batch"]),
        ],
        initializer=[tensor for tensor in constants if tensor.name in used],
    )
    result = helper.make_model(
        rewritten, opset_imports=list(model.opset_import), ir_version=model.ir_version, producer_name="ludus"
    )
    helper.set_model_props(result, {LAYOUT: json.dumps(layout)})
    onnx.checker.check_model(result, full_check=True)
    return result


def compare(original: Any, rewritten: Any) -> None:
    """Raise NotForGodot unless both models act alike on some observations; without onnxruntime do nothing."""
    try:
        import onnxruntime  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        return
    layout = json.loads({entry.key: entry.value for entry in rewritten.metadata_props}[LAYOUT])
    generator = np.random.default_rng(0)
    before, after = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for model in (original, rewritten)
    )
    feed: dict[str, Any] = {}
    for entry in before.get_inputs():
        columns = entry.shape[1]
        feed[entry.name] = np.ones((ROWS, columns), np.float32)
        if entry.name.startswith("obs_"):
            feed[entry.name] = generator.standard_normal((ROWS, columns)).astype(np.float32)
    names = [entry.name for entry in before.get_outputs()]
    acted = dict(zip(names, before.run(names, feed), strict=True))
    keys = enumerate(layout["observations"])
    seen = {key: feed[f"obs_{index}"] for index, key in keys if f"obs_{index}" in feed}
    (output,) = after.run([OUTPUT], {**seen, STATE_IN: np.ones(ROWS, np.float32)})
    continuous, discrete = actions_of(output, layout)
    means = acted.get("deterministic_continuous_actions", continuous)
    choices = acted.get("deterministic_discrete_actions", discrete)
    if not np.allclose(continuous, means, atol=TOLERANCE) or not np.array_equal(discrete, choices):
        raise NotForGodot("the model for Godot does not act as the exported one: this is a mistake of Ludus; report it")


def actions_of(output: Any, layout: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the continuous and discrete actions, (N, C) and (N, D), that the plug-in reads from `output`, (N, m)."""
    mixed = len({discrete for _, _, discrete in layout["actions"]}) > 1
    means, choices, start = [], [], 0
    for _, size, discrete in layout["actions"]:
        if discrete:
            choices.append(output[:, start : start + size].argmax(1)[:, None])
        else:
            means.append(output[:, start : start + size])
        start += size * (2 if mixed and not discrete else 1)
    empty = np.empty((len(output), 0))
    return np.concatenate(means or [empty], 1), np.concatenate(choices or [empty], 1)


def _layout(model: Any, name: str) -> dict[str, Any]:
    properties = {entry.key: entry.value for entry in model.metadata_props}
    try:
        layout = json.loads(properties.get(LAYOUT, "{}"))
    except ValueError:
        layout = {}
    if not isinstance(layout, dict) or layout.get("engine") != "godot":
        raise NotForGodot(
            f"{name} was not trained by games of Godot: it does not know the names of what they see and do"
        )
    if any(entry.name == OUTPUT for entry in model.graph.output):
        raise NotForGodot(f"{name} has the form for Godot already")
    return layout


def _logits(made_by: Mapping[str, Any]) -> list[str]:
    """Return the logits of each branch, all choices allowed: what the likeliest choice of each is taken from."""
    best = made_by.get("deterministic_discrete_actions")
    if best is None:
        return []
    return [str(made_by[choice].input[0]) for choice in best.input]


def _reached(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """Return the nodes that outputs need, in their order."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & {*node.output}:
            kept.append(node)
            needed |= {*node.input}
    return kept[::-1]
