"""The control plane and system of record: API, gateway, controller, and `ludus up`. Never imports torch."""
