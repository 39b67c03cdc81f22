"""Environments of other libraries as simulators. Each module needs the library that it adapts."""
