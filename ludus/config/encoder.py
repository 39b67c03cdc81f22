"""The parent of the configurations of encoders that plug-ins add."""

from typing import ClassVar

from ludus.config.values import Section


class EncoderConfig(Section):
    """Parent of encoders of pictures: its keys are those of `network_settings.NAME`, where NAME is the plug-in's."""

    implementation: ClassVar[str] = ""
    """`module:function` that returns the layers between a picture and the dense layer that follows all encoders, as
    `layers(config, shape, generator)` with the picture's (channels, height, width) and a `torch.Generator`.
    """
    minimum_size: ClassVar[int] = 1
    """Least height and width of a picture."""
