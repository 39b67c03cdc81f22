"""Deep Q-learning."""

from worker.learning.plugins.dqn.algorithm import DQN as DQN
