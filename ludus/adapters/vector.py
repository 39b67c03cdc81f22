"""Vector environments as simulators: `gymnasium.vector.VectorEnv`, whose environments step together, as columns.

One message carries all environments, and no Python runs for each of them: columns of the environment go to the wire,
columns of actions come back. Agent i is environment i.

Vector environments begin episodes in one of three ways (`AutoresetMode` of Gymnasium):

    NEXT_STEP   the step after an end ignores its action and returns the first observation. That step is no
                experience: the terminal leaves with the end, and the agent asks again with the first observation.
    SAME_STEP   the observation of the step with the end is the next episode's; the last one is in `info["final_obs"]`
                (before Gymnasium 1.0 `final_observation`), an array of objects or one array of all environments.
    DISABLED    `reset(options={"reset_mask": ...})` begins the episodes of the environments that the mask selects.

The mode is told (`--autoreset`), or in `metadata["autoreset_mode"]`; environments that say nothing are taken for
NEXT_STEP until they give final observations. What contradicts the mode is a warning, or an error where steps would be
learned from that never were.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from ludus.adapters.gymnasium import (
    RESET,
    STEP,
    GymnasiumSimulation,
    behavior_name,
    own_environment,
    parts_of,
)
from ludus.adapters.spaces import Parts, rows_of
from ludus.protocol.batches import Array, Bytes, DecisionBatch, Floats, TerminalBatch
from ludus.sdk.crashes import GameNotMade, guarded, place_of
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import EpisodeSeeds, environment_seed
from ludus.sdk.simulation import ResetInfo
from ludus.sdk.steps import Actions, StepBuilder
from ludus.sdk.values import REAL, described, flag, float32_of, info_of, logger, masks, number, warn_once

EachEnvironment: TypeAlias = npt.NDArray[np.bool_]
MODES: Final = {
    "next-step": AutoresetMode.NEXT_STEP,
    "same-step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}
"""Autoreset modes, as `--autoreset` names them."""
NAMES: Final = {mode: name for name, mode in MODES.items()}
FINAL: Final = ("final_obs", "final_observation")
"""Keys of the info with final observations, since Gymnasium 1.0 and before."""
AS_DISABLED: Final = "--autoreset disabled"


def make_simulation(
    env_id: str,
    count: int = 1,
    *,
    behavior: str | None = None,
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, object] | None = None,
    autoreset: str | None = None,
) -> "VectorSimulation":
    """Make a vector environment of `count` environments of a registered id. Raises GameNotMade.

    It is the id's own (`vector_entry_point`) where it has one, else Gymnasium's of single ones; the argument
    `vectorization_mode` chooses, as in `gymnasium.make_vec`. `autoreset` is a key of `MODES`: it sets the mode of what
    can be set, and tells that of the others. `behavior`, `seed` and `seed_parameter` are those of
    `ludus.adapters.gymnasium.make_simulation`.
    """
    envs, vectorization = guarded(env_id, _make, env_id, count, dict(arguments or {}), autoreset)
    simulation = VectorSimulation(envs, behavior or behavior_name(env_id), seed, seed_parameter, autoreset)
    kind = f"{type(envs.unwrapped).__name__} (vectorization_mode={vectorization})"
    simulation.remarks.append((logging.INFO, f"{env_id} is {kind}, autoreset {NAMES[simulation.mode]}"))
    return simulation


def _make(
    env_id: str, count: int, arguments: dict[str, Any], autoreset: str | None
) -> tuple["VectorEnv[Any, Any, Any]", str]:
    """Return a vector environment, and how it was vectorized."""
    try:
        entry_point = gymnasium.spec(env_id).vector_entry_point
        vectorization = str(
            arguments.pop("vectorization_mode", "sync" if entry_point is None else "vector_entry_point")
        )
        options: dict[str, Any] = {}
        if vectorization in {"sync", "async"}:
            options["disable_env_checker"] = True  # it checks each value in Python; the encoder does it for all at once
            if autoreset is not None:
                options["vector_kwargs"] = {"autoreset_mode": MODES[autoreset]}
        elif autoreset is not None and entry_point is not None:
            made: Any = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            if "autoreset_mode" in inspect.signature(made).parameters:
                options["autoreset_mode"] = MODES[autoreset]
        envs = gymnasium.make_vec(env_id, num_envs=count, vectorization_mode=vectorization, **options, **arguments)
    except gymnasium.error.Error as error:  # no such environment, a missing package: words of Gymnasium's own
        raise GameNotMade(f"{env_id} cannot be simulated: {error}") from error
    return envs, vectorization


class VectorSimulation(GymnasiumSimulation):
    """A vector environment, which steps all its environments together."""

    def __init__(
        self,
        envs: "VectorEnv[Any, Any, Any]",
        behavior: str,
        seed: int | None = None,
        seed_parameter: str | None = None,
        autoreset: str | None = None,
    ) -> None:
        """`seed` replaces the seed that the run gives this simulator. `autoreset` (a key of `MODES`) tells how episodes
        begin; None: as its metadata say.

        Raises GameNotMade for `seed_parameter` with environments that begin their episodes by themselves.
        """
        super().__init__(behavior, envs, "single_")
        self._envs = envs
        self.remarks: list[tuple[int, str]] = []
        """Log levels and sentences about the environment, logged when it is played."""
        self.mode, self._assumed = self._mode_of(autoreset)
        if seed_parameter is not None and self.mode is not AutoresetMode.DISABLED:
            raise GameNotMade(
                f"{place_of(own_environment(envs))} begins its episodes by itself (autoreset {NAMES[self.mode]}): they "
                "cannot be seeded one by one, as `ludus play`, evaluations and --seed-parameter do; name a function "
                f"that makes one gymnasium.Env, as gymnasium:ID, or one that can be reset by a mask ({AS_DISABLED})"
            )
        self._seed = seed
        self._seeds = None if seed_parameter is None else EpisodeSeeds(seed, seed_parameter)
        self._parameters: Mapping[str, float] = {}
        """The environment parameters that the environments have."""
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
        for level, sentence in self.remarks:
            logger.log(level, sentence)
        self.remarks.clear()
        if self._seeds is not None:
            self._seeds.restart(start)
        self._resetting[:] = False
        self.finished = 0
        everyone = np.ones(len(self._agents), np.bool_)
        answer = self._begin(start.parameters, everyone, start)
        try:
            observations, infos = parts_of(answer, RESET)
            nothing = np.zeros(len(self._agents), np.float32)
            self._decide(builder, everyone, nothing, self._encoder.batch(observations, len(everyone)), infos)
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
            self._played(builder, parts_of(answer, STEP))
        except GameMistake as mistake:
            raise mistake.of(self._place(mistake, "step")) from None

    def close(self) -> None:
        """Close the vector environment."""
        self._envs.close()

    def _begin(self, parameters: Mapping[str, float], chosen: EachEnvironment, start: ResetInfo | None = None) -> Any:
        """Begin episodes in the chosen environments, all of them at a `start`; return the answer of `reset`."""
        self._parameters = dict(parameters)
        options: dict[str, Any] = {} if start is not None else {"reset_mask": chosen}
        seed: Any = None  # a number, or one of each environment
        if self._seeds is not None:
            options |= self._seeds.options or {}
            seeds = [self._seeds.next(agent) if chosen[agent] else None for agent in range(len(chosen))]
            seed = seeds if any(agent_seed is not None for agent_seed in seeds) else None
        else:
            options |= parameters
            if start is not None and start.first:
                # A number: environments that are vectors themselves take no list. From one, others make one for each.
                seed = environment_seed(start.seed if self._seed is None else self._seed, 0)
        return self._envs.reset(seed=seed, options=options or None)

    def _played(self, builder: StepBuilder, answer: Sequence[Any]) -> None:
        """Report a step. Raises GameMistake."""
        observations, rewards, terminations, truncations, infos = answer
        earned = float32_of(self._column(rewards, number, "the reward"), "the reward")
        terminated = self._column(terminations, flag, "the termination").astype(np.bool_)
        over = terminated | self._column(truncations, flag, "the truncation").astype(np.bool_)
        observed = self._encoder.batch(observations, len(over))
        asking = ~self._resetting
        if not asking.all():
            self._check_resets(earned, over)
        done = over & asking
        asking = np.ones(len(over), np.bool_)
        if done.any():
            self.finished += int(done.sum())
            self._check_mode(info_of(infos))
            same_step = self.mode is AutoresetMode.SAME_STEP
            final = self._final_observations(info_of(infos), done) if same_step else _rows(observed, done)
            builder.end_episodes(TerminalBatch(self._agents[done], earned[done], final, ~terminated[done]))
            earned[done] = 0  # a new episode begins with nothing earned
            if self.mode is AutoresetMode.NEXT_STEP:
                asking = ~done
            elif self.mode is AutoresetMode.DISABLED:
                drawn = builder.parameters.draw()
                if self._seeds is not None:
                    self._seeds.change(drawn)
                before = observed
                observations, infos = parts_of(self._begin(drawn, done), RESET)
                observed = self._encoder.batch(observations, len(over))
                self._check_others(before, observed, ~done)
        self._resetting = ~asking
        if self.mode is not AutoresetMode.DISABLED and builder.parameters != self._parameters:
            where, mode = place_of(own_environment(self._envs)), NAMES[self.mode]
            warn_once(
                f"parameters of {where}",
                f"the run has new environment parameters, but {where} begins its episodes by itself (autoreset {mode}) "
                f"and never gets them: make it one that can be reset by a mask ({AS_DISABLED}), or play gymnasium:ID",
            )
        if asking.any():
            self._decide(builder, asking, earned, observed, infos)

    def _decide(
        self, builder: StepBuilder, asking: EachEnvironment, earned: Floats, observed: Parts, infos: object
    ) -> None:
        """Ask for actions. Raises GameMistake."""
        self._waiting = asking.copy()
        allowed: Bytes | None = None
        info = info_of(infos)
        if self._mask_size and "action_mask" in info:
            given = info.get("_action_mask")
            allowed = masks(info["action_mask"], len(asking), self._decoder.spec.discrete_branches, given)[asking]
        batch = DecisionBatch(self._agents[asking], earned[asking], _rows(observed, asking), allowed)
        builder.request_decisions(batch)

    def _mode_of(self, told: str | None) -> tuple[AutoresetMode, bool]:
        """Return how episodes begin, and whether that is only assumed: neither the command nor the metadata say it."""
        said = (getattr(self._envs, "metadata", None) or {}).get("autoreset_mode")
        if isinstance(said, str):
            said = next((mode for mode in AutoresetMode if said in {mode.value, mode.name, NAMES[mode]}), None)
        where, assumed = place_of(own_environment(self._envs)), AutoresetMode.NEXT_STEP
        if isinstance(said, AutoresetMode):
            if told is not None and MODES[told] is not said:
                problem = f"{where} says that its autoreset is {NAMES[said]}; it is played as {told}"
                self.remarks.append((logging.WARNING, problem))
            return (said if told is None else MODES[told]), False
        if told is not None:
            return MODES[told], False
        unless = "unless it gives final observations; --autoreset NAME tells it"
        silent = f"{where} does not say how it begins episodes (metadata['autoreset_mode'])"
        self.remarks.append((logging.WARNING, f"{silent}: it is played as {NAMES[assumed]}, {unless}"))
        return assumed, True

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

    def _final_observations(self, info: Mapping[str, Any], done: EachEnvironment) -> Parts:
        """Return the last observations of the episodes that are done (SAME_STEP). Raises GameMistake."""
        key = next((key for key in FINAL if info.get(key) is not None), None)
        if key is None:
            raise GameMistake(
                f"the info has no 'final_obs', though it begins episodes in the step in which others end (autoreset "
                f"{NAMES[self.mode]}); give the last observations there, or say how it begins them: --autoreset "
                f"{NAMES[AutoresetMode.NEXT_STEP]}, or {AS_DISABLED}"
            )
        ended = np.flatnonzero(done)
        finals, given = info[key], info.get(f"_{key}")
        if given is not None and not np.asarray(given)[ended].all():
            missing = int(ended[~np.asarray(given)[ended]][0])
            raise GameMistake(f"the info's {key!r} has nothing of environment {missing}, whose episode ended", missing)
        try:
            if isinstance(finals, list) or (isinstance(finals, np.ndarray) and finals.dtype == np.object_):
                return self._encoder.stack([self._encoder.read(finals[agent]) for agent in ended.tolist()])
            return self._encoder.batch(rows_of(finals, ended), len(ended))
        except GameMistake as mistake:
            raise GameMistake(
                f"of {key!r}, {mistake}", None if mistake.row is None else int(ended[mistake.row])
            ) from None

    def _check_mode(self, info: Mapping[str, Any]) -> None:
        """Compare the mode with what comes when episodes end: final observations are those of SAME_STEP."""
        if self.mode is AutoresetMode.SAME_STEP or all(info.get(key) is None for key in FINAL):
            return
        where, same_step = place_of(own_environment(self._envs)), NAMES[AutoresetMode.SAME_STEP]
        if self._assumed:
            self.mode = AutoresetMode.SAME_STEP
            logger.info("%s gives final observations: its autoreset is %s", where, same_step)
        else:
            warn_once(
                f"autoreset of {where}",
                f"{where} gives final observations, as environments do that begin episodes in the step of an end, but "
                f"its autoreset is {NAMES[self.mode]}, as it says or was told: is it --autoreset {same_step}?",
            )

    def _check_resets(self, earned: Floats, over: EachEnvironment) -> None:
        """Check that steps which only begin an episode (NEXT_STEP) bring nothing else.

        A reward or an end in them means that an action was taken there: steps of the game are lost, and what was sent
        as the last observation of the episode before is none. Raises GameMistake unless the environment says that this
        is its mode.
        """
        played = self._resetting & ((earned != 0) | over)
        if not played.any():
            return
        agent = int(np.flatnonzero(played)[0])
        came = "an end" if over[agent] else f"a reward of {earned[agent]:g}"
        problem = f"has {came} in the step after an end, which should only begin its next episode (autoreset next-step)"
        if self._assumed:
            raise GameMistake(
                f"it {problem}; say how it begins episodes: --autoreset {NAMES[AutoresetMode.SAME_STEP]}, if the step "
                f"with the end begins the next one, {AS_DISABLED}, or --autoreset next-step, to ignore this",
                agent,
            )
        where = place_of(own_environment(self._envs))
        warn_once(f"resets of {where}", f"{where} {problem}: nothing of it reaches the run; is that its autoreset?")

    def _check_others(self, before: Parts, after: Parts, others: EachEnvironment) -> None:
        """Check that a reset by a mask (DISABLED) left the other environments alone. Raises GameMistake."""
        for old, new in zip(before, after, strict=True):
            changed = others & (old != new).reshape(len(others), -1).any(1)
            if changed.any():
                agent = int(np.flatnonzero(changed)[0])
                raise GameMistake(
                    "its reset changes environments that options['reset_mask'] does not select: it cannot be played "
                    f"with {AS_DISABLED}; leave that out, or reset the selected ones alone",
                    agent,
                )

    def _place(self, mistake: GameMistake, method: str) -> str:
        place = place_of(own_environment(self._envs), method)
        return place if mistake.row is None else f"{place}, environment {mistake.row} of {len(self._agents)}"


def _rows(observed: Parts, chosen: EachEnvironment) -> Parts:
    """Return the chosen rows of each column."""
    return observed if chosen.all() else tuple(values[chosen] for values in observed)
