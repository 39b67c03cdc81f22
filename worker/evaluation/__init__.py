"""Evaluates frozen policies: in matches against each other (`match`), or alone (`evaluate`)."""
