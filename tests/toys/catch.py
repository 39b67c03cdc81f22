"""Several agents in a game that a test can predict: each catches a ball that falls for five ticks."""

import random

from ludus.sdk.simulator import Actions, ActionSpec, BehaviorSpec, ObservationSpec, Simulation, Start, Turn

HEIGHT = 5
WIDTH = 5


class Catch(Simulation):
    """`agents` paddles, each below a ball of its own. Reward 1 for a catch, -1 for a miss; every tick is a decision."""

    behaviors = (BehaviorSpec("Catcher", (ObservationSpec((3,), "board"),), ActionSpec(discrete_branches=(3,))),)

    def __init__(self, agents: int = 3) -> None:
        self.agents = agents
        self.random = random.Random(0)
        self.boards: dict[int, list[int]] = {}
        self.starts: list[Start] = []
        self.closed = 0

    def reset(self, turn: Turn, start: Start) -> None:
        self.starts.append(start)
        self.boards.clear()
        for agent in range(self.agents):
            self._throw(turn, agent)

    def step(self, turn: Turn, actions: Actions) -> None:
        for action in actions:
            board = self.boards[action.agent]
            board[0] = min(max(board[0] + int(action.discrete[0]) - 1, 0), WIDTH - 1)
            board[2] -= 1
            if board[2] == 0:
                turn.end(action.agent, board, 1.0 if board[0] == board[1] else -1.0)
                self._throw(turn, action.agent)
            else:
                turn.decide(action.agent, board)

    def close(self) -> None:
        self.closed += 1

    def _throw(self, turn: Turn, agent: int) -> None:
        """Begin an episode: paddle in the middle, ball anywhere at the top."""
        self.boards[agent] = [WIDTH // 2, self.random.randrange(WIDTH), HEIGHT]
        turn.decide(agent, self.boards[agent])
