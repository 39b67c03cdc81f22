"""Writes the files beside it: what networks of ML-Agents 1.1.0 answer with weights that anybody can make again.

Run it where ML-Agents is installed (Python 3.10): `python make.py`. It builds ML-Agents' own modules, gives every
tensor the numbers that `numbers` makes of its name, and stores the tensors' names and shapes, what optimizers number
them by, the answers to inputs made alike, and the form of the exported model. The numbers themselves are not stored.
"""

import io
import json
import zlib
from pathlib import Path

import numpy as np
import onnx
import torch
from mlagents.trainers.poca.optimizer_torch import TorchPOCAOptimizer
from mlagents.trainers.sac.optimizer_torch import TorchSACOptimizer
from mlagents.trainers.settings import (
    ConditioningType,
    CuriositySettings,
    EncoderType,
    GAILSettings,
    NetworkSettings,
    RNDSettings,
)
from mlagents.trainers.torch_entities.action_flattener import ActionFlattener
from mlagents.trainers.torch_entities.agent_action import AgentAction
from mlagents.trainers.torch_entities.components.reward_providers.curiosity_reward_provider import CuriosityNetwork
from mlagents.trainers.torch_entities.components.reward_providers.gail_reward_provider import DiscriminatorNetwork
from mlagents.trainers.torch_entities.components.reward_providers.rnd_reward_provider import RNDNetwork
from mlagents.trainers.torch_entities.model_serialization import exporting_to_onnx
from mlagents.trainers.torch_entities.networks import SharedActorCritic, SimpleActor, ValueNetwork
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

ROWS = 4
MATES = 2
CONSTANTS = ("_vector", "_deprecated", "version_number")


