"""Environments of EnvPool as simulators: a pool of environments in C++, stepped by threads of its own.

Agent i is environment i. With the argument `batch_size` the pool is asynchronous: it answers with the environments that
are ready first, so many at a time, and the others compute while these wait for their actions. EnvPool begins episodes
in the step after an end (NEXT_STEP of `ludus.adapters.vector`): the action of that step means nothing, so the pool gets
it at once. Its seeds are fixed when it is made, so each reset makes a new pool.
"""

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import envpool
import numpy as np

from ludus.adapters.gymnasium import GymnasiumSimulation, behavior_name
from ludus.protocol.batches import DecisionBatch, TerminalBatch
from ludus.sdk.crashes import GameNotMade, guarded
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import environment_seed
from ludus.sdk.simulation import ResetInfo
from ludus.sdk.steps import Actions, StepBuilder
from ludus.sdk.values import float32_of, warn_once

AUTORESET: Final = "next-step"
OWN_ARGUMENTS: Final = {"num_envs": "--envs", "seed": "--seed", "env_type": None, "gym_reset_return_info": None}
"""Arguments of `envpool.make` that this adapter gives -> the option in their place."""


def make_simulation(
    env_id: str,
    count: int = 1,
    *,
    behavior: str | None = None,
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, object] | None = None,
    autoreset: str | None = None,
) -> "PoolSimulation":
    """Make a pool of `count` environments of a registered id. Raises GameNotMade.

    `behavior` is the name in the run's configuration, by default that of the environment; `seed` replaces the seed that
    the run gives this simulator; `arguments` are those of `envpool.make`, as `batch_size` and `num_threads`.
    """
    options = dict(arguments or {})
    if seed_parameter is not None:
        raise GameNotMade(
            f"EnvPool begins the episodes of {env_id} by itself: they cannot be seeded one by one, as `ludus play`, "
            "evaluations and --seed-parameter do; name a game that can, as gymnasium:ID"
        )
    if autoreset not in {None, AUTORESET}:
        raise GameNotMade(f"EnvPool begins episodes in the step after an end: leave out --autoreset {autoreset}")
    for name, option in OWN_ARGUMENTS.items():
        if name in options:
            raise GameNotMade(f"--env-arg {name} cannot be set: {f'use {option}' if option else 'leave it out'}")
    if env_id not in envpool.list_all_envs():
        raise GameNotMade(f"EnvPool has no environment {env_id!r}; `envpool.list_all_envs()` has their names")
    if count < 1:
        raise GameNotMade(f"--envs is {count}: give 1 or more")
    batch_size = options.get("batch_size", count)
    if not isinstance(batch_size, int) or not 0 <= batch_size <= count:
        raise GameNotMade(f"--env-arg batch_size={batch_size}: give a number from 1 to {count}, that of --envs")

    def make(pool_seed: int) -> Any:
        pool = envpool.make(env_id, env_type="gymnasium", num_envs=count, seed=pool_seed, **options)
        spaces_of(pool, "observation_space")  # it keeps them, and reads them with each answer
        return pool

    spec = guarded(env_id, envpool.make_spec, env_id, num_envs=count, **options)
    if spec.config.max_num_players > 1:
        raise GameNotMade(f"{env_id} has several players, and this adapter plays games of one")
    return PoolSimulation(make, spec, behavior or behavior_name(env_id), seed)


def spaces_of(owner: Any, *names: str) -> SimpleNamespace:
    """Return spaces of a pool or its specification, without a warning for each bound of float64 that is rounded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*precision lowered by casting")
        return SimpleNamespace(**{name.removeprefix("gymnasium_"): getattr(owner, name) for name in names})


class PoolSimulation(GymnasiumSimulation):
    """A pool, which answers with the environments that are ready."""

    def __init__(self, make: Callable[[int], Any], spec: Any, behavior: str, seed: int | None = None) -> None:
        """`make` makes the pool with a seed. `seed` replaces the seed that the run gives this simulator."""
        super().__init__(behavior, spaces_of(spec, "gymnasium_observation_space", "gymnasium_action_space"))
        self._make = make
        self._seed = seed
        self._resets = 0
        self._pool: Any = None
        count = spec.config.num_envs
        self._batch = spec.config.batch_size or count
        self._in_flight = 0
        """Environments that compute, or wait to be received."""
        actions = self._decoder.spec
        self._continuous = np.zeros((count, actions.continuous_size), np.float32)
        self._discrete = np.zeros((count, len(actions.discrete_branches)), np.int32)
        self._ready = np.zeros(count, np.bool_)
        """Environments whose action is there and not sent yet."""
        self._beginning = np.ones(count, np.bool_)
        """Environments whose next answer only begins an episode."""

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin an episode in every environment."""
        if start.parameters:
            warn_once(
                "EnvPool's parameters", "EnvPool's games take no environment parameters: those of the run are unused"
            )
        self.close()
        seed = start.seed if self._seed is None else self._seed
        self._pool = self._make(environment_seed(seed, self._resets) % 2**31)
        self._resets += 1
        self._beginning[:] = True
        self._ready[:] = False
        self._in_flight = len(self._beginning)
        self.finished = 0
        self._pool.async_reset()
        self._receive(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Step the environments that were answered, and receive those that are ready next."""
        for batch in actions.batches:
            assert batch.agent_ids is not None
            self._continuous[batch.agent_ids] = batch.continuous
            self._discrete[batch.agent_ids] = batch.discrete
            self._ready[batch.agent_ids] = True
        self._receive(builder)

    def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _receive(self, builder: StepBuilder) -> None:
        """Send the actions, and report the environments that are ready, unless other agents have to act first."""
        # A pool that answers with all of its environments at once takes the actions of all at once.
        if self._ready.all() or (self._batch < len(self._ready) and self._ready.any()):
            agents = np.flatnonzero(self._ready).astype(np.int32)
            self._pool.send(self._decoder.batch(self._continuous[agents], self._discrete[agents]), agents)
            self._in_flight += len(agents)
            self._ready[:] = False
        if self._in_flight < self._batch:
            return
        observations, rewards, terminated, truncated, info = self._pool.recv()
        agents = np.array(info["env_id"], np.int32)
        self._in_flight -= len(agents)
        beginning = self._beginning[agents]
        done = (terminated | truncated) & ~beginning
        self._beginning[agents] = done
        try:
            earned = float32_of(rewards, "the reward")
            observed = self._encoder.batch(observations, len(agents))
        except GameMistake as mistake:
            raise mistake.of(f"{type(self._pool).__name__} of EnvPool") from None
        if done.any():
            self.finished += int(done.sum())
            final = tuple(values[done] for values in observed)
            builder.end_episodes(TerminalBatch(agents[done], earned[done], final, ~terminated[done]))
            # The pool ignores the action of the step that begins an episode, so the policy is not asked for one.
            self._continuous[agents[done]] = 0
            self._discrete[agents[done]] = 0
            self._ready[agents[done]] = True
        asking = ~done
        if asking.any():
            earned[beginning] = 0
            batch = DecisionBatch(agents[asking], earned[asking], tuple(values[asking] for values in observed))
            builder.request_decisions(batch)
