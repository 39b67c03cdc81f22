"""The wire format of `ludus.v1`: generated stubs, and the codec between messages and numpy arrays."""