def numbers(name, shape):
    """Return numbers within 1 / sqrt(inputs), made of a name by integer arithmetic: the same everywhere."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) % 2**32
    for _ in range(2):
        bits = ((bits >> np.uint64(16)) ^ bits) * np.uint64(0x45D9F3B) % 2**32
    bits = (bits >> np.uint64(16)) ^ bits
    inputs = max(int(np.prod(shape[1:], dtype=np.int64)), 1)
    return ((bits.astype(np.float64) / 2**31 - 1.0) / np.sqrt(inputs)).astype(np.float32).reshape(shape)


def filling(name, tensor):
    """Return what a tensor of a file is filled with.

    What stands in it twice has the numbers of its longer name, and networks that see the same have the same statistics.
    """
    if "observation_encoder.processors." not in name:
        name = name.replace("processors.", "observation_encoder.processors.")
    if name.startswith("Optimizer:") and ".normalizer." in name:
        name = f"Policy/network_body.{name.partition('network_body.')[2]}"
    name = name.replace("RND-pred", "RND-target") if ".normalizer." in name else name
    if name.endswith("normalization_steps"):
        return np.int64(500)
    if name.endswith("running_variance"):
        return 500.0 * (1.5 + numbers(name, tensor.shape))
    if name.endswith("_current_max_agents"):
        return np.float32(4)
    return numbers(name, tuple(tensor.shape))


def fill(modules):
    for module, network in modules.items():
        for name, tensor in network.state_dict().items():
            if not any(constant in name for constant in CONSTANTS):
                value = torch.as_tensor(filling(f"{module}/{name}", tensor))
                with torch.no_grad():
                    tensor.copy_(value.reshape(tensor.shape))


def observe(case, index, prefix=""):
    """Return an observation of `ROWS` agents; the last entities are padding."""
    spec = case["spec"]["observations"][index]
    seen = 3.0 * numbers(f"{prefix}obs_{index}", (ROWS, int(np.prod(spec["shape"]))))
    seen = seen.reshape(ROWS, *spec["shape"]) * np.sqrt(np.prod(spec["shape"]))
    if len(spec["shape"]) == 2:
        seen[:, -1] = 0.0
    return torch.as_tensor(seen.astype(np.float32))


def act(spec, prefix=""):
    columns, branches = spec.action_spec.continuous_size, spec.action_spec.discrete_branches
    continuous = torch.as_tensor(numbers(f"{prefix}continuous", (ROWS, columns))) if columns else None
    discrete = [torch.arange(ROWS).remainder(size).unsqueeze(1) for size in branches]
    return AgentAction(continuous, [one.squeeze(1) for one in discrete] if discrete else None)


def build_spec(case):
    observations = [
        ObservationSpec(
            tuple(one["shape"]),
            tuple(DimensionProperty[name.upper()] for name in one["dimension_properties"]),
            ObservationType[one["type"].upper()],
            one["name"],
        )
        for one in case["spec"]["observations"]
    ]
    actions = case["spec"]["actions"]
    return BehaviorSpec(observations, ActionSpec(actions["continuous_size"], tuple(actions["discrete_branches"])))


def build_settings(section):
    memory = section.get("memory")
    return NetworkSettings(
        normalize=section.get("normalize", False),
        hidden_units=section.get("hidden_units", 128),
        num_layers=section.get("num_layers", 2),
        vis_encode_type=EncoderType(section.get("vis_encode_type", "simple")),
        memory=None if memory is None else NetworkSettings.MemorySettings(memory_size=memory["memory_size"]),
        goal_conditioning_type=ConditioningType(section.get("goal_conditioning_type", "hyper")),
    )


def heads(actor, encoding):
    """Return what an actor makes of its features: means, log-sigmas and logits side by side."""
    model, parts = actor.action_model, []
    if model._continuous_distribution is not None:
        parts.append(model._continuous_distribution.mu(encoding))
        if model._continuous_distribution.conditional_sigma:
            parts.append(model._continuous_distribution.log_sigma(encoding))
    if model._discrete_distribution is not None:
        parts += [branch(encoding) for branch in model._discrete_distribution.branches]
    return torch.cat(parts, dim=1)


def stacked(values):
    return torch.stack(list(values.values()), dim=1)  # (R, S) or (R, S, K)


def remembered(network, name):
    size = network.memory_size
    return torch.as_tensor(numbers(name, (1, ROWS, size))) if size else None


class Made:
    """A case while it is made."""

    def __init__(self, case):
        self.case, self.spec = case, build_spec(case)
        behavior = case["behavior"]
        self.settings = build_settings(behavior["network_settings"])
        self.signals = list(behavior["reward_signals"])
        self.obs = [observe(case, index) for index in range(len(self.spec.observation_specs))]
        self.next_obs = [observe(case, index, "next ") for index in range(len(self.spec.observation_specs))]
        self.modules, self.optimizers, self.answers = {}, {}, {}

    def adam(self, name, **modules):
        """Note how Adam numbers parameters."""
        names = {id(part): f"{module}/{own}" for module, net in modules.items() for own, part in net.named_parameters()}
        parts = [part for network in modules.values() for part in network.parameters()]
        self.optimizers[name] = [names[id(part)] for part in torch.optim.Adam(parts).param_groups[0]["params"]]

    def answer(self, name, tensor):
        self.answers[name] = np.round(tensor.detach().numpy().astype(np.float64), 7).tolist()

    def policy(self, actor):
        memory = remembered(actor, "memory")
        encoding, after = actor.network_body(self.obs, memories=memory, sequence_length=1)
        self.answer("policy", heads(actor, encoding))
        if after is not None:
            self.answer("policy memory", after[0])

    def ppo(self, shared):
        spec, settings = self.spec, self.settings
        if shared:
            actor = SharedActorCritic(spec.observation_specs, settings, spec.action_spec, self.signals)
            critic = actor
        else:
            actor = SimpleActor(spec.observation_specs, settings, spec.action_spec)
            critic = ValueNetwork(self.signals, spec.observation_specs, settings)
        self.modules |= {"Policy": actor, "Optimizer:critic": critic}
        self.adam("Optimizer:value_optimizer", **({"Policy": actor} if shared else self.modules))
        self.rewards()
        fill(
            self.modules
            if not shared
            else {name: one for name, one in self.modules.items() if one is not critic} | {"Policy": actor}
        )
        self.policy(actor)
        values, _ = critic.critic_pass(self.obs, remembered(critic, "memory" if shared else "critic memory"))
        self.answer("values", stacked(values))
        self.evaluate()
        return actor

    def rewards(self):
        sections = self.case["behavior"]["reward_signals"]
        for name, section in sections.items():
            settings = build_settings(section.get("network_settings", {}))
            if name == "curiosity":
                self.modules["Module:Curiosity"] = CuriosityNetwork(
                    self.spec, CuriositySettings(network_settings=settings)
                )
            elif name == "rnd":
                self.modules["Module:RND-pred"] = RNDNetwork(self.spec, RNDSettings(network_settings=settings))
                self.modules["Module:RND-target"] = RNDNetwork(self.spec, RNDSettings(network_settings=settings))
            elif name == "gail":
                self.modules["Module:GAIL"] = DiscriminatorNetwork(
                    self.spec,
                    GAILSettings(
                        demo_path="",
                        network_settings=settings,
                        use_actions=section["use_actions"],
                        use_vail=section["use_vail"],
                    ),
                )

    def evaluate(self):
        flat = ActionFlattener(self.spec.action_spec).forward(act_with_tensor(self.spec))
        if (curiosity := self.modules.get("Module:Curiosity")) is not None:
            now, following = (curiosity._state_encoder(seen)[0] for seen in (self.obs, self.next_obs))
            hidden = curiosity.inverse_model_action_encoding(torch.cat((now, following), dim=1))
            parts = []
            if self.spec.action_spec.continuous_size:
                parts.append(curiosity.continuous_action_prediction(hidden))
            if self.spec.action_spec.discrete_size:
                parts.append(curiosity.discrete_action_prediction(hidden))
            foreseen = curiosity.forward_model_next_state_prediction(torch.cat((now, flat), dim=1))
            self.answer("curiosity inverse", torch.cat(parts, dim=1))
            self.answer("curiosity reward", 0.5 * ((following - foreseen) ** 2).sum(1))
        if (predictor := self.modules.get("Module:RND-pred")) is not None:
            target = self.modules["Module:RND-target"]
            self.answer("rnd predictor", predictor._encoder(self.obs)[0])
            self.answer("rnd target", target._encoder(self.obs)[0])
        if (gail := self.modules.get("Module:GAIL")) is not None:
            done = torch.arange(ROWS).remainder(2).float().unsqueeze(1)
            extra = torch.cat([flat, done], dim=1) if gail._settings.use_actions else None
            hidden, _ = gail.encoder(self.obs, extra) if extra is not None else gail.encoder(self.obs)
            self.answer("gail", gail._estimator(gail._z_mu_layer(hidden) if gail._use_vail else hidden)[:, 0])

    def sac(self):
        spec, settings, names = self.spec, self.settings, self.signals
        actor = SimpleActor(
            spec.observation_specs, settings, spec.action_spec, conditional_sigma=True, tanh_squash=True
        )
        q = TorchSACOptimizer.PolicyValueNetwork(names, spec.observation_specs, settings, spec.action_spec)
        value, target = (ValueNetwork(names, spec.observation_specs, settings) for _ in range(2))
        self.modules |= {
            "Policy": actor,
            "Optimizer:q_network": q,
            "Optimizer:value_network": value,
            "Optimizer:target_network": target,
        }
        self.adam("Optimizer:policy_optimizer", Policy=actor)
        self.adam(
            "Optimizer:value_optimizer",
            **{name: self.modules[name] for name in ("Optimizer:q_network", "Optimizer:value_network")},
        )
        self.rewards()
        fill(self.modules)
        self.policy(actor)
        action = act(spec).continuous_tensor if spec.action_spec.continuous_size else None
        for name, network in (("q1", q.q1_network), ("q2", q.q2_network)):
            self.answer(name, stacked(network(self.obs, action, zeros(network), 1)[0]))
        for name, network in (("value", value), ("target", target)):
            self.answer(name, stacked(network(self.obs, None, zeros(network), 1)[0]))
        self.evaluate()
        return actor

    def poca(self):
        spec, settings = self.spec, self.settings
        actor = SimpleActor(spec.observation_specs, settings, spec.action_spec)
        critic = TorchPOCAOptimizer.POCAValueNetwork(self.signals, spec.observation_specs, settings, spec.action_spec)
        self.modules |= {"Policy": actor, "Optimizer:critic": critic}
        self.adam("Optimizer:adam", **self.modules)
        self.rewards()
        fill(self.modules)
        self.policy(actor)
        mates = [
            [observe(self.case, index, f"mate {mate} ") for index in range(len(self.obs))] for mate in range(MATES)
        ]
        actions = [act(spec, f"mate {mate} ") for mate in range(MATES)]
        values, _ = critic.critic_pass([self.obs, *mates], remembered(critic, "value memory"), 1)
        baselines, _ = critic.baseline(self.obs, (mates, actions), remembered(critic, "baseline memory"), 1)
        self.answer("team values", stacked(values))
        self.answer("team baselines", stacked(baselines))
        self.evaluate()
        return actor


def zeros(network):
    return torch.zeros(1, ROWS, network.memory_size) if network.memory_size else None


def act_with_tensor(spec):
    return act(spec)


def form_of(actor, spec):
    """Export a policy as ML-Agents does; return names, types, shapes and constants of the model, and its operations."""
    names = [f"obs_{index}" for index in range(len(spec.observation_specs))]
    inputs = [*names, "action_masks", "recurrent_in"]
    outputs, axes = ["version_number", "memory_size"], {name: {0: "batch"} for name in inputs}
    if spec.action_spec.continuous_size:
        outputs += ["continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions"]
    if spec.action_spec.discrete_size:
        outputs += ["discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions"]
    axes |= {name: {0: "batch"} for name in outputs if name in ("continuous_actions", "discrete_actions")}
    outputs += ["recurrent_out"] if actor.memory_size else []
    dummy = (
        [torch.zeros([1, *one.shape]) for one in spec.observation_specs],
        torch.ones([1, sum(spec.action_spec.discrete_branches)]),
        torch.zeros([1, 1, actor.memory_size]),
    )
    file = io.BytesIO()
    with exporting_to_onnx():
        torch.onnx.export(
            actor,
            dummy,
            file,
            opset_version=9,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())

    def listed(entries):
        return [
            [
                entry.name,
                entry.type.tensor_type.elem_type,
                ["batch" if one.dim_param else one.dim_value for one in entry.type.tensor_type.shape.dim],
            ]
            for entry in entries
        ]

    return {
        "opset": [[one.domain, one.version] for one in model.opset_import],
        "ir_version": model.ir_version,
        "inputs": listed(model.graph.input),
        "outputs": listed(model.graph.output),
        "operations": sorted({node.op_type for node in model.graph.node}),
    }


def vector(size, goal=False):
    return {
        "name": f"vector {size}",
        "shape": [size],
        "dtype": "float32",
        "type": "goal_signal" if goal else "default",
        "dimension_properties": ["none"],
    }


def picture(*shape):
    properties = ["none", "translational_equivariance", "translational_equivariance"]
    return {**vector(0), "name": "picture", "shape": [*shape], "dimension_properties": properties}


def entities(count, size):
    return {**vector(0), "name": "entities", "shape": [count, size], "dimension_properties": ["variable_size", "none"]}


def case(trainer, observations, actions, network, signals=None, **hyperparameters):
    behavior = {
        "trainer_type": trainer,
        "network_settings": {"hidden_units": 8, "num_layers": 2, **network},
        "reward_signals": {"extrinsic": {}, **(signals or {})},
    }
    if hyperparameters:
        behavior["hyperparameters"] = hyperparameters
    continuous, *branches = actions
    return {
        "spec": {
            "name": "A",
            "observations": observations,
            "actions": {"continuous_size": continuous, "discrete_branches": branches},
        },
        "behavior": behavior,
    }


SMALL = {"hidden_units": 8, "num_layers": 1}
MEMORY = {"memory": {"memory_size": 8, "sequence_length": 4}}
FLAT = {"vis_encode_type": "fully_connected"}
GAIL = {"network_settings": {**SMALL, "normalize": True, "vis_encode_type": "fully_connected"}}
CASES = {
    "ppo-memory-signals": case(
        "ppo",
        [vector(3), picture(2, 6, 5), vector(2)],
        (2, 3, 2),
        {**MEMORY, **FLAT, "normalize": True},
        {
            "curiosity": {"network_settings": {**SMALL, **FLAT}},
            "rnd": {"network_settings": {**SMALL, **FLAT, "normalize": True}},
            "gail": {**GAIL, "use_actions": True, "use_vail": False},
        },
    ),
    "ppo-shared-goal": case(
        "ppo", [vector(2, goal=True), vector(3)], (0, 3, 2), {"normalize": True}, shared_critic=True
    ),
    "ppo-goal-one-layer": case("ppo", [picture(1, 4, 5), vector(3, goal=True)], (2,), {**FLAT, "num_layers": 1}),
    "ppo-goal-not-conditioning": case(
        "ppo", [vector(2, goal=True), vector(3)], (2,), {"goal_conditioning_type": "none"}
    ),
    "ppo-entities": case(
        "ppo", [entities(4, 3), picture(1, 4, 4), vector(2), entities(3, 5)], (2, 3), {**FLAT, "normalize": True}
    ),
    "ppo-everything": case(
        "ppo",
        [entities(3, 4), vector(3, goal=True), picture(1, 4, 4), vector(2)],
        (2, 3),
        {**FLAT, **MEMORY, "normalize": True, "num_layers": 1},
    ),
    "ppo-entities-alone": case("ppo", [entities(4, 3)], (2,), {}),
    **{
        f"ppo-{encoder}": case("ppo", [picture(*shape)], (2,), {"vis_encode_type": encoder})
        for encoder, shape in {
            "match3": (2, 6, 7),
            "simple": (1, 20, 24),
            "nature_cnn": (1, 36, 40),
            "resnet": (2, 16, 20),
        }.items()
    },
    "sac-signals": case(
        "sac",
        [vector(3), vector(2)],
        (2, 3, 2),
        {"normalize": True},
        {"rnd": {"network_settings": SMALL}, "gail": {**GAIL, "use_actions": False, "use_vail": True}},
    ),
    "sac-discrete": case("sac", [vector(3)], (0, 4), {"num_layers": 3}),
    "sac-memory": case("sac", [vector(3), picture(1, 4, 4), vector(2)], (2,), {**MEMORY, **FLAT, "normalize": True}),
    "poca-memory": case(
        "poca",
        [vector(3), picture(1, 4, 4), vector(2)],
        (2, 3),
        {**MEMORY, **FLAT, "normalize": True},
        {"curiosity": {"network_settings": {**SMALL, **FLAT}}},
    ),
    "poca-entities": case("poca", [entities(3, 4), vector(2)], (2,), {"num_layers": 1}),
}


def main():
    for name, made in ((name, Made(one)) for name, one in CASES.items()):
        trainer = made.case["behavior"]["trainer_type"]
        if trainer == "ppo":
            actor = made.ppo(made.case["behavior"].get("hyperparameters", {}).get("shared_critic", False))
        else:
            actor = made.sac() if trainer == "sac" else made.poca()
        tensors = {
            module: {
                own: [str(part.dtype).partition(".")[2], *part.shape] for own, part in network.state_dict().items()
            }
            for module, network in made.modules.items()
        }
        text = json.dumps(
            {
                **made.case,
                "tensors": tensors,
                "optimizers": made.optimizers,
                "answers": made.answers,
                "model": form_of(actor, made.spec),
            },
            indent=None,
            separators=(",", ":"),
        )
        Path(__file__).with_name(f"{name}.json").write_text(text + "\n")


main()
