"""Carriers between a collector and its learner: shared memory on the same host, a stream from anywhere else.

`connection` is what a collector sees of either. A collector of the worker has a `local` one; an edge collector has a
`stream`, or on the worker's own host the channel of its place, which a `neighbor` may take, and is local then, too.
"""
