"""Gymnasium environments as simulators: several in one process, sent to the server as one batch of agents.

`EnvironmentSimulation` drives single environments by itself: an episode's end and the next one's beginning travel in
one message, and no step is lost to a reset. `VectorSimulation` drives a `gymnasium.vector.VectorEnv` in whichever of
the three autoreset modes it works. Agent i is environment i. An episode that a `TimeLimit` cut is reported as
truncated, always with its final observation, never with the first one of the next episode.

`info["action_mask"]` becomes the agent's action mask; `info["is_success"]` at an episode's end is reported as the
metric `Environment/Success`. The run's environment parameters are handed to `reset` as `options`: as they are when an
episode begins, and drawn again for each later one where they have samplers; the one that seeds episodes
(`ludus.sdk.seeds`) is left out. The environments of a `VectorEnv` that begin their episodes by themselves, without
`reset`, get new ones only with the run's next reset.
"""

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, flat_mask, row
from ludus.protocol.batches import Bytes, DecisionBatch, TerminalBatch
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.errors import SimulatorError
from ludus.sdk.rows import AgentRows
from ludus.sdk.seeds import EpisodeSeeds, environment_seed
from ludus.sdk.simulation import GameSimulation, ResetInfo
from ludus.sdk.steps import Actions, StepBuilder

Environment = gymnasium.Env[Any, Any]
RESET: Final = ("observation", "info")
STEP: Final = ("observation", "reward", "terminated", "truncated", "info")
"""Names of the values that each method of an environment returns."""


def behavior_name(env_id: str) -> str:
    """Name of the behavior that an environment id stands for: `ALE/Pong-v5` -> `Pong`."""
    name = env_id.rpartition("/")[2].rpartition(":")[2]
    stem, dash, version = name.rpartition("-v")
    return stem if dash and version.isdecimal() else name


