"""Reads checkpoints of ML-Agents 1.1.0 (`checkpoint.pt`) into Ludus' networks and optimizers.

Such a file is `torch.save` of module name -> `state_dict`: `Policy`, `Optimizer:critic` (PPO, POCA) or the networks of
SAC, `Module:Curiosity`, `Module:GAIL` and `Module:RND-*`, the states of its Adam optimizers, and the step. It is only
ever read with `weights_only`: nothing in it is executed.

The networks are the same, so that a translation only moves numbers:

 - A tensor may be several of theirs side by side: their heads are a layer for each branch and each signal.
 - Their encodings of vectors and pictures lie in the observations' order, ours vectors first (`networks.encoder`):
   columns of the weights behind them change places.
 - A normalizer's `running_variance` is a sum of squared deviations, as our `squares`. Each vector has one, and so has
   each network; ours are one for all vectors, kept by the actor.
 - The value networks of SAC may lie on top of each other (`networks.soft_actor_critic`).

Adam's moments are as many numbers as the weights and move alike: the same translation is made once with the weights,
once with each moment. Adam numbers its parameters in the order of `Module.parameters()`, which is the order of the
state dict without buffers, and without what stands in it twice (`network_body.processors`).

What doesn't fit is never skipped: a file is refused with every name that is missing, left over or of another shape.
"""
