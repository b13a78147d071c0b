"""Settings and fixtures for every test."""

import gc
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore import regions
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser
from botocore.loaders import create_loader
from hypothesis import settings

from tests.support.limits import scaled
from trainium_emulators.nodes import events

# An example's duration is meaningless while two tests share the cores.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Tests that a script starts in the background ignore Ctrl-C, and so would their subprocesses.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imported modules and AWS's service models are nearly a million objects that are never freed. With
# the default thresholds, scanning them takes half of the CPU time of a test that creates many more
# objects, such as one with moto.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Exclude the objects created by imports from every later garbage collection."""
    gc.collect()
    gc.freeze()


# One worker runs all tests of a file, and these files take longest: if one started late, the other
# workers would be idle at the end. The first files use little CPU time.
FIRST = tuple(
    Path(__file__).parent / name
    for name in (
        "training/program/test_endings.py",
        "rehearsal/test_end_to_end.py",
        "training/launcher/test_failure_model.py",
        "training/program/snapshots/test_consistency.py",
        "training/program/snapshots/test_last_snapshot.py",
        "training/program/snapshots/test_slow_nodes.py",
        "rehearsal/test_transitions.py",
        "rehearsal/test_up.py",
        "rehearsal/test_program.py",
        "training/llama/test_killed_and_resumed.py",
        "programs/test_programs.py",
        "rehearsal/test_check_deploy.py",
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest files first, and scale every timeout to this machine."""
    place = {path: number for number, path in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = scaled(float(marker.args[0]) if marker is not None else usual)
        item.add_marker(pytest.mark.timeout(limit), append=False)


@pytest.fixture(autouse=True, scope="session")
def _emulators_print_nothing() -> Iterator[None]:
    """Keep the events of an emulator in this process out of the output that a test reads.

    A pod that an earlier test left ends at any time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "print", lambda *_, **__: None, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _models_are_read_once() -> Iterator[None]:
    """Share what botocore derives from its files among all sessions of this process.

    The service models are large files, EC2's client class has 700 methods, each session looks for
    aliases in the names of 150 events, and each client builds the tree of its service's endpoints.
    """

    def once(make: Any, key: Any) -> Any:
        """Return a function or method that makes each result once."""
        results: dict[Any, Any] = {}

        def remembered(*given: Any, **named: Any) -> Any:
            if (found := key(*given, **named)) not in results:
                results[found] = make(*given, **named)
            return results[found]

        return remembered

    shared: list[tuple[Any, str, Any]] = [
        # boto3's own clients have more methods.
        (ClientCreator, "_create_client_class", lambda own, name, _: (name, own._user_agent)),
        (ClientCreator, "_load_service_model", lambda _, *name_and_version: name_and_version),
        (EventAliaser, "_alias_event_name", lambda _, event: event),
        # The shared loader keeps the data of every service.
        (regions, "EndpointProvider", lambda *, ruleset_data, **_: id(ruleset_data)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        for owner, name, key in shared:
            patch.setattr(owner, name, once(getattr(owner, name), key))
        yield
