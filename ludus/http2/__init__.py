"""gRPC over HTTP/2 for games of this machine: calls of gRPC's clients, without gRPC's core.

A game makes hundreds of small calls a second, each of which waits for the reply. There gRPC's own server takes most of
a collector's processor time (docs/adr/0018-http2-on-loopback.md). This room serves the same calls for a fifth of it.
It has no TLS and no keepalive, so it listens on loopback alone; every other port is gRPC's.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK, by the library `hpack`), and gRPC's "gRPC over HTTP2".
"""
