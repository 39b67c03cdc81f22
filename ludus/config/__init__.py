"""The configuration of a run as frozen models, without I/O. Start at `ludus.config.run`.

`RunConfig.model_dump(mode="json")` is stored with the run, and `RunConfig.model_validate(stored)` loads it again.
`server.config` makes a `RunConfig` from a document.
"""
