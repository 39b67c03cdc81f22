"""Writes mlagents_configs.json: what ML-Agents 1.1.0 makes of configurations.

    python3.10 -m venv /tmp/mlagents && /tmp/mlagents/bin/pip install mlagents==1.1.0
    /tmp/mlagents/bin/python tests/golden/mlagents_configs.py

Needs ML-Agents and nothing of Ludus. Every file of tests/data/configs, and every document below, goes through
`mlagents-learn`'s own parser; kept is either the resolved options (`as_dict()`), or the class and message of the error.
`seeds` are the environment parameters after `EnvironmentParameterManager` gave them their seeds in a run of seed 100.
"""

import copy
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import cattr
from mlagents.trainers.environment_parameter_manager import EnvironmentParameterManager
from mlagents.trainers.learn import parse_command_line
from mlagents.trainers.settings import EnvironmentParameterSettings, RunOptions, TrainerSettings

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "data" / "configs"
TARGET = HERE / "mlagents_configs.json"
SEED = 100

DOCUMENTS = {
    "defaults of each trainer": """
behaviors:
  P: {}
  P2: {trainer_type: ppo}
  S: {trainer_type: sac}
  C: {trainer_type: poca}
""",
    "schedules are copied": """
behaviors:
  Constant: {trainer_type: ppo, hyperparameters: {learning_rate_schedule: constant}}
  Beta: {trainer_type: ppo, hyperparameters: {beta_schedule: constant}}
  Both: {trainer_type: poca, hyperparameters: {learning_rate_schedule: constant, epsilon_schedule: linear}}
  Sac: {trainer_type: sac, hyperparameters: {learning_rate_schedule: linear, steps_per_update: 10}}
""",
    "hyperparameters without a trainer": "behaviors: {A: {hyperparameters: {learning_rate: 0.001}}}",
    "a template": """
default_settings:
  trainer_type: ppo
  hyperparameters: {batch_size: 16, buffer_size: 120, learning_rate_schedule: constant}
  network_settings: {hidden_units: 64, memory: {sequence_length: 8, memory_size: 32}}
  reward_signals: {extrinsic: {gamma: 0.9}, curiosity: {strength: 0.02, encoding_size: 32}}
  even_checkpoints: true
  keep_checkpoints: 10
  self_play: {save_steps: 1000}
behaviors:
  A: {}
  B:
    hyperparameters: {batch_size: 8, learning_rate_schedule: linear}
    network_settings: {memory: null}
    self_play: null
    even_checkpoints: false
    max_steps: 1e5
  C:
    trainer_type: ppo
    reward_signals: {curiosity: {encoding_size: 64}, rnd: {encoding_size: 16}}
    self_play: {save_steps: 77, window: 3}
""",
    "a template that says little": """
default_settings: {max_steps: 1000}
behaviors:
  A: {hyperparameters: {learning_rate_schedule: constant}, reward_signals: {rnd: {}}}
""",
    "an empty template": """
default_settings: {}
behaviors:
  A: {hyperparameters: {learning_rate_schedule: constant}, reward_signals: {curiosity: {}}}
""",
    "a template of sac": """
default_settings: {trainer_type: sac, hyperparameters: {tau: 0.01}}
behaviors:
  A: {hyperparameters: {steps_per_update: 20}}
  B: {hyperparameters: {reward_signal_steps_per_update: 4.5}}
""",
    "a template of another trainer": """
default_settings: {trainer_type: ppo}
behaviors: {A: {trainer_type: sac}}
""",
    "a template that is null": """
default_settings: null
behaviors: {A: {network_settings: {memory: null}, self_play: null, behavioral_cloning: null}}
environment_parameters: null
""",
    "numbers as yaml reads them": """
behaviors:
  A:
    trainer_type: ppo
    hyperparameters: {learning_rate: 3e-4, beta: 5.0e-3, batch_size: 1_000}
    max_steps: 5e5
    summary_freq: 20000.0
  B: {max_steps: 1234.9}
""",
    "networks": """
behaviors:
  A:
    network_settings:
      normalize: true
      hidden_units: 32
      num_layers: 3
      vis_encode_type: nature_cnn
      memory: {}
      goal_conditioning_type: none
      deterministic: true
  B: {network_settings: {vis_encode_type: resnet, memory: {sequence_length: 16}}}
  C: {network_settings: {vis_encode_type: fully_connected}}
""",
    "reward signals": """
behaviors:
  A:
    reward_signals:
      curiosity: {encoding_size: 256}
      gail: {demo_path: demos/a.demo, use_actions: true, use_vail: true, encoding_size: 64}
      rnd: {network_settings: {hidden_units: 20, memory: {}}, encoding_size: 99, learning_rate: 0.01}
      extrinsic: {network_settings: {hidden_units: 3}}
""",
    "behavioral cloning": """
behaviors:
  A: {behavioral_cloning: {demo_path: demos/a.demo}}
  B:
    trainer_type: sac
    behavioral_cloning:
      {demo_path: b, strength: 0.5, steps: 100, samples_per_update: 64, num_epoch: 2, batch_size: 32}
""",
    "self-play": """
behaviors:
  A: {self_play: {}}
  B: {trainer_type: sac, self_play: {save_steps: 30}}
  C:
    trainer_type: poca
    self_play:
      save_steps: 5
      team_change: 7
      swap_steps: 0
      window: 2
      play_against_latest_model_ratio: 1.5
      initial_elo: 1000
""",
    "checkpoints": """
behaviors:
  A: {even_checkpoints: true, max_steps: 1000, keep_checkpoints: 3, checkpoint_interval: 7}
  B: {checkpoint_interval: 7, keep_checkpoints: 100}
""",
    "weights and threads": """
behaviors:
  A: {init_path: results/x/A.pt, threaded: true, time_horizon: 5, framework: tensorflow}
""",
    "samplers": """
behaviors: {A: {}}
environment_parameters:
  whole: 3
  real: 2.5
  constant: {sampler_type: constant, sampler_parameters: {value: 4}}
  uniform: {sampler_type: uniform, sampler_parameters: {min_value: 0.5, max_value: 2}}
  all_defaults: {sampler_type: uniform, sampler_parameters: {}}
  seeded: {sampler_type: gaussian, sampler_parameters: {mean: 5, st_dev: -2, seed: 12}}
  gaussian: {sampler_type: gaussian, sampler_parameters: {}}
  several: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[1, 2], [4, 5.5]]}}
  several_by_default: {sampler_type: multirangeuniform, sampler_parameters: {}}
""",
    "curricula": """
behaviors: {A: {}, B: {}}
environment_parameters:
  first: {sampler_type: uniform, sampler_parameters: {}}
  height:
    curriculum:
      - name: low
        completion_criteria:
          behavior: A
        value: 1
      - name: middle
        completion_criteria:
          {behavior: B, measure: progress, threshold: 0.25, min_lesson_length: 7, signal_smoothing: false,
           require_reset: true}
        value: {sampler_type: uniform, sampler_parameters: {min_value: 1, max_value: 3, seed: 5}}
      - {name: high, value: {sampler_type: gaussian, sampler_parameters: {mean: 4}}}
  last: {sampler_type: gaussian, sampler_parameters: {}}
  single: {curriculum: [{name: only, value: 9}]}
""",
    "criteria of the last lesson": """
behaviors: {A: {}}
environment_parameters:
  height:
    curriculum:
      - {name: low, value: 1, completion_criteria: {behavior: A, threshold: 3}}
      - {name: high, value: 2, completion_criteria: {behavior: A}}
""",
    "run-level sections": """
behaviors: {A: {}}
env_settings:
  env_path: builds/game
  env_args: [--level, 3]
  base_port: 6000
  num_envs: 8
  num_areas: 4
  timeout_wait: 300
  seed: 7
  max_lifetime_restarts: -1
  restarts_rate_limit_n: -1
  restarts_rate_limit_period_s: 120
engine_settings:
  width: 640
  height: 480
  quality_level: 1
  time_scale: 1.5
  target_frame_rate: 60
  capture_frame_rate: 0
  no_graphics: true
  no_graphics_monitor: true
checkpoint_settings:
  run_id: 12
  force: true
  inference: true
  train_model: true
  load_model: true
  resume: true
  results_dir: elsewhere
torch_settings: {device: "cuda:1"}
debug: true
""",
    "initialised from another run": """
behaviors: {A: {}}
checkpoint_settings: {run_id: second, initialize_from: first}
""",
    "refused: unknown key at the top": "behaviors: {A: {}}\ncurriculum: {}",
    "refused: unknown key of a behavior": "behaviors: {A: {output_path: x}}",
    "refused: unknown hyperparameter": "behaviors: {A: {trainer_type: ppo, hyperparameters: {tau: 0.1}}}",
    "refused: shared critic of poca": ("behaviors: {A: {trainer_type: poca, hyperparameters: {shared_critic: true}}}"),
    "refused: unknown trainer": "behaviors: {A: {trainer_type: mappo}}",
    "refused: unknown schedule": "behaviors: {A: {trainer_type: ppo, hyperparameters: {beta_schedule: cosine}}}",
    "refused: unknown encoder": "behaviors: {A: {network_settings: {vis_encode_type: default}}}",
    "refused: unknown signal": "behaviors: {A: {reward_signals: {joy: {}}}}",
    "refused: unknown key of a signal": "behaviors: {A: {reward_signals: {rnd: {demo_path: x}}}}",
    "refused: gail without a demonstration": "behaviors: {A: {reward_signals: {gail: {}}}}",
    "refused: cloning without a demonstration": "behaviors: {A: {behavioral_cloning: {}}}",
    "refused: a behavior that is null": "behaviors: {A: }",
    "refused: behaviors that are null": "behaviors: null",
    "refused: sections that are null": "behaviors: {A: {}}\nenv_settings: null",
    "refused: an odd memory": "behaviors: {A: {network_settings: {memory: {memory_size: 7}}}}",
    "refused: a memory of nothing": "behaviors: {A: {network_settings: {memory: {memory_size: 0}}}}",
    "refused: sequences longer than batches": """
behaviors:
  A: {trainer_type: ppo, hyperparameters: {batch_size: 8}, network_settings: {memory: {sequence_length: 9}}}
""",
    "refused: even checkpoints of nothing": "behaviors: {A: {even_checkpoints: true, keep_checkpoints: 0}}",
    "refused: unknown setting of the environment": "behaviors: {A: {}}\nenv_settings: {environment: x}",
    "refused: unknown setting of the engine": "behaviors: {A: {}}\nengine_settings: {fps: 1}",
    "refused: unknown setting of checkpoints": "behaviors: {A: {}}\ncheckpoint_settings: {id: x}",
    "refused: no areas": "behaviors: {A: {}}\nenv_settings: {num_areas: 0}",
    "refused: a minimum above its maximum": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: uniform, sampler_parameters: {min_value: 2, max_value: 1}}}
