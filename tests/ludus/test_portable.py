"""What users install imports on any system, and drags no server in."""

import subprocess
import sys

POSIX_ONLY = ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "syslog")
HEAVY = ("torch", "fastapi", "sqlalchemy", "celery", "pydantic", "uvicorn", "structlog", "alembic")
MODULES = (
    "ludus",
    "ludus.child_process",
    "ludus.client",
    "ludus.sdk",
    "ludus.cli",
    "ludus.cli.run",
    "ludus.cli.simulate",
    "ludus.cli.simulate_process",
    "ludus.cli.unity",
    "ludus.games.builds",
    "ludus.adapters.gymnasium",
    "ludus.adapters.pettingzoo",
    "ludus.cli.play",
    "ludus.demonstrations",
)
"""From the least to the most: each imports nothing of the heavy."""

SCRIPT = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {posix_only!r}:
            raise ModuleNotFoundError(f"{{name}} is not on this system", name=name)

for name in {posix_only!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
for module in {modules!r}:
    importlib.import_module(module)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, (module, loaded)
"""


def test_the_package_imports_without_what_only_posix_has() -> None:
    script = SCRIPT.format(posix_only=POSIX_ONLY, heavy=HEAVY, modules=MODULES)

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_the_sdk_and_the_commands_need_no_games_and_no_runtime_to_be_imported() -> None:
    blocked = "for name in ('gymnasium', 'pettingzoo', 'onnxruntime'): sys.modules[name] = None"
    imported = "import ludus.sdk, ludus.cli.simulate, ludus.cli.play, ludus.play.model, ludus.play.scripted"
    script = f"import sys\n{blocked}\n{imported}"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
