"""Sessions of browsers: a cookie that stands for a token, because pages must not keep tokens."""
