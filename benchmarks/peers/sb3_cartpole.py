"""Stable-Baselines3's PPO on CartPole-v1, as a program of its own. Imports nothing of Ludus.

    python sb3_cartpole.py dummy|subproc

The hyperparameters of `server/config/presets/cartpole.yaml`, 8 environments, 100,000 steps, one thread. Prints one line
of JSON: the seconds of imports, of making environments and model, and of `learn`.
"""

import json
import sys
import time

STEPS, ENVIRONMENTS, ROLLOUT = 100_000, 8, 1_024


def main() -> None:
    """Train."""
    began = time.perf_counter()
    import torch  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # noqa: PLC0415

    torch.set_num_threads(1)
    imported = time.perf_counter()
    vector = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[sys.argv[1]]
    environments = make_vec_env("CartPole-v1", ENVIRONMENTS, seed=1, vec_env_cls=vector)
    model = PPO(
        "MlpPolicy",
        environments,
        n_steps=ROLLOUT // ENVIRONMENTS,
        batch_size=128,
        n_epochs=8,
        learning_rate=lambda left: left * 1e-3,
        ent_coef=5e-3,
        clip_range=0.2,
        gae_lambda=0.95,
        gamma=0.98,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.SiLU},
        seed=1,
        device="cpu",
    )
    made = time.perf_counter()
    model.learn(STEPS)
    learned = time.perf_counter()
    environments.close()
    print(json.dumps({"imports": imported - began, "making": made - imported, "learn": learned - made}))


if __name__ == "__main__":  # the processes of SubprocVecEnv import this file
    main()
