"""Several agents in a game that a test can predict: each catches a ball that falls for five ticks."""

import random

from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder

HEIGHT = 5
WIDTH = 5


class Catch(Simulation):
    """`agents` paddles, each below a ball of its own. Reward 1 for a catch, -1 for a miss; every tick is a decision."""

    behaviors = (BehaviorSpec("Catcher", (ObservationSpec((3,), "board"),), ActionSpec(discrete_branches=(3,))),)

    def __init__(self, agents: int = 3) -> None:
        self.agents = agents
        self.random = random.Random(0)
        self.boards: dict[int, list[int]] = {}
        self.starts: list[ResetInfo] = []
        self.closed = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self.starts.append(start)
        self.boards.clear()
        for agent in range(self.agents):
            self._throw(builder, agent)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            board = self.boards[action.agent]
            board[0] = min(max(board[0] + int(action.discrete[0]) - 1, 0), WIDTH - 1)
            board[2] -= 1
            if board[2] == 0:
                builder.end_episode(action.agent, board, 1.0 if board[0] == board[1] else -1.0)
                self._throw(builder, action.agent)
            else:
                builder.request_decision(action.agent, board)

    def close(self) -> None:
        self.closed += 1

    def _throw(self, builder: StepBuilder, agent: int) -> None:
        """Begin an episode: paddle in the middle, ball anywhere at the top."""
        self.boards[agent] = [WIDTH // 2, self.random.randrange(WIDTH), HEIGHT]
        builder.request_decision(agent, self.boards[agent])
