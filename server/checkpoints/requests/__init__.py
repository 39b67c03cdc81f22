"""Requests for a checkpoint now: asked by users, carried out by the trainer, answered with the checkpoint's id."""
