"""Processes that tests start find this instead of rich, which structlog imports wherever development has installed it.

It takes a quarter of what a collector imports, and no process of Ludus needs it.
"""

raise ImportError("rich is hidden from the processes of tests (tests/without)")
