"""The heads of acting networks: how the columns of the last layer become actions. Each is described once.

A head has a description for continuous columns and one for discrete branches (`head`), written with operations that
numpy (`numpy_operations`), torch (`worker.learning.networks.head_operations`) and ONNX (`worker.onnx.head_operations`)
implement. Collectors, opponents, learners and exported models evaluate the same descriptions.

To add a kind of head, describe it in a file of this folder and name it in `HEADS`.
"""

from collections.abc import Mapping

from ludus.collector.heads.categorical import Categorical
from ludus.collector.heads.epsilon_greedy import EpsilonGreedy
from ludus.collector.heads.gaussian import Gaussian
from ludus.collector.heads.head import Head
from ludus.collector.heads.squashed import Squashed

HEADS: Mapping[str, Head] = {
    "gaussian": Head(Gaussian(), Categorical()),  # PPO, POCA, clones
    "squashed": Head(Squashed(), Categorical()),  # SAC
    "epsilon_greedy": Head(None, EpsilonGreedy()),  # DQN
}
"""By the name that `ActorLayout.head` and messages to collectors have."""
