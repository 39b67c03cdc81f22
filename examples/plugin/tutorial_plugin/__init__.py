"""A trainer, a reward signal and an encoder for Ludus: `trainer_type: a2c`, `effort: {}`, `vis_encode_type: tiles`."""
