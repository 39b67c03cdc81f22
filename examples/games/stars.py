"""A game of pygame that learns from its own pictures: a basket below, a star that falls; catch ten stars.

ludus simulate python:examples/games/stars.py --run stars --envs 8     train
python examples/games/stars.py                                         play it yourself, with the arrow keys
"""

import random
from typing import Any

import gymnasium
import numpy as np
import pygame

SIZE, BASKET, STAR, STARS = 64, 13, 5, 10


class Game:
    """The game as it was before anybody trained it: `update` moves it by one frame, `draw` shows it."""

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.basket, self.caught, self.missed = SIZE // 2, 0, 0
        self.drop()

    def drop(self) -> None:
        """Let the next star fall, from anywhere."""
        self.star = pygame.Rect(self.random.randrange(SIZE - STAR), 0, STAR, STAR)

    def update(self, direction: int) -> int:
        """Move the basket by -1, 0 or 1 and the star down; return 1 for a star caught, -1 for one missed, or else 0."""
        self.basket = min(max(self.basket + 4 * direction, BASKET // 2), SIZE - 1 - BASKET // 2)
        self.star.y += 4
        if self.star.bottom < SIZE:
            return 0
        is_caught = self.star.colliderect(self.basket - BASKET // 2, SIZE - 5, BASKET, 5)
        self.caught, self.missed = self.caught + is_caught, self.missed + (not is_caught)
        self.drop()
        return 1 if is_caught else -1

    @property
    def over(self) -> bool:
        """Whether all stars have fallen."""
        return self.caught + self.missed == STARS

    def draw(self, screen: pygame.Surface) -> None:
        """Paint the night, the star and the basket."""
        screen.fill("black")
        screen.fill("gold", self.star)
        screen.fill("white", (self.basket - BASKET // 2, SIZE - 5, BASKET, 5))


class Stars(gymnasium.Env):
    """The game as an environment: the picture is the observation, the direction the action."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.screen = pygame.Surface((SIZE, SIZE))  # in memory: no window, no display

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002  Gymnasium names it
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game."""
        super().reset(seed=seed)
        self.game = Game(int(self.np_random.integers(2**31)))
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one frame."""
        reward = self.game.update(int(action) - 1)
        return self.picture(), reward, self.game.over, False, {"is_success": self.game.caught >= STARS - 1}

    def picture(self) -> np.ndarray:
        """Return the screen as (height, width, color)."""
        self.game.draw(self.screen)
        return pygame.surfarray.array3d(self.screen).transpose(1, 0, 2)


if __name__ == "__main__":
    pygame.init()
    window, clock, game = pygame.display.set_mode((SIZE * 8, SIZE * 8)), pygame.time.Clock(), Game()
    screen = pygame.Surface((SIZE, SIZE))
    while not game.over and not pygame.event.peek(pygame.QUIT):
        keys = pygame.key.get_pressed()
        game.update(keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        game.draw(screen)
        pygame.transform.scale(screen, window.get_size(), window)
        pygame.display.flip()
        clock.tick(15)
    print(f"{game.caught} of {STARS} caught")
