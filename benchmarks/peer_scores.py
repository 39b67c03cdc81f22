"""Train Stable-Baselines3 on the tasks of `tests/learning/tasks.py` and store its scores, for comparison with ours.

    python benchmarks/peer_scores.py [--task cartpole-ppo] [--seeds 5]

Writes tests/learning/peers.json after each seed and continues after an interruption. The hyperparameters are those of
its zoo (some of ours are the same, see the table); the score is the mean return over 20 episodes with fixed seeds and
deterministic actions, as ours.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.learning.scores import EPISODES, machine_kind
from tests.learning.tasks import TASKS, Task

PEERS = Path(__file__).resolve().parent.parent / "tests" / "learning" / "peers.json"


def score_of(task: Task, seed: int) -> float:
    """Train one seed here and return its score."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from stable_baselines3 import DQN, PPO, SAC  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    from stable_baselines3.common.vec_env import VecNormalize  # noqa: PLC0415

    torch.set_num_threads(1)
    arguments = dict(task.peer)
    algorithm = {"dqn": DQN, "ppo": PPO, "sac": SAC}[arguments.pop("algorithm", "ppo")]
    environments = arguments.pop("n_envs", 1)
    normalize = arguments.pop("normalize", False)
    if linear := arguments.pop("linear", False):
        rate = arguments.pop("learning_rate")
        arguments["learning_rate"] = lambda left: left * rate
        if linear != "learning_rate":
            arguments["clip_range"] = lambda left: left * 0.2
    env: Any = make_vec_env(task.env_id, environments, seed=seed)
    if normalize:
        env = VecNormalize(env)
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    model.learn(task.steps)

    import gymnasium  # noqa: PLC0415

    one = gymnasium.make(task.env_id)
    returns = []
    for episode in range(EPISODES):
        observation, _ = one.reset(seed=1000 + episode)
        total, over = 0.0, False
        while not over:
            seen = env.normalize_obs(observation) if normalize else observation
            action, _ = model.predict(seen, deterministic=True)
            observation, reward, terminated, truncated, _ = one.step(action)
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def versions() -> str:
    """Return the measured scores."""
    import stable_baselines3  # noqa: PLC0415
    import torch  # noqa: PLC0415

    return f"Stable-Baselines3 {stable_baselines3.__version__}, torch {torch.__version__}"


def main() -> None:
    """Train the missing seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", help="name of a task; all that have a peer if not given")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    stored: dict[str, Any] = json.loads(PEERS.read_text()) if PEERS.exists() else {}
    for task in TASKS:
        if not task.peer or (options.task and task.name not in options.task):
            continue
        entry = stored.setdefault(task.name, {"scores": [], "seconds": []})
        for seed in range(len(entry["scores"]) + 1, options.seeds + 1):
            begin = time.monotonic()
            entry["scores"].append(score_of(task, seed))
            entry["seconds"].append(round(time.monotonic() - begin, 1))
            entry |= {"arguments": task.peer, "steps": task.steps}
            entry |= {"date": datetime.now(UTC).date().isoformat(), "machine": machine_kind(), "versions": versions()}
            PEERS.write_text(json.dumps(stored, indent=2) + "\n")
            print(task.name, seed, entry["scores"][-1], entry["seconds"][-1], flush=True)


if __name__ == "__main__":
    main()