def make_simulation(
    env_id: str,
    count: int = 1,
    *,
    behavior: str | None = None,
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> "EnvironmentSimulation":
    """Make `count` environments of a registered id, with their time limits. Raises the errors of `gymnasium.make`.

    `behavior` is the name in the run's configuration, by default that of the environment. `seed` replaces the seed that
    the run gives this simulator; `seed_parameter` is the environment parameter that seeds episodes
    (`ludus.sdk.seeds`). `arguments` are the environment's own.
    """
    envs = [gymnasium.make(env_id, disable_env_checker=True, **(arguments or {})) for _ in range(count)]
    return EnvironmentSimulation(envs, behavior or behavior_name(env_id), seed, seed_parameter)


class _GymnasiumSimulation(GameSimulation):
    """Common base of single and vector environments."""

    def __init__(self, behavior: str, observations: Any, actions: Any) -> None:
        self._encoder = ObservationEncoder(observations)
        self._decoder = ActionDecoder(actions)
        self._mask_size = self._decoder.spec.mask_size
        self.behaviors = (BehaviorSpec(behavior, self._encoder.specs, self._decoder.spec),)


class EnvironmentSimulation(_GymnasiumSimulation):
    """Single environments, which may be answered and stepped independently of each other."""

    def __init__(
        self,
        envs: Sequence[Environment],
        behavior: str,
        seed: int | None = None,
        seed_parameter: str | None = None,
    ) -> None:
        super().__init__(behavior, envs[0].observation_space, envs[0].action_space)
        _check_reset(envs[0])
        self._envs = list(envs)
        self._seeds = EpisodeSeeds(seed, seed_parameter)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin an episode in every environment."""
        self._seeds.restart(start)
        self.finished = 0
        decisions = AgentRows(self._encoder.stack)
        for agent in range(len(self._envs)):
            observation, info = self._begin(agent)
            decisions.ask(agent, 0.0, observation, flat_mask(info.get("action_mask")))
        builder.request_decisions(decisions.decisions(self._mask_size))

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Step the environments that were answered."""
        decisions, terminals = AgentRows(self._encoder.stack), AgentRows(self._encoder.stack)
        for batch in actions.batches:
            assert batch.agent_ids is not None
            values = self._decoder.rows(batch.continuous, batch.discrete)
            for agent, action in zip(batch.agent_ids.tolist(), values, strict=True):
                answer = self._envs[agent].step(action)
                _check_answer(self._envs[agent], "step", answer, STEP)
                observation, reward, terminated, truncated, info = answer
                if terminated or truncated:
                    # The task's own end is final, even in the step in which the time ran out.
                    # Copied, because an environment may reuse its array for the next episode.
                    terminals.end(agent, float(reward), deepcopy(observation), truncated=not terminated)
                    if "is_success" in info:
                        builder.report("Environment/Success", float(info["is_success"]))
                    self.finished += 1
                    reward = 0.0
                    self._seeds.change(builder.parameters.draw())
                    observation, info = self._begin(agent)
                decisions.ask(agent, float(reward), observation, flat_mask(info.get("action_mask")))
        if terminals.agents:
            builder.end_episodes(terminals.terminals())
        if decisions.agents:
            builder.request_decisions(decisions.decisions(self._mask_size))

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _begin(self, agent: int) -> tuple[Any, dict[str, Any]]:
        answer = self._envs[agent].reset(seed=self._seeds.next(agent), options=self._seeds.options)
        _check_answer(self._envs[agent], "reset", answer, RESET)
        return answer


def _check_reset(env: Environment) -> None:
    """Raise ValueError unless `reset` takes Gymnasium's arguments. OpenAI Gym's `reset` had none."""
    try:
        inspect.signature(env.unwrapped.reset).bind(seed=None, options=None)
    except TypeError as error:
        raise ValueError(
            f"{type(env.unwrapped).__name__}.reset does not take Gymnasium's arguments ({error}); "
            "write def reset(self, *, seed=None, options=None)"
        ) from None


def _check_answer(env: Environment, method: str, answer: object, parts: tuple[str, ...]) -> None:
    """Raise SimulatorError unless `reset` or `step` returned Gymnasium's tuple. Another attempt would fail, too."""
    if isinstance(answer, tuple) and len(answer) == len(parts):
        return
    found = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"one {type(answer).__name__}"
    raise SimulatorError(
        "bad_game",
        f"{type(env.unwrapped).__name__}.{method} returns {found}; in Gymnasium it returns {', '.join(parts)}",
    )


class VectorSimulation(_GymnasiumSimulation):
    """A vector environment, which steps all its environments together."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], behavior: str) -> None:
        super().__init__(behavior, envs.single_observation_space, envs.single_action_space)
        self._envs = envs
        self._mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        spec = self._decoder.spec
        self._agents = np.arange(envs.num_envs, dtype=np.int32)
        self._continuous = np.zeros((envs.num_envs, spec.continuous_size), np.float32)
        self._discrete = np.zeros((envs.num_envs, len(spec.discrete_branches)), np.int32)
        self._waiting = np.zeros(envs.num_envs, np.bool_)
        """Agents that have asked and were not answered yet."""
        self._resetting = np.zeros(envs.num_envs, np.bool_)
        """NEXT_STEP: environments that the next step resets, ignoring its action."""

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin an episode in every environment."""
        seeds = [environment_seed(start.seed, agent) for agent in self._agents.tolist()] if start.first else None
        observations, infos = self._envs.reset(
            seed=seeds,  # type: ignore[arg-type]  # the base class declares less than every vector environment takes
            options=dict(start.parameters) or None,
        )
        self._resetting[:] = False
        self.finished = 0
        self._decide(builder, self._everyone(), np.zeros(len(self._agents)), observations, infos)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Step all environments once the last of the waiting agents has been answered."""
        for batch in actions.batches:
            assert batch.agent_ids is not None
            self._continuous[batch.agent_ids] = batch.continuous
            self._discrete[batch.agent_ids] = batch.discrete
            self._waiting[batch.agent_ids] = False
        if self._waiting.any():
            return
        # Environments that are being reset get a zero choice again, which every action space allows.
        self._continuous[self._resetting] = 0
        self._discrete[self._resetting] = 0
        values = self._decoder.batch(self._continuous, self._discrete)
        observations, rewards, terminated, truncated, infos = self._envs.step(values)
        done = (terminated | truncated) & ~self._resetting
        self.finished += int(done.sum())
        if done.any():
            if self._mode is AutoresetMode.SAME_STEP:
                final = self._encoder.stack([row(infos["final_obs"], agent) for agent in np.flatnonzero(done).tolist()])
            else:
                final = tuple(values[done] for values in self._encoder.batch(observations))
            earned = rewards[done].astype(np.float32)
            builder.end_episodes(TerminalBatch(self._agents[done], earned, final, ~terminated[done]))
        asking = self._everyone()
        rewards = np.where(done, 0, rewards)  # a new episode begins with nothing earned
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                self._resetting = done
                asking = ~done
            case AutoresetMode.DISABLED if done.any():
                observations, infos = self._envs.reset(options={"reset_mask": done, **builder.parameters.draw()})
        if asking.any():
            self._decide(builder, asking, rewards, observations, infos)

    def close(self) -> None:
        """Close the vector environment."""
        self._envs.close()

    def _everyone(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self._agents), np.bool_)

    def _decide(
        self,
        builder: StepBuilder,
        asking: npt.NDArray[np.bool_],
        rewards: npt.NDArray[Any],
        observations: Any,
        infos: Mapping[str, Any],
    ) -> None:
        self._waiting = asking.copy()
        masks: Bytes | None = None
        if self._mask_size and "action_mask" in infos:
            every = np.ones((len(self._agents), self._mask_size), np.uint8)
            for agent in np.flatnonzero(infos.get("_action_mask", self._everyone())).tolist():
                mask = flat_mask(row(infos["action_mask"], agent))
                assert mask is not None, "`_action_mask` names the environments that have one"
                every[agent] = mask
            masks = every[asking]
        observed = tuple(values[asking] for values in self._encoder.batch(observations))
        earned = rewards[asking].astype(np.float32)
        builder.request_decisions(DecisionBatch(self._agents[asking], earned, observed, masks))
