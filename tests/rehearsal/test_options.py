"""What `python -m rehearsal run` makes of its options."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.cli import options
from rehearsal.deployment.state import Refused, Settings


def checked(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "orchestrators": "batch,eks",
        "nodes": 4,
        "processes_per_node": None,
        "instance_type": "trn1.32xlarge",
        "containers": False,
        "addresses": "127.0.0",
        "path": "",
    }
    return options.check(**{**given, **changes})


@pytest.mark.parametrize(
    ("orchestrators", "workloads"),
    [
        ("batch", ("all-reduce", "llama-tiny")),
        ("eks", ("mnist", "bert-tiny")),
        ("both", ("all-reduce", "llama-tiny", "mnist", "bert-tiny")),
        ("eks, batch", ("all-reduce", "llama-tiny", "mnist", "bert-tiny")),
    ],
)
def test_each_half_has_its_workloads(orchestrators: str, workloads: tuple[str, ...]) -> None:
    assert checked(orchestrators=orchestrators).workloads == workloads


def test_a_visitor_is_told_the_processes_of_every_workload_by_one_number() -> None:
    settings = options.for_visitors(checked())

    assert set(settings.processes_of.values()) == {2}


def test_the_quick_one_is_an_all_reduce_on_two_nodes_of_batch() -> None:
    settings = checked(quick=True, orchestrators=None, nodes=None)

    assert (settings.orchestrators, settings.workloads) == (("batch",), ("all-reduce",))
    assert (settings.nodes, checked(nodes=None).nodes) == (2, 4)


def test_faults_alone_need_no_cluster() -> None:
    settings = checked(orchestrators=None, faults=["all"])

    assert (settings.orchestrators, settings.workloads) == (("batch",), ("all-reduce",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"orchestrators": "slurm"}, "'slurm' is unknown"),
        ({"orchestrators": "bach"}, "did you mean 'batch'"),
        ({"orchestrators": "batch", "workloads": ["mnist"]}, "--workload mnist is not rehearsed"),
        ({"orchestrators": "eks", "faults": ["all"]}, "--orchestrators batch"),
        ({"orchestrators": "eks", "containers": True}, "give --orchestrators batch"),
        ({"quick": True, "faults": ["all"], "orchestrators": None}, "--quick is an all-reduce"),
        ({"parameters": ["max-steps"]}, "has no value"),
        ({"parameters": ["colour=red"]}, "none of all-reduce, llama-tiny"),
        ({"orchestrators": "eks", "nodes": 1}, "--nodes 4"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        checked(**changes)
