"""Imitation on CartPole: an expert, thirty of its decisions, and two ways to learn from them alone.

    python examples/imitation/imitation.py [--seed 0] [--folder demo/imitation]

1. PPO learns to balance the pole in 250 episodes of at most 200 steps, one update after each. Actor and critic have
   learning rates of their own, 1e-3 and 1e-2.
2. It plays one episode. Thirty of its decisions, drawn at random, are all that the others get to see.
3. Behavioral cloning fits an actor to them in 1,000 gradient steps; its return is measured on the way.
4. GAIL plays 500 episodes; it is paid for decisions that a discriminator cannot tell from the expert's.

Two pictures show the returns. It takes about a minute on one core, and equal seeds give equal pictures. The experiment
is chapter 15 of "Hands-on Reinforcement Learning" (Zhang, Shen & Yu); everything here but CartPole is Ludus' own, and
what the folder then holds can be uploaded to a server.

It flatters GAIL: a long episode is always a good one, so even a discriminator that always answers "expert"
is a useful reward. `tests/learning/test_imitation.py` has a task on which a bad expert is not good enough.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import gymnasium
import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt

from ludus.collector.policy import Policy
from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import CloneConfig, PPOConfig
from ludus.demonstrations import Demonstration, inspect, write
from ludus.sdk import ActionSpec, BehaviorSpec, ObservationSpec
from worker.collectors.acting import POLICIES
from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import Demonstrations, build_algorithm, build_demonstrated

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")

ENVIRONMENT, STEP_LIMIT = "CartPole-v1", 200
SPEC = BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(discrete_branches=(2,)))
EXPERT_EPISODES, PAIRS, CLONE_STEPS, GAIL_EPISODES = 250, 30, 1_000, 500
CLONE_INTERVAL, CLONE_EPISODES = 10, 5
"""Gradient steps between two measurements of the clone, and the episodes of each."""
WINDOW = 10
"""Number of episodes in the mean return of the progress bar."""

NETWORK = {"hidden_units": 128, "num_layers": 1, "activation": "relu"}
LEARNER: dict[str, Any] = {
    "trainer_type": "ppo",
    "network_settings": NETWORK,
    "hyperparameters": {
        "learning_rate": 1e-3,
        "critic_learning_rate": 1e-2,
        "learning_rate_schedule": "constant",
        "epsilon": 0.2,
        "epsilon_schedule": "constant",
        "beta": 0.0,
        "lambd": 0.95,
        "num_epoch": 10,
        "batch_size": STEP_LIMIT,  # an episode is one minibatch
        "buffer_size": STEP_LIMIT,
    },
}
GAMMA = 0.98
EXPERT = {**LEARNER, "reward_signals": {"extrinsic": {"gamma": GAMMA}}}


def imitator(shown: Path) -> dict[str, Any]:
    """Return the configuration of PPO with GAIL as its only reward signal."""
    gail = {
        "gamma": GAMMA,
        "learning_rate": 1e-3,
        "use_actions": True,
        "network_settings": NETWORK,
        "demo_path": str(shown),
    }
    return {**LEARNER, "reward_signals": {"gail": gail}}


def clone(shown: Path) -> dict[str, Any]:
    """Return the configuration of behavioral cloning."""
    return {
        "trainer_type": "clone",
        "demo_path": str(shown),
        "network_settings": NETWORK,
        "hyperparameters": {"batch_size": 64, "learning_rate": 1e-3},
        "max_steps": CLONE_STEPS,
    }


@dataclass(frozen=True)
class Episode:
    """Observations, actions and rewards of an episode. Legend: T steps."""

    observations: np.ndarray
    """(T + 1, 4): the last one is the final observation."""
    discrete: np.ndarray
    """(T, 1)."""
    log_probs: np.ndarray
    """(T, 1)."""
    rewards: np.ndarray
    """(T,)."""
    terminated: bool
    """Whether the pole fell; otherwise the time limit ended the episode."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    def rollout(self, number: int, version: int) -> Rollout:
        """Return it as a rollout of one segment, `number` episodes after the first one."""
        ending = SegmentEnd.TERMINATED if self.terminated else SegmentEnd.TRUNCATED
        one = torch.zeros(1, dtype=torch.int64)
        return Rollout(
            observations=[torch.from_numpy(self.observations[:-1])],
            next_observations=[torch.from_numpy(self.observations[-1:])],
            continuous=torch.zeros(self.steps, 0),
            discrete=torch.from_numpy(self.discrete).long(),
            log_probs=torch.from_numpy(self.log_probs),
            action_masks=None,
            rewards=torch.from_numpy(self.rewards),
            group_rewards=torch.zeros(self.steps),
            versions=torch.full((self.steps,), version),
            lengths=one + self.steps,
            endings=torch.tensor([ending], dtype=torch.uint8),
            starts_episode=torch.tensor([True]),
            memories=None,
            ticks=torch.arange(self.steps),
            successor_ticks=one + self.steps,
            simulators=one,
            agents=one,
            groups=one,
            episodes=one + number,
            sequences=one,
            mates_alive=torch.tensor([False]),
        )

    def demonstration(self) -> Demonstration:
        """Return it as a demonstration."""
        end = np.zeros((2, self.steps), np.bool_)
        end[:, -1] = self.terminated, not self.terminated
        return Demonstration(
            spec=SPEC,
            observations=(self.observations[:-1],),
            continuous=np.zeros((self.steps, 0), np.float32),
            discrete=self.discrete,
            rewards=self.rewards,
            terminated=end[0],
            truncated=end[1],
            starts=np.zeros(1, np.int64),
            final_observations=(self.observations[-1:],),
            from_start=np.ones(1, np.bool_),
        )


