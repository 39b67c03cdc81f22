"""Every operation and every head gives the same numbers in numpy, in torch and in an exported model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from ludus.collector.heads import HEADS, NUMPY, head_of
from worker.learning.networks.head_operations import TORCH
from worker.onnx.graph import FLOAT, Graph
from worker.onnx.head_operations import GraphOperations, Node

VALUES = np.array([[-30.0, -1.5, 0.25], [2.0, 3.5, 40.0]], np.float32)
ALL: dict[str, Callable[[Any, Any], Any]] = {
    "columns": lambda _, x: x[:, 1:3],
    "exp": lambda on, x: on.exp(x),
    "log": lambda on, x: on.log(on.absolute(x)),
    "log1p": lambda on, x: on.log1p(on.absolute(x)),
    "tanh": lambda on, x: on.tanh(x),
    "absolute": lambda on, x: on.absolute(x),
    "clip": lambda on, x: on.clip(x, -2.0, 3.0),
    "largest": lambda on, x: on.largest(x),
    "total": lambda on, x: on.total(x),
    "at_least a number": lambda on, x: on.at_least(x, 2.0),
    "at_least the largest": lambda on, x: on.at_least(x, on.largest(x)),
    "arithmetic": lambda _, x: (1.0 - x) * 2.0 / 3.0 + (x - 0.5) * x + 2.0 * x,
}


def in_a_model(values: np.ndarray, expression: Callable[[Any, Any], Any]) -> np.ndarray:
    """What an expression gives in an ONNX model."""
    graph = Graph()
    on = GraphOperations(graph)
    result = expression(on, Node(on, "x"))
    graph.node("Identity", [result.name], "y")
    model = graph.model("one", {"x": (FLOAT, ["batch", values.shape[1]])}, {"y": (FLOAT, ["batch", "columns"])})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(["y"], {"x": values})
    return np.asarray(answer)


@pytest.mark.parametrize("name", ALL)
def test_an_operation_is_the_same_in_numpy_torch_and_onnx(name: str) -> None:
    expression = ALL[name]

    expected = expression(NUMPY, VALUES)

    assert expected.dtype == np.float32
    np.testing.assert_allclose(expression(TORCH, torch.from_numpy(VALUES)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(in_a_model(VALUES, expression), expected, rtol=1e-5)


@pytest.mark.parametrize("name", [*HEADS, "gaussian_noise"])
def test_continuous_actions_are_the_same_in_numpy_torch_and_onnx(name: str) -> None:
    head = head_of(name).continuous
    assert head is not None
    names = [parameter.name for parameter in head.parameters(2)]
    outputs = np.random.default_rng(1).normal(size=(20, 2 * head.outputs)).astype(np.float32) * 3.0
    log_sigma = np.array([0.5, -1.0], np.float32)

    def action(on: Any, columns: Any, kept: Any) -> Any:
        mean, deviation = head.moments(on, columns, dict.fromkeys(names, kept), 2)
        return head.action(on, head.recorded(on, mean + on.exp(deviation) * 0.7))

    expected = action(NUMPY, outputs, log_sigma)

    assert np.abs(expected).max() <= 1.0
    found = action(TORCH, torch.from_numpy(outputs), torch.from_numpy(log_sigma))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)

    def exported(on: Any, columns: Any) -> Any:
        return action(on, columns, Node(on, on.graph.constant("log_sigma", log_sigma)))

    np.testing.assert_allclose(in_a_model(outputs, exported), expected, atol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_logits_of_choices_are_the_same_in_numpy_torch_and_onnx(name: str) -> None:
    head = HEADS[name].discrete
    values = np.array([[0.5, -1.0, 2.0], [1.0, 1.0, -3.0]], np.float32)
    parameters = {parameter.name: np.full(parameter.size, 0.3, np.float32) for parameter in head.parameters}

    expected = head.logits(NUMPY, values, parameters)

    tensors = {key: torch.from_numpy(value) for key, value in parameters.items()}
    np.testing.assert_allclose(head.logits(TORCH, torch.from_numpy(values), tensors).numpy(), expected, rtol=1e-5)

    def exported(on: Any, columns: Any) -> Any:
        constants = {key: Node(on, on.graph.constant(key, value)) for key, value in parameters.items()}
        # of a description that returns its argument a model would be without a node
        return head.logits(on, columns, constants) * 1.0

    np.testing.assert_allclose(in_a_model(values, exported), expected, rtol=1e-5)


@pytest.mark.parametrize("name", [*HEADS, "gaussian_noise"])
def test_a_recorded_value_tells_its_sample_in_numpy_and_torch(name: str) -> None:
    head = head_of(name).continuous
    assert head is not None
    samples = np.array([[-0.9, -0.1, 0.0, 1e-4, 0.5, 0.99]], np.float32)
    recorded = head.recorded(NUMPY, samples)

    np.testing.assert_allclose(head.sample(NUMPY, recorded), samples, atol=1e-6)
    np.testing.assert_allclose(head.sample(TORCH, torch.from_numpy(recorded)).numpy(), samples, atol=1e-6)
