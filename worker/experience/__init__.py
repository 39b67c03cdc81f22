"""Experience: steps in shared memory, the segments that are made of them, and what travels between collectors and
learner.

Linux only (`memfd_create`, descriptors over Unix sockets). Dimensions used in this package: `N` steps, `B` segments,
`C` continuous actions, `D` discrete branches, `M` choices of all branches together.
"""
