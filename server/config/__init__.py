"""Documents that configure a run: reads, checks, resolves and upgrades them. `ludus.config` has the models.

A document (`document.parse_document`: YAML or JSON in ML-Agents' format) is resolved (`resolution.resolve`: defaults
filled in, everything checked) into a `RunConfig`. `resolution.review` also returns warnings about legal configurations
that are probably not meant.
"""
