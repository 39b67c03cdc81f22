"""A client that openapi-python-client makes of the description, in a story: queue a run, read it, end it."""

import importlib
import json
import pkgutil
import sys

import generated
from generated import Client
from generated.api.runs import cancel_run, create_run, get_run
from generated.models import RunCreate

for module in pkgutil.walk_packages(generated.__path__, "generated."):
    importlib.import_module(module.name)
client = Client(base_url=sys.argv[1])
body = RunCreate.from_dict({"config": {"behaviors": {"CartPole": {}}}, "name": "generated"})
made = create_run.sync(client=client, body=body, idempotency_key="generated-1")
present = get_run.sync(run=made.id, client=client)
ended = cancel_run.sync(run=made.id, client=client)
sys.stdout.write(json.dumps([present.name, ended.state]))
