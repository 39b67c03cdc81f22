"""The configuration of a run as frozen models, without I/O. Start at `server.config.run`.

A document (`document.parse_document`: YAML or JSON in ML-Agents' format) is resolved (`resolution.resolve`: defaults
filled in, everything checked) into a `run.RunConfig`. `RunConfig.model_dump(mode="json")` is stored with the run, and
`RunConfig.model_validate(stored)` loads it again. `resolution.review` also returns warnings about legal configurations
that are probably not meant.
"""
