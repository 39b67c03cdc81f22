"""Plug-ins that come with Ludus: what learns (their configurations are in `ludus.config.plugins`)."""
