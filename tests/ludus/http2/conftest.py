"""Tests that are coroutines run under both event loops."""

import inspect

import pytest

from tests.ludus.http2.serving import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(lambda: pyfuncitem.obj(**values))
    return True
