"""The base of all features: database, errors, settings, queue, artifacts, HTTP helpers. Imports no feature."""
