"""The flight recorder: what sessions of simulators sent and got, as files, and what replays them."""
