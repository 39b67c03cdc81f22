"""Experience of the learner: rollouts, the replay buffer, sequences for recurrent networks, demonstrations.

Linux only (`memfd_create`, descriptors over Unix sockets). Dimensions used in this package: `N` steps, `B` segments,
`C` continuous actions, `D` discrete branches, `M` choices of all branches together.
"""
