"""Does a checkpoint hold all that the next update depends on? Tried out on a user's own run, on the CPU.

A checkpoint is loaded, and learns from a few rounds of made-up experience: once in one go, and once with a checkpoint
and a fresh process in the middle. Both must end with the same bits, row by row of docs/resume.md. What collectors and
simulators bring back is no part of this: `tests/worker/trainer/test_exact_resume.py` proves it.
"""
