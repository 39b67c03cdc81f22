"""Pure tensor mathematics: no state, no randomness, no I/O; every function is covered by analytic tests.

Dimensions: `N` steps in the order of a rollout, `B` segments (or rows of a batch), `S` reward signals,
`C` continuous columns, `D` discrete branches, `M` choices of all branches together.
"""
