"""The layers of the tiles encoder. The dense layer behind them, acting and ONNX come with Ludus."""

import torch
from torch import nn

from tutorial_plugin.encoder import TilesConfig
from worker.learning.networks.visual import convolution


def tiles(config: TilesConfig, shape: tuple[int, int, int], generator: torch.Generator) -> list[nn.Module]:
    """Return the layers for pictures of a shape (channels, height, width)."""
    of_tiles = convolution(shape[0], config.channels, config.tile, config.tile, generator)
    of_neighbours = convolution(config.channels, config.channels, 3, 1, generator)
    return [of_tiles, nn.ReLU(), of_neighbours, nn.ReLU()]
