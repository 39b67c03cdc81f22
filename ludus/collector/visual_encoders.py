"""The visual encoders by name. Client commands offer them as choices, and start without numpy."""

from collections.abc import Mapping

MINIMUM_SIZES: Mapping[str, int] = {"fully_connected": 1, "match3": 5, "resnet": 15, "simple": 20, "nature_cnn": 36}
"""Visual encoders (`network_settings.vis_encode_type`), and the least height and width of a picture for each."""
DEFAULT_ENCODER = "simple"
"""The encoder of test servers, which have no configuration: the one that runs have by default."""
