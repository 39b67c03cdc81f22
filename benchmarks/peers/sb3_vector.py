"""Stable-Baselines3's PPO on CartPole-v1 with many environments in its own process. Imports nothing of Ludus.

    python sb3_vector.py [--envs 64] [--steps 131072] [--buffer 2048] [--batch 256] [--epochs 4] [--alone]

The hyperparameters of `benchmarks/vector.py`, `DummyVecEnv`, one thread. Prints one line of JSON: the steps per second
of `learn`, and its last mean return; with `--alone` those of the environments under random actions, without learning.
"""

import argparse
import json
import time


def main() -> None:
    """Train, or step the environments alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("envs", 64), ("steps", 131_072), ("buffer", 2_048), ("batch", 256), ("epochs", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()

    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

    torch.set_num_threads(1)
    environments = make_vec_env("CartPole-v1", options.envs, seed=1)
    if options.alone:
        actions = np.random.default_rng(1).integers(0, 2, (options.steps // options.envs, options.envs))
        environments.reset()
        began = time.perf_counter()
        for action in actions:
            environments.step(action)
        print(json.dumps({"rate": actions.size / (time.perf_counter() - began)}))
        return
    model = PPO(
        "MlpPolicy",
        environments,
        n_steps=options.buffer // options.envs,
        batch_size=options.batch,
        n_epochs=options.epochs,
        learning_rate=3e-4,
        ent_coef=0.0,
        clip_range=0.2,
        gae_lambda=0.95,
        gamma=0.99,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=1,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(options.steps)
    seconds = time.perf_counter() - began
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    print(json.dumps({"rate": model.num_timesteps / seconds, "return": float(np.mean(returns)) if returns else None}))


if __name__ == "__main__":
    main()
