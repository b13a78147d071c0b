"""Decisions of the emulated cluster without effects: patches, selectors, quantities, messages."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.volcano_jobs import job
from trainium_emulators.kubernetes.pod_environment import (
    CreateContainerConfigError,
    container_command,
    container_environment,
)
from trainium_emulators.kubernetes.quantities import quantity
from trainium_emulators.kubernetes.requests import merged, strategic_merged
from trainium_emulators.kubernetes.resources import NAMESPACE, POD
from trainium_emulators.kubernetes.store import Store, matches
from trainium_emulators.kubernetes.volcano_rules import action_for
from trainium_emulators.kubernetes.volcano_scheduler import placed


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        # RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_rfc(base: Any, patch: Any, result: Any) -> None:
    assert merged(base, patch) == result


def test_strategic_patch_merges_lists_by_their_key() -> None:
    base = {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}]}
    patch = {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
        "containers": [
            {"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "$patch": "delete"}]},
            {"name": "b", "args": ["replaced", "whole"]},
        ],
    }

    assert strategic_merged(base, patch) == {
        "containers": [
            {"name": "a", "image": "1", "env": [{"name": "Y", "value": "2"}]},
            {"name": "b", "args": ["replaced", "whole"]},
        ]
    }


@pytest.mark.parametrize(
    ("labels", "fields", "expected"),
    [
        ("app==a,tier!=x", "", True),
        ("app in (b, c)", "", False),
        ("app notin (b,c),app", "", True),
        ("!app", "", False),
        ("", "metadata.name=one,status.phase!=Failed", True),
        ("", "spec.nodeName=", True),
    ],
)
def test_selectors_are_parsed_like_kubernetes(labels: str, fields: str, expected: bool) -> None:
    entry = {"metadata": {"name": "one", "labels": {"app": "a"}}, "status": {"phase": "Running"}}

    assert matches(entry, labels=labels, fields=fields) is expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", Fraction(1, 2)), ("1Gi", 2**30), ("1.5k", 1500), (16, 16)],
)
def test_quantities_are_parsed_with_units(text: str | int, number: Fraction) -> None:
    assert quantity(text) == number


def test_downward_api_resolves_only_pod_fields(tmp_path: Path) -> None:
    def environment(path: str) -> dict[str, str]:
        variable = {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        pod = {
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"a/b": "c"}},
            "spec": {"containers": [{"name": "x", "env": [variable]}], "nodeName": "node-1"},
        }
        return container_environment(Store(), pod, tmp_path)

    found = [environment(path)["X"] for path in ("spec.nodeName", "metadata.annotations['a/b']")]
    assert found == ["node-1", "c"]
    with pytest.raises(CreateContainerConfigError, match=r"no spec\.hostname"):
        environment("spec.hostname")


def test_claim_becomes_folder_and_addresses_become_pods(tmp_path: Path) -> None:
    pod = {
        "metadata": {"namespace": "n"},
        "status": {"podIP": "127.0.0.9"},
        "spec": {
            "containers": [
                {
                    "command": ["serve", "--dir=/fsx/runs", "/fsxother", "--host=0.0.0.0"],
                    "volumeMounts": [{"name": "v", "mountPath": "/fsx"}],
                }
            ],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "lustre"}}],
        },
    }

    words = container_command(pod, {}, tmp_path)

    assert words == ["serve", f"--dir={tmp_path}/n/lustre/runs", "/fsxother", "--host=127.0.0.9"]


def test_task_policies_precede_job_policies() -> None:
    manifest = job("x", [])
    manifest["spec"]["tasks"][0]["policies"] = [{"event": "PodFailed", "action": "RestartJob"}]

    assert action_for(manifest, task="node-0", event="PodFailed", exit_code=1) == ("RestartJob", 0)


def test_whole_node_pods_get_one_schedulable_node_each() -> None:
    chips = {"aws.amazon.com/neuron": "16"}
    pod = {"spec": {"containers": [{"resources": {"limits": chips}}]}}
    nodes = [
        {"metadata": {"name": name}, "spec": {"unschedulable": name == "cordoned"},
         "status": {"allocatable": {**chips, **changes}}}
        for name, changes in (
            ("cordoned", {}), ("lame", {"aws.amazon.com/neuron": "15"}), ("a", {}), ("b", {}),
        )
    ]  # fmt: skip

    assert placed([pod] * 2, nodes, {}) == ["a", "b"]
    assert placed([pod] * 3, nodes, {}) == ["a", "b"]


def test_deletion_ends_with_grace_period_that_can_only_be_shortened() -> None:
    store = Store()
    store.create(NAMESPACE, "", {"metadata": {"name": "n"}})
    store.create(POD, "n", {"metadata": {"name": "p"}, "spec": {"nodeName": "a"}})
    begin = datetime.now(UTC)

    left = []
    for grace_s in (600, 900, 60):
        metadata = store.delete(POD, "n", "p", grace_s=grace_s)["metadata"]
        left.append(datetime.fromisoformat(metadata["deletionTimestamp"]) - begin)
        assert metadata["deletionGracePeriodSeconds"] == min(grace_s, 600)

    # Timestamps are in whole seconds.
    assert [each.total_seconds() for each in left] == pytest.approx([600, 600, 60], abs=20)
