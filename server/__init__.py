"""The control plane and system of record: API, gateway, steward, and `ludus up`. Never imports torch."""
