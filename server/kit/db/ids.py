"""Ids that sort by the time of their creation: a prefix and a ULID in lower case, for instance `run_01k6x3...`.

48 bits of milliseconds since 1970, then 80 random bits, in Crockford's base 32 (https://github.com/ulid/spec). Digits
and lower-case letters sort alike in every collation, so a database whose locale isn't C orders them by time too.
"""

import secrets
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 26
"""Characters after the prefix and its underscore."""


def new_id(prefix: str) -> str:
    """Return a new id. `prefix` names the kind of thing: `run`, `ckpt`."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return prefix + "_" + "".join(ALPHABET[number >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))
