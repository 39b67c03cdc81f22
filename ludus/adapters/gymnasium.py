"""Gymnasium environments as simulators: several in one process, sent to the server as one batch of agents.

`EnvironmentSimulation` drives single environments by itself: an episode's end and the next one's beginning travel in
one message, and no step is lost to a reset. Those that are vectors themselves are in `ludus.adapters.vector`. Agent i
is environment i. An episode that a `TimeLimit` cut is reported as truncated, always with its final observation, never
with the first one of the next episode.

`info["action_mask"]` becomes the agent's action mask; `info["is_success"]` at an episode's end is reported as the
metric `Environment/Success`. The run's environment parameters are handed to `reset` as `options`: as they are when an
episode begins, and drawn again for each later one where they have samplers; the one that seeds episodes
(`ludus.sdk.seeds`) is left out.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, Parts
from ludus.protocol.batches import Bytes
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.crashes import GameNotMade, guarded, place_of
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import EpisodeSeeds
from ludus.sdk.simulation import GameSimulation, ResetInfo
from ludus.sdk.steps import Actions, AgentRows, StepBuilder
from ludus.sdk.values import described, flag, info_of, mask, number

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
    arguments: Mapping[str, object] | None = None,
) -> "EnvironmentSimulation":
    """Make `count` environments of a registered id, with their time limits. Raises GameNotMade.

    `behavior` is the name in the run's configuration, by default that of the environment. `seed` replaces the seed that
    the run gives this simulator; `seed_parameter` is the environment parameter that seeds episodes
    (`ludus.sdk.seeds`). `arguments` are the environment's own.
    """
    envs = [guarded(env_id, _make, env_id, arguments or {}) for _ in range(count)]
    return EnvironmentSimulation(envs, behavior or behavior_name(env_id), seed, seed_parameter)


def _make(env_id: str, arguments: Mapping[str, Any]) -> Environment:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **arguments)
    except gymnasium.error.Error as error:  # no such environment, a missing package: words of Gymnasium's own
        raise GameNotMade(f"{env_id} cannot be simulated: {error}") from error


class GymnasiumSimulation(GameSimulation):
    """Common base of single and vector environments."""

    def __init__(self, behavior: str, env: Any, prefix: str = "") -> None:
        spaces = []
        for use in ("observation", "action"):
            space = getattr(env, f"{prefix}{use}_space", None)
            if space is None:
                raise ValueError(f"{place_of(own_environment(env))} has no {use}_space: set it to a space of Gymnasium")
            spaces.append(space)
        self._encoder = ObservationEncoder(spaces[0])
        self._decoder = ActionDecoder(spaces[1])
        self._mask_size = self._decoder.spec.mask_size
        self.behaviors = (BehaviorSpec(behavior, self._encoder.specs, self._decoder.spec),)


class EnvironmentSimulation(GymnasiumSimulation):
    """Single environments, which may be answered and stepped independently of each other."""

    def __init__(
        self,
        envs: Sequence[Environment],
        behavior: str,
        seed: int | None = None,
        seed_parameter: str | None = None,
    ) -> None:
        super().__init__(behavior, envs[0])
        game = envs[0].unwrapped
        try:  # OpenAI Gym's `reset` had no arguments
            inspect.signature(game.reset).bind(seed=None, options=None)
        except TypeError as error:
            raise ValueError(
                f"{type(game).__name__}.reset does not take Gymnasium's arguments ({error}); "
                "write def reset(self, *, seed=None, options=None)"
            ) from None
        self._envs = list(envs)
        self._seeds = EpisodeSeeds(seed, seed_parameter)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin an episode in every environment."""
        self._seeds.restart(start)
        self.finished = 0
        decisions = AgentRows(self._encoder.stack)
        for agent in range(len(self._envs)):
            observation, allowed = self._begin(agent)
            decisions.ask(agent, 0.0, observation, allowed)
        self._tell(builder, AgentRows(self._encoder.stack), decisions)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Step the environments that were answered."""
        decisions, terminals = AgentRows(self._encoder.stack), AgentRows(self._encoder.stack)
        for batch in actions.batches:
            assert batch.agent_ids is not None
            values = self._decoder.rows(batch.continuous, batch.discrete)
            for agent, action in zip(batch.agent_ids.tolist(), values, strict=True):
                answer = self._envs[agent].step(action)
                try:
                    # Read at once: environments may use their arrays again, even for each other.
                    value, earned, ended, cut, facts = parts_of(answer, STEP)
                    observation = self._encoder.read(value)
                    reward = number(earned, "the reward")
                    terminated, truncated = flag(ended, "terminated"), flag(cut, "truncated")
                    info = info_of(facts)
                    allowed = mask(info.get("action_mask"), self._decoder.spec.discrete_branches)
                    success = number(info["is_success"], "info['is_success']") if "is_success" in info else None
                except GameMistake as mistake:
                    raise mistake.of(self._place(agent, "step")) from None
                if terminated or truncated:
                    # The task's own end is final, even in the step in which the time ran out.
                    terminals.end(agent, reward, observation, truncated=not terminated)
                    if success is not None:
                        builder.report("Environment/Success", success)
                    self.finished += 1
                    reward = 0.0
                    self._seeds.change(builder.parameters.draw())
                    observation, allowed = self._begin(agent)
                decisions.ask(agent, reward, observation, allowed)
        self._tell(builder, terminals, decisions)

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _begin(self, agent: int) -> tuple[Parts, Bytes | None]:
        """Begin an episode; return its first observation and mask."""
        answer = self._envs[agent].reset(seed=self._seeds.next(agent), options=self._seeds.options)
        try:
            observation, info = parts_of(answer, RESET)
            allowed = mask(info_of(info).get("action_mask"), self._decoder.spec.discrete_branches)
            return self._encoder.read(observation), allowed
        except GameMistake as mistake:
            raise mistake.of(self._place(agent, "reset")) from None

    def _tell(self, builder: StepBuilder, terminals: AgentRows, decisions: AgentRows) -> None:
        for rows in (terminals, decisions):
            try:
                if rows.agents and rows is terminals:
                    builder.end_episodes(rows.terminals())
                elif rows.agents:
                    builder.request_decisions(rows.decisions(self._mask_size))
            except GameMistake as mistake:
                raise mistake.of(self._place(rows.agents[mistake.row or 0])) from None

    def _place(self, agent: int, method: str = "") -> str:
        """Name the code of an environment, and which of them it is."""
        place = place_of(own_environment(self._envs[agent]), method)
        return f"{place}, environment {agent} of {len(self._envs)}" if len(self._envs) > 1 else place


def own_environment(env: object) -> object:
    """Return the outermost environment or wrapper that is not Gymnasium's: whose author can mend it."""
    while type(env).__module__.startswith("gymnasium.") and (inner := getattr(env, "env", None)) is not None:
        env = inner
    return env


def parts_of(answer: object, names: tuple[str, ...]) -> Sequence[Any]:
    """Return what `reset` or `step` returned. Raises GameMistake unless it is Gymnasium's tuple."""
    if isinstance(answer, tuple) and len(answer) == len(names):
        return answer
    came = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else described(answer)
    raise GameMistake(f"it returns {came}; in Gymnasium it returns {', '.join(names)}")