""",
    "refused: an interval of one value": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[1]]}}}
""",
    "refused: an interval upside down": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[2, 1]]}}}
""",
    "refused: unknown sampler": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: poisson, sampler_parameters: {}}}
""",
    "refused: a sampler without parameters": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: uniform}}
""",
    "refused: parameters without a sampler": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_parameters: {}}}
""",
    "refused: unknown parameter of a sampler": """
behaviors: {A: {}}
environment_parameters: {p: {sampler_type: uniform, sampler_parameters: {mean: 1}}}
""",
    "refused: a parameter that is text": "behaviors: {A: {}}\nenvironment_parameters: {p: heavy}",
    "refused: something beside a curriculum": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{name: a, value: 1}], value: 1}}
""",
    "refused: a lesson without an end": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{name: a, value: 1}, {name: b, value: 2}]}}
""",
    "refused: a lesson without a name": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{value: 1}]}}
""",
    "refused: a lesson without a value": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{name: a}]}}
""",
    "refused: lessons as the upgrade script writes them": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{Lesson0: {value: 1}}]}}
""",
    "refused: elo as a measure": """
behaviors: {A: {}}
environment_parameters:
  p: {curriculum: [{name: a, value: 1, completion_criteria: {behavior: A, measure: Elo}}, {name: b, value: 2}]}
