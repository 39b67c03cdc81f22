"""Python games of one's own as simulators: `FILE.py[:NAME]` or `MODULE:NAME`.

NAME is a class or a function that makes one of

    a Gymnasium environment                       played by `ludus.adapters.gymnasium`
    a VectorEnv, as of `gymnasium.make_vec`       played by `ludus.adapters.vector`; it has all games of the process
    a PettingZoo game, AECEnv or ParallelEnv      played by `ludus.adapters.pettingzoo`
    a `ludus.sdk.Simulation`                as it is

Without NAME the file or module must have exactly one candidate: a function `parallel_env` or `env`, PettingZoo's
convention, or else one class of these kinds that is defined there. Gymnasium and PettingZoo are imported by the game
or not at all.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ludus.sdk.crashes import FACTORIES, GameNotMade, guarded
from ludus.sdk.seeds import EpisodeSeeds
from ludus.sdk.simulation import ResetInfo, ResumableSimulation, Simulation, SimulationWrapper
from ludus.sdk.steps import StepBuilder

KINDS: Final = "a gymnasium.Env or VectorEnv, a PettingZoo AECEnv or ParallelEnv, or a ludus.sdk.Simulation"
_OWN_NUMBER: Final = "{} makes a VectorEnv, which has as many games as it was made with"
_VECTOR: Final = ("gymnasium.vector", "VectorEnv")
_PETTINGZOO: Final = (("pettingzoo", "AECEnv"), ("pettingzoo", "ParallelEnv"))


def is_python_game(name: str) -> bool:
    """Whether a name has the form `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`."""
    path, attribute = split_name(name)
    return path.endswith(".py") or (attribute is not None and all(part.isidentifier() for part in path.split(".")))


def split_name(name: str) -> tuple[str, str | None]:
    """Split a name at its last colon, unless that belongs to the path: `C:\\games\\maze.py` -> itself, None."""
    parts = re.fullmatch(r"(.+):([^\W\d]\w*)", name)
    return (name, None) if parts is None else (parts[1], parts[2])


def make_simulation(
    name: str,
    count: int = 1,
    *,
    behavior: str | None = None,
    separate: bool = False,
    teams: Sequence[int] = (),
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Simulation:
    """Make `count` games and return them as one simulation.

    `arguments` go to the class or function. `behavior` replaces the name of the one behavior; `separate` and `teams`
    are those of `ludus.adapters.assignment.Lineup`; `seed` replaces the seed that the run gives this simulator;
    `seed_parameter` is the environment parameter that seeds episodes. Raises GameNotMade, and ValueError for spaces
    and players that have no counterpart in a behavior.
    """
    factory, title = _find(name)
    first: Any = _make(name, factory, arguments)
    if isinstance(first, Simulation):
        problem = "is a ludus.sdk.Simulation, which decides itself about its behaviors, teams and agents"
        options = {"--behavior": behavior, "--separate": separate, "--teams": teams, "--envs": count > 1}
        _refuse(f"{name} {problem}", options)
        if seed is None and seed_parameter is None:
            return first
        wrapper = _SeededResumable if isinstance(first, ResumableSimulation) else _Seeded
        return wrapper(first, seed, seed_parameter)
    single = not _is_of(first, *_PETTINGZOO)
    if single:
        options = {"--separate": separate, "--teams": teams}
        _refuse("teams are for games with several players, those of PettingZoo", options)
    if _is_of(first, _VECTOR):
        from ludus.adapters.vector import VectorSimulation  # noqa: PLC0415  the game has imported the library

        _refuse(_OWN_NUMBER.format(name), {"--envs": count > 1})
        return VectorSimulation(first, behavior or title, seed, seed_parameter)
    games = [first, *(_make(name, factory, arguments) for _ in range(count - 1))]
    if single:
        from ludus.adapters.gymnasium import EnvironmentSimulation  # noqa: PLC0415  likewise

        return EnvironmentSimulation(games, behavior or title, seed, seed_parameter)
    from ludus.adapters.assignment import Lineup  # noqa: PLC0415  likewise
    from ludus.adapters.pettingzoo import PettingZooSimulation  # noqa: PLC0415  likewise

    return PettingZooSimulation(games, title, Lineup(behavior, separate, tuple(teams)), seed, seed_parameter)


def make_vector_simulation(
    name: str,
    count: int = 1,
    *,
    autoreset: str,
    behavior: str | None = None,
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Simulation:
    """Make a VectorEnv whose episodes begin as `autoreset` says, a key of `ludus.adapters.vector.MODES`.

    The other arguments and errors are those of `make_simulation`.
    """
    factory, title = _find(name)
    envs: Any = _make(name, factory, arguments)
    if not _is_of(envs, _VECTOR):
        raise GameNotMade(f"{name} makes no VectorEnv, and begins its episodes by reset: leave out --autoreset")
    from ludus.adapters.vector import VectorSimulation  # noqa: PLC0415  the game has imported the library

    _refuse(_OWN_NUMBER.format(name), {"--envs": count > 1})
    return VectorSimulation(envs, behavior or title, seed, seed_parameter, autoreset)


def _refuse(problem: str, options: Mapping[str, object]) -> None:
    """Raise GameNotMade for the first option that was given."""
    for option, value in options.items():
        if value:
            instead = " (--count starts more processes)" if option == "--envs" else ""
            raise GameNotMade(f"{problem}: leave out {option}{instead}")


def _find(name: str) -> tuple[Callable[..., Any], str]:
    """Return the factory of a game, and the name of its behavior."""
    path, attribute = split_name(name)
    module = _import_file(path) if path.endswith(".py") else _import_module(path)
    stem = Path(path).stem if path.endswith(".py") else path.rpartition(".")[2]
    if attribute is None:
        attribute = _only_candidate(path, module)
    elif not hasattr(module, attribute):
        raise GameNotMade(f"{path} has no {attribute}; {_inventory(module)}")
    factory = getattr(module, attribute)
    if inspect.isclass(factory):
        if not _is_game_class(factory):
            raise GameNotMade(f"{attribute} in {path} is a class, but not {KINDS}; {_inventory(module)}")
    elif not callable(factory):
        raise GameNotMade(
            f"{attribute} in {path} is a {type(factory).__name__} object; name a class or a function that makes {KINDS}"
        )
    # `env`, `raw_env` and `parallel_env` say nothing about the game: the file's name does.
    return factory, stem if attribute.endswith("env") else attribute


def _import_file(path: str) -> ModuleType:
    """Execute a file as a module of its own name, its folder first on the search path, as `python FILE` has it."""
    file = Path(path).absolute()
    if not file.is_file():
        raise GameNotMade(f"there is no file {file}")
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Several games of one process execute the file once. A module of the same name that is not this file stays.
    name = file.stem
    executed = sys.modules.get(name)
    if executed is not None:
        if getattr(executed, "__file__", None) == str(file):
            return executed
        name = f"{name}_game"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up while it is executed
    try:
        guarded(path, spec.loader.exec_module, module)
    except GameNotMade:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    """Import a module, which may lie in the current folder."""
    try:
        module = guarded(name, importlib.import_module, name)
    except GameNotMade as error:
        cause = error.__cause__
        # Not a module that the game itself fails to import.
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise GameNotMade(
                f"there is no module {name} in {Path.cwd()} or elsewhere on Python's search path (PYTHONPATH); games "
                "of libraries begin with gymnasium: or pettingzoo:, files with python:"
            ) from None
        raise
    assert isinstance(module, ModuleType)
    return module


def _only_candidate(path: str, module: ModuleType) -> str:
    for factory in FACTORIES:
        if callable(getattr(module, factory, None)):
            return factory
    classes = [member for member in _members(module) if inspect.isclass(member) and _is_game_class(member)]
    candidates = [kind.__name__ for kind in classes if not inspect.isabstract(kind)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise GameNotMade(f"{path} has several games: {', '.join(candidates)}; write {path}:{candidates[0]}")
    raise GameNotMade(f"{path} defines no game, that is {KINDS}; {_inventory(module)}")


def _inventory(module: ModuleType) -> str:
    """Return a sentence about the classes and functions of a module."""
    classes = [member.__name__ for member in _members(module) if inspect.isclass(member)]
    functions = [member.__name__ for member in _members(module) if inspect.isfunction(member)]
    words = (("class", "classes", classes), ("function", "functions", functions))
    parts = [
        f"the {singular if len(names) == 1 else plural} {', '.join(names)}"
        for singular, plural, names in words
        if names
    ]
    return f"it defines {' and '.join(parts) or 'no class and no function'}"


def _members(module: ModuleType) -> list[Any]:
    """Return what was defined in a module rather than imported there."""
    return [member for member in vars(module).values() if getattr(member, "__module__", None) == module.__name__]


def _make(name: str, factory: Callable[..., Any], arguments: Mapping[str, object] | None) -> Any:
    game = guarded(name, factory, **(arguments or {}))
    if not _is_game_class(type(game)):
        raise GameNotMade(f"{name} makes a {type(game).__name__}, which is not {KINDS}")
    return game


def _is_of(game: object, *kinds: tuple[str, str]) -> bool:
    return isinstance(game, tuple(_classes(*kinds)))


def _is_game_class(kind: type) -> bool:
    return issubclass(kind, (Simulation, *_classes(*_PETTINGZOO, _VECTOR, ("gymnasium", "Env"))))


def _classes(*kinds: tuple[str, str]) -> Iterator[type]:
    """Find classes of libraries that the game has imported; no game has a class of another library."""
    return (getattr(sys.modules[library], kind) for library, kind in kinds if sys.modules.get(library) is not None)


class _Seeded(SimulationWrapper):
    """A simulation whose seed comes from the command line or from the run.

    If an environment parameter of the run has a seed, each reset is a first start with that seed.
    """

    def __init__(self, simulation: Simulation, seed: int | None, parameter: str | None) -> None:
        super().__init__(simulation)
        self._seed = seed
        self._parameter = parameter
        self._seeds = EpisodeSeeds(seed, parameter)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin again with the chosen seed. Raises SimulatorError for a parameter that can be no seed."""
        self._seeds.restart(start)  # checks the parameter, and leaves it out of the options
        named = None if self._parameter is None else start.parameters.get(self._parameter)
        if named is not None:
            start = replace(start, seed=int(named), parameters=self._seeds.options or {}, first=True)
        elif self._seed is not None:
            start = replace(start, seed=self._seed)
        self._simulation.reset(builder, start)


class _SeededResumable(_Seeded, ResumableSimulation):
    """The same for a simulation that can restore its position."""

    _simulation: ResumableSimulation

    def position(self) -> bytes:
        """Return the position of the simulation."""
        return self._simulation.position()

    def resume(self, builder: StepBuilder, start: ResetInfo, position: bytes) -> None:
        """Restore the position. It includes the generators, so that no seed is needed."""
        self._simulation.resume(builder, start, position)
