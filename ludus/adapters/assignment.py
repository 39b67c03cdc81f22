"""Assigns the players of a PettingZoo game to behaviors and teams of a run.

Players with the same observations and actions share one behavior, each in its own team, numbered in the game's order.
Players of several kinds (`adversary_0`, `adversary_1`, `agent_0`: the name without its number) get one behavior and one
team for each kind. `Lineup` changes this. Team mates also share a group, so that POCA can train them.
"""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gymnasium import spaces

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, Parts, Space
from ludus.protocol.batches import Bytes
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.values import entry, mask

PlayerId: TypeAlias = Hashable
"""The game's name of a player: usually text."""


class UnsupportedGame(ValueError):
    """A game that cannot be a simulator, or not with these options. The message has the remedy."""


@dataclass(frozen=True)
class Lineup:
    """The behaviors and teams of the players of a game."""

    behavior: str | None = None
    """Name of the one behavior. None: the game's own name."""
    separate: bool = False
    """Whether each player has its own behavior, with the player's name."""
    teams: tuple[int, ...] = ()
    """Team of each player in the game's order, or one number for all of them. Empty: as the module says."""


@dataclass(frozen=True)
class View:
    """The observations and actions of one player."""

    encoder: ObservationEncoder
    decoder: ActionDecoder
    actions: Space
    masked: bool
    """Whether observations carry their own action mask."""
    bare: bool
    """Whether the observation proper is the entry `observation` beside the mask."""

    def read(self, value: object) -> Parts:
        """Copy the observation, without the mask. Raises GameMistake."""
        return self.encoder.read(entry(value, "observation", "the observation") if self.bare else value)

    def mask(self, value: object, info: Mapping[str, object]) -> Bytes | None:
        """Return the action mask that comes with an observation, or None. Raises GameMistake."""
        allowed = entry(value, "action_mask", "the observation") if self.masked else info.get("action_mask")
        return mask(allowed, self.decoder.spec.discrete_branches)

    def is_like(self, other: "View") -> bool:
        """Whether one policy can play both players."""
        same = self.encoder.specs == other.encoder.specs and (self.masked, self.bare) == (other.masked, other.bare)
        return same and self.actions == other.actions


@dataclass(frozen=True)
class Assignment:
    """The behavior, team and group of one player."""

    index: int
    """Among the game's players."""
    view: View
    spec: BehaviorSpec
    """Its name carries the team."""
    team: int
    group: int
    """Number of the group within the game, from 1; 0 for a player without mates."""


def assign_agents(name: str, env: Any, lineup: Lineup) -> dict[PlayerId, Assignment]:
    """Return the assignment of each possible player of a game.

    Raises UnsupportedGame, and UnsupportedSpace for a space that has no counterpart in a behavior.
    """
    players: Sequence[PlayerId] | None = getattr(env, "possible_agents", None)
    if not players:
        raise UnsupportedGame(f"{name} has no list of players: give the game a fixed list `possible_agents`")
    views: dict[PlayerId, View] = {}
    for player in players:
        observations, actions, bare = env.observation_space(player), env.action_space(player), False
        masked = isinstance(observations, spaces.Dict) and "action_mask" in observations.spaces
        if masked:
            parts = {key: space for key, space in observations.spaces.items() if key != "action_mask"}
            bare = parts.keys() == {"observation"}
            observations = parts["observation"] if bare else spaces.Dict(parts)
        views[player] = View(ObservationEncoder(observations), ActionDecoder(actions), actions, masked, bare)
    behaviors = _behaviors(name, views, lineup)
    teams = _teams(name, behaviors, lineup)
    sizes = Counter(teams.values())
    groups = [team for team, size in sizes.items() if size > 1]
    return {
        player: Assignment(
            index,
            view,
            BehaviorSpec(f"{behaviors[player]}?team={teams[player]}", view.encoder.specs, view.decoder.spec),
            teams[player],
            groups.index(teams[player]) + 1 if teams[player] in groups else 0,
        )
        for index, (player, view) in enumerate(views.items())
    }


def _behaviors(name: str, views: Mapping[PlayerId, View], lineup: Lineup) -> dict[PlayerId, str]:
    """Return the behavior of each player."""
    if lineup.separate:
        if lineup.behavior is not None:
            raise UnsupportedGame("--separate names the behaviors after the players: leave out --behavior")
        return {player: str(player) for player in views}
    first = next(iter(views.values()))
    if all(view.is_like(first) for view in views.values()):
        return dict.fromkeys(views, lineup.behavior or name)
    kinds = {player: re.sub(r"_?\d+$", "", str(player)) or str(player) for player in views}
    for kind in set(kinds.values()):
        alike = [player for player in views if kinds[player] == kind]
        for player in alike[1:]:
            if not views[player].is_like(views[alike[0]]):
                raise UnsupportedGame(
                    f"the players {alike[0]} and {player} of {name} have different spaces: "
                    "give each a behavior of its own with --separate"
                )
    if lineup.behavior is not None:
        raise UnsupportedGame(
            f"{name} has players of several kinds ({', '.join(dict.fromkeys(kinds.values()))}), "
            "which give their behaviors the names: leave out --behavior"
        )
    return kinds


def _teams(name: str, behaviors: Mapping[PlayerId, str], lineup: Lineup) -> dict[PlayerId, int]:
    if len(lineup.teams) == len(behaviors):
        return dict(zip(behaviors, lineup.teams, strict=True))
    if len(lineup.teams) == 1:
        return dict.fromkeys(behaviors, lineup.teams[0])
    if lineup.teams:
        raise UnsupportedGame(
            f"--teams names {len(lineup.teams)} teams, but {name} has {len(behaviors)} players "
            f"({', '.join(map(str, behaviors))}): name one for each, or one for all"
        )
    kinds = list(dict.fromkeys(behaviors.values()))
    if len(kinds) == 1:
        return {player: index for index, player in enumerate(behaviors)}
    return {player: kinds.index(behavior) for player, behavior in behaviors.items()}