""",
    "refused: criteria without a behavior": """
behaviors: {A: {}}
environment_parameters: {p: {curriculum: [{name: a, value: 1, completion_criteria: {}}, {name: b, value: 2}]}}
""",
    "refused: progress above one": """
behaviors: {A: {}}
environment_parameters:
  p:
    curriculum:
      - {name: a, value: 1, completion_criteria: {behavior: A, measure: progress, threshold: 2}}
      - {name: b, value: 2}
""",
    "refused: nothing": "",
}


def main() -> None:
    """Resolve everything, and write the file."""
    warnings.simplefilter("ignore")
    found = {"files": {}, "documents": {}}
    for path in sorted(CONFIGS.glob("*.yaml")):
        found["files"][path.name] = _resolved(path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        for name, text in DOCUMENTS.items():
            path.write_text(text, encoding="utf-8")
            found["documents"][name] = {"text": text, **_resolved(path)}
    TARGET.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")


def _resolved(path: Path) -> dict[str, Any]:
    TrainerSettings.default_override = None
    try:
        options = parse_command_line([str(path)])
    except Exception as error:  # noqa: BLE001 (whatever it raises is its answer)
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    resolved = {"options": options.as_dict()}
    if options.environment_parameters:
        resolved["seeds"] = _seeds(options)
    return json.loads(json.dumps(resolved))


def _seeds(options: RunOptions) -> dict[str, Any]:
    parameters: dict[str, EnvironmentParameterSettings] = copy.deepcopy(options.environment_parameters)
    EnvironmentParameterManager(parameters, run_seed=SEED, restore=False)
    return {
        name: [lesson["value"]["sampler_parameters"]["seed"] for lesson in cattr.unstructure(each)["curriculum"]]
        for name, each in parameters.items()
    }


if __name__ == "__main__":
    main()
