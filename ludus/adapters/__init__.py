"""Environments of other libraries as simulators. `gymnasium` and `pettingzoo` need the library that they adapt."""
