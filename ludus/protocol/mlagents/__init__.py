"""Generated stubs of ML-Agents' messages, as far as its recordings need them. Sources: `proto/mlagents`."""
