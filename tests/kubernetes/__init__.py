"""The manifests of deploy/kubernetes: rendered as users do, checked against schemas and against Ludus itself."""
