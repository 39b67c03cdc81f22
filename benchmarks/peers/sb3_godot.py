"""godot-rl with Stable-Baselines3's PPO, as a program of its own. Imports nothing of Ludus.

    python sb3_godot.py BUILD COPIES STEPS

Needs `pip install godot-rl==0.8.2` in an environment of its own: it pins older versions of Gymnasium than Ludus uses.
One thread. Prints one line of JSON: the seconds of imports, of starting the games, and of `learn`, and the mean return
of the last 100 episodes.
"""

import json
import sys
import time


def main() -> None:
    """Train."""
    build, copies, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began = time.perf_counter()
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from godot_rl.wrappers.stable_baselines_wrapper import StableBaselinesGodotEnv  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.vec_env import VecMonitor  # noqa: PLC0415

    torch.set_num_threads(1)
    imported = time.perf_counter()
    environments = VecMonitor(StableBaselinesGodotEnv(env_path=build, n_parallel=copies, show_window=True, seed=0))
    model = PPO(
        "MultiInputPolicy",
        environments,
        n_steps=1024 // environments.num_envs,
        batch_size=128,
        n_epochs=6,
        learning_rate=lambda left: left * 3e-3,
        ent_coef=5e-3,
        clip_range=0.2,
        gae_lambda=0.95,
        gamma=0.99,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [32, 32], "vf": [32, 32]}, "activation_fn": torch.nn.SiLU},
        device="cpu",  # no seed: the games of its wrapper take none from a model
    )
    made = time.perf_counter()
    model.learn(steps)
    learned = time.perf_counter()
    score = float(np.mean([episode["r"] for episode in model.ep_info_buffer or ()]))
    environments.close()
    print(json.dumps({"imports": imported - began, "making": made - imported, "learn": learned - made, "score": score}))


if __name__ == "__main__":
    main()
