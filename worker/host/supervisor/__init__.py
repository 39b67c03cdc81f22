"""The supervisor: the body of the Celery task. It executes one attempt of a run, and is its only writer."""
