"""The configuration of a run as frozen models, without I/O. Start at `ludus.config.run`.

`server.config` makes a `RunConfig` from a document; `RunConfig.model_dump(mode="json")` is stored with the run.
"""
