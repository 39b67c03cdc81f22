"""Offline reinforcement learning: IQL and ReBRAC, from demonstrations alone or on with simulators."""
