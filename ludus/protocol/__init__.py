"""The wire format `ludus.v1`: generated stubs, the codec between messages and arrays, TLS and tickets."""
