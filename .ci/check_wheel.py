"""Check the wheel that users install: it holds `ludus` alone, and works in an environment that holds nothing else."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLLECT_BYTES = 150_000_000
"""Most bytes of `ludus[collect]` with all that it needs, as installed and before any module is compiled."""

PROGRAM = """
import sys
import ludus.sdk, ludus.client, ludus.protocol.spec, ludus.protocol.codec, ludus.demonstrations
heavy = {"torch", "fastapi", "sqlalchemy", "celery", "server", "worker", "pydantic"} & set(sys.modules)
sys.exit(f"the SDK imported {sorted(heavy)}" if heavy else 0)
"""

GAME = """
import subprocess, sys
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, Simulation, connect

class Game(Simulation):
    behaviors = (BehaviorSpec("Game", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))),)

    def reset(self, builder, start):
        builder.request_decision(0, [0.0])

    def step(self, builder, actions):
        builder.end_episode(0, [0.0], 1.0)
        builder.request_decision(0, [0.0])
"""

PLAYED = f"""{GAME}
command = [sys.executable, "-m", "ludus.cli", "fake-server", "--port", "0", "--steps", "5", "--streams", "1"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
try:
    address = server.stdout.readline().split()[-1]
    ending = connect(Game(), run="game", server=address, connect_timeout_seconds=10.0)
    told = server.stdout.read()
    sys.exit(0 if ending.finished and server.wait(30) == 0 else told)
finally:
    server.kill()  # it would keep the output open of which the caller waits for the end
"""

CLIENT = f"""{GAME}
from ludus.sdk import SimulatorError
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
try:
    sys.exit(0 if connect(Game(), run=given["--run"], server=given["--server"]).finished else 1)
except SimulatorError as error:
    sys.exit(str(error))
"""

COLLECTING = """
import sys
import numpy as np
import ludus.cli.collect, ludus.collector.edge
from ludus.collector.policy import ActingPolicy
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec

spec = BehaviorSpec("Game", (ObservationSpec((4,)),), ActionSpec(2, (3,)))
policy = ActingPolicy(spec, NetworkSettings(hidden_units=32))
policy.load(np.zeros(policy.flat_size, np.float32))
heavy = {"torch", "fastapi", "sqlalchemy", "celery", "server", "worker"} & set(sys.modules)
sys.exit(f"an edge collector imported {sorted(heavy)}" if heavy else 0)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from the repository, so that only the installed package is found."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_contents(wheel: Path) -> None:
    """Refuse a wheel that holds a package other than `ludus`, or lacks the stubs and the typing marker."""
    names = zipfile.ZipFile(wheel).namelist()
    strangers = {name for name in names if not name.startswith(("ludus/", "ludus-"))}
    if strangers:
        sys.exit(f"the wheel holds more than `ludus`: {sorted(strangers)[:10]}")
    protos = {f"ludus/proto/{name}" for name in ("README.md", "ludus/v1/simulation.proto", "mlagents/unity.proto")}
    missing = {"ludus/protocol/simulation_pb2.py", "ludus/py.typed", "ludus/cli/__init__.py", *protos} - set(names)
    if missing:
        sys.exit(f"the wheel lacks {sorted(missing)}")


def main() -> None:
    """Build, look inside, install, use."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("ludus-*.whl")
        check_contents(wheel)

        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        python = folder / "venv" / "bin" / "python"
        constraints = ROOT / "constraints.txt"
        run(python, *pip[1:], "install", "--constraint", constraints, wheel, cwd=folder)
        help_text = run(folder / "venv" / "bin" / "ludus", "--help", cwd=folder)
        for command in ("run", "config", "checkpoint", "simulate", "collect", "proto", "fake-server", "contract"):
            if f"\n  {command} " not in help_text:
                sys.exit(f"`ludus --help` of the light installation does not name `{command}`:\n{help_text}")
        if "\n  up " in help_text:
            sys.exit("the light installation offers `ludus up`, which it cannot run")
        run(python, "-c", PROGRAM, cwd=folder)
        run(folder / "venv" / "bin" / "ludus", "proto", folder / "contract", cwd=folder)
        for file in ("README.md", "ludus/v1/simulation.proto", "mlagents/unity.proto"):
            if (folder / "contract" / file).read_bytes() != (ROOT / "proto" / file).read_bytes():
                sys.exit(f"`ludus proto` writes another {file} than the repository has")
        run(python, "-c", PLAYED, cwd=folder)
        run(folder / "venv" / "bin" / "ludus", "contract", "--", python, "-c", CLIENT, cwd=folder)

        edge = (python, *pip[1:], "install", "--no-compile", "--constraint", constraints)
        run(*edge, "--target", folder / "edge", f"{wheel}[collect]", cwd=folder)
        size = sum(path.stat().st_size for path in (folder / "edge").rglob("*") if path.is_file())
        if size > COLLECT_BYTES:
            sys.exit(f"ludus[collect] takes {size:,} bytes, more than {COLLECT_BYTES:,}")
        run(python, "-c", f"import sys; sys.path.insert(0, {str(folder / 'edge')!r}){COLLECTING}", cwd=folder)
        sys.stdout.write(f"{wheel.name} holds `ludus` alone and works by itself; with [collect] {size / 1e6:.0f} MB\n")


if __name__ == "__main__":
    main()
