"""The adapters that come with Ludus."""

from typing import Final

from ludus.adapters import Adapter

GYMNASIUM: Final = Adapter(
    "ludus.adapters.gymnasium:make_simulation",
    example="CartPole-v1",
    form="ID",
    modules=("gymnasium",),
    packages="gymnasium",
    has_teams=False,
)
GYMNASIUM_VEC: Final = Adapter(
    "ludus.adapters.vector:make_simulation",
    example="CartPole-v1",
    form="ID",
    modules=("gymnasium",),
    packages="gymnasium",
    has_teams=False,
    vector_factory="ludus.adapters.vector:make_simulation",
)
ENVPOOL: Final = Adapter(
    "ludus.adapters.envpool:make_simulation",
    example="Pong-v5",
    form="ID",
    modules=("gymnasium", "envpool"),
    packages="envpool gymnasium",
    has_teams=False,
    vector_factory="ludus.adapters.envpool:make_simulation",
)
GODOT: Final = Adapter("ludus.games.godot.simulation:make_simulation", example="build/game.x86_64", form="BUILD")
PETTINGZOO: Final = Adapter(
    "ludus.adapters.pettingzoo:make_simulation",
    example="classic.tictactoe_v3",
    form="MODULE",
    modules=("gymnasium", "pettingzoo"),
    packages="pettingzoo gymnasium pygame-ce",
)
PYTHON: Final = Adapter(
    "ludus.adapters.python:make_simulation",
    example="maze.py:Maze",
    form="FILE.py[:CLASS]",
    accepts="ludus.adapters.python:is_python_game",
    vector_factory="ludus.adapters.python:make_vector_simulation",
)
