"""Decisions of the emulated cluster without effects: patches, selectors, quantities, messages."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulators.volcano_jobs import job
from trainium_emulators.kubernetes.pod_environment import (
    CreateContainerConfigError,
    container_command,
    container_environment,
    expanded,
)
from trainium_emulators.kubernetes.quantities import quantity
from trainium_emulators.kubernetes.requests import merged, strategic_merged
from trainium_emulators.kubernetes.store import Store, matches
from trainium_emulators.kubernetes.volcano_rules import action_for
from trainium_emulators.kubernetes.volcano_scheduler import placed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        # RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_rfc(base: Any, patch: Any, result: Any) -> None:
    assert merged(base, patch) == result


@given(JSON, JSON)
def test_merge_patch_is_idempotent(base: Any, patch: Any) -> None:
    once = merged(base, patch)

    assert merged(once, patch) == once


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
        ("app=a", "", True),
        ("app==a,tier!=x", "", True),
        ("app in (b, c)", "", False),
        ("app notin (b,c),app", "", True),
        ("!app", "", False),
        ("!tier", "", True),
        ("", "metadata.name=one,status.phase!=Failed", True),
        ("", "spec.nodeName=", True),
        ("", "spec.nodeName=x", False),
    ],
)
def test_selectors_are_parsed_like_kubernetes(labels: str, fields: str, expected: bool) -> None:
    entry = {"metadata": {"name": "one", "labels": {"app": "a"}}, "status": {"phase": "Running"}}

    assert matches(entry, labels=labels, fields=fields) is expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), ("500m", Fraction(1, 2)), ("1Gi", 2**30), ("1.5k", 1500), (16, 16)],
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


def test_references_expand_as_documented() -> None:
    environment = {"NAME": "value"}

    assert expanded("$(NAME) $(OTHER) $$(NAME) $NAME", environment) == (
        "value $(OTHER) $(NAME) $NAME"
    )


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


@pytest.mark.parametrize(
    ("event", "code", "action"),
    [
        ("PodFailed", 1, ("TerminateJob", 0)),
        ("PodFailed", 64, ("TerminateJob", 0)),
        ("PodFailed", 70, ("RestartJob", 0)),
        ("PodFailed", 71, ("RestartJob", 15)),
        ("PodFailed", 137, ("RestartJob", 0)),
        ("PodFailed", 143, ("RestartJob", 0)),
        ("PodEvicted", 0, ("RestartJob", 0)),
        ("TaskCompleted", 0, None),
    ],
)
def test_first_policy_that_applies_decides(
    event: str, code: int, action: tuple[str, float] | None
) -> None:
    assert action_for(job("x", []), task="node-0", event=event, exit_code=code) == action


def test_task_policies_precede_job_policies() -> None:
    manifest = job("x", [])
    manifest["spec"]["tasks"][0]["policies"] = [{"event": "PodFailed", "action": "AbortJob"}]

    assert action_for(manifest, task="node-0", event="PodFailed", exit_code=1) == ("AbortJob", 0)


@given(st.integers(1, 6), st.integers(0, 6))
def test_whole_node_pods_get_one_node_each_or_stay_unplaced(pods: int, nodes: int) -> None:
    requests = {"resources": {"limits": {"aws.amazon.com/neuron": "16"}}}
    pod = {"spec": {"containers": [requests]}}
    room = {"aws.amazon.com/neuron": "16"}
    found = placed(
        [pod] * pods,
        [
            {"metadata": {"name": f"n{i}"}, "spec": {}, "status": {"allocatable": room}}
            for i in range(nodes)
        ],
        {},
    )

    assert found == [f"n{i}" for i in range(min(pods, nodes))]
