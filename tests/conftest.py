"""What holds for every test."""

import gc
import signal

import pytest
from hypothesis import settings

from tests.support.limits import scaled

# How long an example takes says nothing where two tests share the cores.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# A script that starts tests in its background has them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules and models of AWS are nearly a million objects that stay. With the usual thresholds,
# looking through them takes half of the processor time of a test that makes many more (moto's do).
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test as many times its time-out as this machine may be slow."""
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = scaled(float(marker.args[0]) if marker is not None else usual)
        item.add_marker(pytest.mark.timeout(limit), append=False)
