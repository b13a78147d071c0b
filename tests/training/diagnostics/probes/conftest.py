"""Simulated nodes for probes."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.llama.conftest import CONTEXT
from tests.training.s3_server import REGION, s3_client, s3_server
from training.core.contract import DeviceKind
from training.core.host import Host
from training.diagnostics.probes import ProbedNode, VerifyResult
from training.storage import LocalObjects, open_objects

BUCKET = "probed"
MakeNode = Callable[..., ProbedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Return a function that simulates a trn1.32xlarge with its files below ``tmp_path``."""

    def make(
        *,
        env: dict[str, str] | None = None,
        checks: dict[str, VerifyResult] | None = None,
        num_ranks: int = 32,
        memlock: int = resource.RLIM_INFINITY,
        **context: Any,
    ) -> ProbedNode:
        return ProbedNode(
            context=replace(
                CONTEXT,
                **{
                    "device": DeviceKind.XLA,
                    "instance_type": "trn1.32xlarge",
                    "neuron_release": "2.28.0",
                    "processes_per_node": 32,
                    "bucket": "b",
                    "region": "us-west-2",
                    **context,
                },
            ),
            num_ranks=num_ranks,
            hang_limit_s=600,
            env=env or {},
            storage=LocalObjects(tmp_path / "storage"),
            host=Host(
                root=tmp_path,
                fi_info=None,
                limits=lambda what: (
                    (memlock, memlock) if what == resource.RLIMIT_MEMLOCK else (2**20, 2**20)
                ),
            ),
            root=tmp_path,
            checks=checks or {},
        )

    return make


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server(BUCKET) as url:
        yield url


@pytest.fixture
def stored_node(make_node: MakeNode, s3_url: str) -> ProbedNode:
    """A node with moto's bucket."""
    node = make_node(bucket=BUCKET, region=REGION, endpoint_url=s3_url)
    storage = open_objects(f"s3://{BUCKET}", region=REGION, endpoint_url=s3_url)
    return replace(node, storage=storage, s3=lambda: s3_client(s3_url))


def write(root: Path, path: str, text: str = "") -> Path:
    """Write a file of the simulated machine, and return its path."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file
