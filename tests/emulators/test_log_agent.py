"""The agent of the emulated nodes behaves like Fluent Bit, with valid and invalid configuration.

The expected results were recorded: Fluent Bit 5.0.9, built from source, read the same lines below
the same paths with each of these configurations and wrote to moto.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_constructs.eks.node_logs import AGENT, node_logs
from trainium_emulators.kubernetes.log_agent import PodLog
from trainium_emulators.kubernetes.nodes import node, trainium_group
from trainium_emulators.kubernetes.resources import CONFIG_MAP, DAEMON_SET, NAMESPACE, NODE
from trainium_emulators.kubernetes.store import Store

TYPE = INSTANCE_TYPES["trn1.32xlarge"]
UID = "3f0e1c1a-5b64-4d3e-9c1a-0123456789ab"
STREAM = f"pod/gang-node-0-0/{UID}"
LINES = ('step 1: "loss" 2.5', " ", "  last")
"""As the emulated kubelet has them: a space for an empty line."""
Change = Callable[[dict[str, Any]], None]
Written = dict[str, list[str]]


@dataclass
class RecordingStream:
    """A stream that stores its lines."""

    name: str
    lines: list[str]

    def write(self, line: str) -> None:
        self.lines.append(re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line))


def input_with(**settings: Any) -> Change:
    return lambda config: config["pipeline"]["inputs"][0].update(settings)


def output_with(**settings: Any) -> Change:
    return lambda config: config["pipeline"]["outputs"][0].update(settings)


def without(part: str, name: str) -> Change:
    return lambda config: config["pipeline"][part][0].pop(name)


@pytest.fixture
def store() -> Store:
    """A cluster with the agent and one Trainium node."""
    made = Store()
    made.create(NAMESPACE, "", {"metadata": {"name": AGENT}})
    for manifest in node_logs(instance_type=TYPE.name, log_group="group", region="us-west-2"):
        made.create(made.find_kind(manifest["apiVersion"], manifest["kind"]), AGENT, manifest)
    made.create(NODE, "", node(trainium_group("nodes", TYPE), "nodes-0", "i-0"))
    return made


def written(store: Store, *, namespace: str = "trainium", on: str = "nodes-0") -> Written:
    """Return the lines of a pod that reach CloudWatch."""
    found: Written = {}

    def open_stream(region: str, group: str, name: str) -> RecordingStream:
        if (region, group) != ("us-west-2", "group"):
            raise LookupError(group)
        return RecordingStream(name=name, lines=found.setdefault(name, []))

    pod = {
        "metadata": {"namespace": namespace, "name": "gang-node-0-0", "uid": UID},
        "spec": {"nodeName": on, "containers": [{"name": "main"}]},
    }
    log = PodLog(store, pod, open_stream)
    for line in LINES:
        log.write(line)
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda config: None, {STREAM: [LINES[0], LINES[2]]}, id="as it is"),
        pytest.param(
            without("outputs", "log_key"),
            {
                STREAM: [
                    '{"time":"TIME","stream":"stdout","_p":"F","log":"step 1: \\"loss\\" 2.5"}',
                    '{"time":"TIME","stream":"stdout","_p":"F","log":""}',
                    '{"time":"TIME","stream":"stdout","_p":"F","log":"  last"}',
                ]
            },
            id="whole records",
        ),
        pytest.param(
            without("inputs", "multiline.parser"),
            {
                STREAM: [
                    'TIME stdout F step 1: "loss" 2.5',
                    "TIME stdout F ",
                    "TIME stdout F   last",
                ]
            },
            id="not parsed",
        ),
        pytest.param(input_with(path="/var/log/pods/trainium/*/*.log"), {}, id="another path"),
        pytest.param(
            input_with(tag_regex="^/var/log/containers/(?<pod>[^_]+)_(?<uid>.*)"),
            {},
            id="another regex",
        ),
        pytest.param(
            input_with(tag="<pod>/<id>"),
            {"pod/gang-node-0-0/_": [LINES[0], LINES[2]]},
            id="a group that the regex lacks",
        ),
        pytest.param(output_with(match="kube.*"), {}, id="another tag"),
        pytest.param(
            output_with(log_stream_prefix="x-"),
            {f"x-gang-node-0-0/{UID}": [LINES[0], LINES[2]]},
            id="another prefix",
        ),
        pytest.param(output_with(log_group_name="other"), {}, id="a log group that does not exist"),
    ],
)
def test_lines_follow_recorded_fluent_bit_routes(
    store: Store, change: Change, expected: Written
) -> None:
    def edit(entry: dict[str, Any]) -> None:
        config = json.loads(entry["data"]["fluent-bit.yaml"])
        change(config)
        entry["data"]["fluent-bit.yaml"] = json.dumps(config)

    store.update(CONFIG_MAP, AGENT, AGENT, edit)

    assert written(store) == expected


def test_logs_of_other_namespaces_are_not_sent(store: Store) -> None:
    assert written(store, namespace="kube-system") == {}


@pytest.mark.parametrize("part", ["nodeSelector", "tolerations", "volumes"])
def test_node_without_log_agent_sends_nothing(store: Store, part: str) -> None:
    wrong: dict[str, Any] = {"nodeSelector": {"a": "b"}, "tolerations": [], "volumes": None}

    def edit(entry: dict[str, Any]) -> None:
        spec = entry["spec"]["template"]["spec"]
        if part == "volumes":
            next(v for v in spec["volumes"] if v["name"] == "pods")["hostPath"]["path"] = "/logs"
        else:
            spec[part] = wrong[part]

    store.update(DAEMON_SET, AGENT, AGENT, edit)

    assert written(store) == {}
