"""Runs are deleted, with all that hangs on them, unless something outside them needs them."""
