"""A Unity player for tests, written from the facts of ML-Agents' protocol: what a build says, hears and does wrong.

It is the other end of the Unity protocol, so nothing here uses our codec of it: only the generated messages, and the
names of metadata. `python -m tests.unity.player --help` plays as a process of its own.
"""
