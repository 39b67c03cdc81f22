"""Everything that is written by hand because it is faster than torch's general way, and only that.

The algorithms' scalar losses and autograd are the definition; what is here must give the same numbers
(`tests/worker/learning/fast`). `switch` says which cases are covered and turns all of it off; ADR 10 has the
measurement, and the rule when to delete this package.

    adam            Adam over all weights as one vector: a single fused call. Used everywhere, with autograd too
    dense           activations that a pass keeps, and the gradient of hidden layers
    ppo             the gradient of PPO's loss for MLPs
    sac             the gradient of SAC's loss for MLPs
    critics         SAC's Q1, Q2 and V as one stack of weights: one batched product for all three
"""
