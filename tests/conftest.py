"""What holds for every test."""

import gc
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from botocore.loaders import create_loader
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


# A file is one worker's, and these take longest: one that began late would be the end of the run,
# with the other workers idle. The first mostly wait.
FIRST = tuple(
    Path(__file__).parent / name
    for name in (
        "training/program/test_endings.py",
        "rehearsal/test_end_to_end.py",
        "training/launcher/test_failure_model.py",
        "training/program/snapshots/test_consistency.py",
        "rehearsal/test_transitions.py",
        "rehearsal/test_up.py",
        "rehearsal/test_program.py",
        "training/llama/test_killed_and_resumed.py",
        "programs/test_programs.py",
        "rehearsal/test_check_deploy.py",
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files, and scale every time-out to this machine."""
    place = {path: number for number, path in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = scaled(float(marker.args[0]) if marker is not None else usual)
        item.add_marker(pytest.mark.timeout(limit), append=False)


@pytest.fixture(autouse=True, scope="session")
def _models_are_read_once() -> Iterator[None]:
    """Let all sessions of this process share what they read: botocore's models are large files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield
