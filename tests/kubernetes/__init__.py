"""The manifests of deploy/kubernetes: rendered as users render them, checked against schemas and against Ludus itself."""
