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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, Parts, row
from ludus.protocol.batches import Array, Bytes, DecisionBatch, Floats, TerminalBatch
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.crashes import GameNotMade, guarded, place_of
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import EpisodeSeeds, environment_seed
from ludus.sdk.simulation import GameSimulation, ResetInfo
from ludus.sdk.steps import Actions, AgentRows, StepBuilder
from ludus.sdk.values import REAL, described, flag, float32_of, info_of, mask, number

Environment = gymnasium.Env[Any, Any]
EachEnvironment: TypeAlias = npt.NDArray[np.bool_]
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


class _GymnasiumSimulation(GameSimulation):
    """Common base of single and vector environments."""

    def __init__(self, behavior: str, env: Any, prefix: str = "") -> None:
        spaces = []
        for use in ("observation", "action"):
            space = getattr(env, f"{prefix}{use}_space", None)
            if space is None:
                raise ValueError(f"{place_of(_own(env))} has no {use}_space: set it to a space of Gymnasium")
            spaces.append(space)
        self._encoder = ObservationEncoder(spaces[0])
        self._decoder = ActionDecoder(spaces[1])
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
                    value, earned, ended, cut, facts = _parts(answer, STEP)
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
            observation, info = _parts(answer, RESET)
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
        place = place_of(_own(self._envs[agent]), method)
        return f"{place}, environment {agent} of {len(self._envs)}" if len(self._envs) > 1 else place


def _own(env: object) -> object:
    """Return the outermost environment or wrapper that is not Gymnasium's: whose author can mend it."""
    while type(env).__module__.startswith("gymnasium.") and (inner := getattr(env, "env", None)) is not None:
        env = inner
    return env


def _parts(answer: object, names: tuple[str, ...]) -> Sequence[Any]:
    """Return what `reset` or `step` returned. Raises GameMistake unless it is Gymnasium's tuple."""
    if isinstance(answer, tuple) and len(answer) == len(names):
        return answer
    came = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else described(answer)
    raise GameMistake(f"it returns {came}; in Gymnasium it returns {', '.join(names)}")


class VectorSimulation(_GymnasiumSimulation):
    """A vector environment, which steps all its environments together."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], behavior: str, seed: int | None = None) -> None:
        """`seed` replaces the seed that the run gives this simulator."""
        super().__init__(behavior, envs, "single_")
        self._envs = envs
        self._seed = seed
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
        # A number: environments that are vectors themselves take no list. From one, others make a seed for each.
        seed = environment_seed(start.seed if self._seed is None else self._seed, 0) if start.first else None
        answer = self._envs.reset(seed=seed, options=dict(start.parameters) or None)
        self._resetting[:] = False
        self.finished = 0
        try:
            observations, infos = _parts(answer, RESET)
            self._decide(builder, self._everyone(), np.zeros(len(self._agents), np.float32), observations, infos)
        except GameMistake as mistake:
            raise mistake.of(self._place(mistake, "reset")) from None

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
        answer = self._envs.step(self._decoder.batch(self._continuous, self._discrete))
        try:
            self._played(builder, _parts(answer, STEP))
        except GameMistake as mistake:
            raise mistake.of(self._place(mistake, "step")) from None

    def close(self) -> None:
        """Close the vector environment."""
        self._envs.close()

    def _played(self, builder: StepBuilder, answer: Sequence[Any]) -> None:
        """Report a step. Raises GameMistake."""
        observations, rewards, terminations, truncations, infos = answer
        earned = float32_of(self._column(rewards, number, "the reward"), "the reward")
        terminated = self._column(terminations, flag, "the termination").astype(np.bool_)
        truncated = self._column(truncations, flag, "the truncation").astype(np.bool_)
        done = (terminated | truncated) & ~self._resetting
        self.finished += int(done.sum())
        if done.any():
            final = self._final_observations(observations, infos, done)
            builder.end_episodes(TerminalBatch(self._agents[done], earned[done], final, ~terminated[done]))
        asking = self._everyone()
        earned[done] = 0  # a new episode begins with nothing earned
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                self._resetting = done
                asking = ~done
            case AutoresetMode.DISABLED if done.any():
                options = {"reset_mask": done, **builder.parameters.draw()}
                observations, infos = _parts(self._envs.reset(options=options), RESET)
        if asking.any():
            self._decide(builder, asking, earned, observations, infos)

    def _column(self, values: Any, read: Callable[[object, str], float], what: str) -> Array:
        """Return one number of each environment. Raises GameMistake."""
        count = len(self._agents)
        if type(values) is np.ndarray and values.shape == (count,) and values.dtype.kind in REAL:
            return values
        if not hasattr(values, "__len__") or len(values) != count:
            raise GameMistake(f"{what} is {described(values)}; give an array of {count}, one of each environment")
        numbers = []
        for agent, value in enumerate(values):
            try:
                numbers.append(read(value, what))
            except GameMistake as mistake:
                raise GameMistake(str(mistake), agent) from None
        return np.array(numbers)

    def _final_observations(self, observations: object, infos: object, done: EachEnvironment) -> Parts:
        """Return the last observations of the episodes that are done."""
        if self._mode is not AutoresetMode.SAME_STEP:
            return tuple(values[done] for values in self._encoder.batch(observations, len(done)))
        finals = info_of(infos).get("final_obs")
        if finals is None:
            raise GameMistake(
                "the info has no 'final_obs', though its metadata say that it begins episodes in the step in which "
                "others end (AutoresetMode.SAME_STEP); give the last observations there"
            )
        ended = np.flatnonzero(done).tolist()
        try:
            return self._encoder.stack([self._encoder.read(row(finals, agent)) for agent in ended])
        except GameMistake as mistake:
            raise GameMistake(str(mistake), None if mistake.row is None else ended[mistake.row]) from None

    def _everyone(self) -> EachEnvironment:
        return np.ones(len(self._agents), np.bool_)

    def _decide(
        self,
        builder: StepBuilder,
        asking: EachEnvironment,
        earned: Floats,
        observations: object,
        infos: object,
    ) -> None:
        """Ask for actions. Raises GameMistake."""
        self._waiting = asking.copy()
        masks: Bytes | None = None
        info = info_of(infos)
        if self._mask_size and "action_mask" in info:
            every = np.ones((len(self._agents), self._mask_size), np.uint8)
            for agent in np.flatnonzero(info.get("_action_mask", self._everyone())).tolist():
                allowed = mask(row(info["action_mask"], agent), self._decoder.spec.discrete_branches)
                every[agent] = 1 if allowed is None else allowed
            masks = every[asking]
        observed = tuple(values[asking] for values in self._encoder.batch(observations, len(asking)))
        builder.request_decisions(DecisionBatch(self._agents[asking], earned[asking], observed, masks))

    def _place(self, mistake: GameMistake, method: str) -> str:
        place = place_of(_own(self._envs), method)
        return place if mistake.row is None else f"{place}, environment {mistake.row} of {len(self._agents)}"