class Game:
    """CartPole with its limit, and a policy that plays it."""

    def __init__(self, seed: int) -> None:
        self._environment = gymnasium.make(ENVIRONMENT, max_episode_steps=STEP_LIMIT)
        self._rng = np.random.default_rng(seed)
        self._seed: int | None = seed

    def play(self, policy: Policy) -> Episode:
        """Play one episode."""
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        observations, discrete, log_probs, rewards = [observation], [], [], []
        ended = False
        while not ended:
            acted = policy.act([observation[None]], None, None, self._rng)
            observation, reward, terminated, truncated, _ = self._environment.step(int(acted.discrete[0, 0]))
            observations.append(observation)
            discrete.append(acted.discrete[0])
            log_probs.append(acted.log_probs[0])
            rewards.append(reward)
            ended = terminated or truncated
        return Episode(
            np.stack(observations), np.stack(discrete), np.stack(log_probs), np.array(rewards, np.float32), terminated
        )


def policy_of(algorithm: Any) -> Policy:
    """Return a policy with the present weights of an algorithm."""
    policy = POLICIES.policy(SPEC, algorithm.config.network_settings)
    policy.load(algorithm.flat_weights())
    return policy


def learn(config: dict[str, Any], episodes: int, label: str, seed: int) -> tuple[Algorithm, list[float]]:
    """Play `episodes` episodes with one update after each; return the learner and the return of each episode."""
    torch.manual_seed(seed)
    learner = build_algorithm(PPOConfig.model_validate(config), SPEC, CPU, seed, Demonstrations({}))
    game, returns, steps = Game(seed), list[float](), 0
    with progress(episodes, label, returns) as bar:
        for number in range(episodes):
            episode = game.play(policy_of(learner))
            steps += episode.steps
            learner.update(episode.rollout(number, learner.version), steps)
            returns.append(float(episode.rewards.sum()))
            bar.update(1)
    return learner, returns


def fit(config: dict[str, Any], seed: int) -> tuple[list[int], list[float]]:
    """Clone; return the gradient steps of the measurements, and the mean return of each."""
    parsed = CloneConfig.model_validate(config)
    cloning, _, _ = build_demonstrated(parsed, SPEC.name, CPU, seed, Demonstrations({}))
    game, steps, returns = Game(seed), list[int](), list[float]()
    with progress(CLONE_STEPS, "Cloning", returns) as bar:
        for done in range(CLONE_INTERVAL, CLONE_STEPS + 1, CLONE_INTERVAL):
            cloning.iterate(CLONE_INTERVAL)
            policy = policy_of(cloning)
            returns.append(fmean(game.play(policy).rewards.sum() for _ in range(CLONE_EPISODES)))
            steps.append(done)
            bar.update(CLONE_INTERVAL)
    return steps, returns


def progress(length: int, label: str, returns: list[float]) -> Any:
    """Show the progress, and the mean of the last returns."""

    def shown(_: Any) -> str:
        return f"mean return of the last {WINDOW}: {fmean(returns[-WINDOW:]):.1f}" if returns else ""

    return click.progressbar(length=length, label=f"{label:<8}", item_show_func=shown)


def draw(path: Path, title: str, across: str, x: list[int], returns: list[float], expert: float) -> None:
    """Write a picture of returns, with their mean over ten, and the expert's for comparison."""
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.axhline(expert, color="tab:green", linestyle="--", linewidth=1, label="expert's episode")
    axes.plot(x, returns, color="tab:blue", alpha=0.35, linewidth=1, label="return")
    means = np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid")
    axes.plot(x[WINDOW - 1 :], means, color="tab:blue", linewidth=2, label=f"mean of the last {WINDOW}")
    axes.set(title=title, xlabel=across, ylabel="return", xlim=(0, x[-1]), ylim=(0, STEP_LIMIT * 1.05))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def experiment(folder: Path, seed: int, say: Callable[[str], None] = click.echo) -> dict[str, list[float]]:
    """Run all parts; write demonstrations and pictures to the folder. Return the returns of each part."""
    folder.mkdir(parents=True, exist_ok=True)
    expert, expert_returns = learn(EXPERT, EXPERT_EPISODES, "Expert", seed)
    trajectory = Game(seed + 1).play(policy_of(expert)).demonstration()
    write(trajectory, folder / "trajectory.npz")
    write(trajectory.subsample(min(PAIRS, trajectory.steps), seed), folder / "pairs.npz")
    best = float(trajectory.returns[0])
    say(f"The expert's episode has a return of {best:.0f}; its choices: {inspect(trajectory).discrete[0]}.")

    steps, clone_returns = fit(clone(folder / "pairs.npz"), seed)
    _, gail_returns = learn(imitator(folder / "pairs.npz"), GAIL_EPISODES, "GAIL", seed + 2)
    draw(
        folder / "cloning.png",
        f"Behavioral cloning of {PAIRS} decisions on CartPole",
        "gradient steps",
        steps,
        clone_returns,
        best,
    )
    episodes = list(range(1, GAIL_EPISODES + 1))
    draw(folder / "gail.png", f"GAIL from {PAIRS} decisions on CartPole", "episodes", episodes, gail_returns, best)
    for name, returns in (("Cloning", clone_returns), ("GAIL", gail_returns)):
        say(f"{name}: a mean return of {fmean(returns[-WINDOW:]):.1f} at the end.")
    say(f"Pictures and demonstrations are in {folder}.")
    return {"expert": expert_returns, "clone": clone_returns, "gail": gail_returns}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "demo" / "imitation")
    arguments = parser.parse_args()
    mpl.use("Agg")
    torch.set_num_threads(1)
    experiment(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()
