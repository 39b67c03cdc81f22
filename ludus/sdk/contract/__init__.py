"""Tests clients of `ludus.v1`, in any language: a server that plays scenarios, and one that is driven by options.

`kit` starts a client once for each of the `scenarios` and evaluates it (`ludus contract`); `fake_server` shows each
message in words (`ludus fake-server`). Both refuse what a real server refuses (`served_stream`), with its functions.
"""
