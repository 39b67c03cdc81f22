"""A trainer and a reward signal for Ludus: `trainer_type: a2c`, `reward_signals: {effort: {}}`."""
