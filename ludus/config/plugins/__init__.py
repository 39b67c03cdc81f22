"""Plug-ins that come with Ludus: what collectors and the control plane need of them."""
