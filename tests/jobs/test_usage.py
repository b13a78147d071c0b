"""Reports of neuron-monitor in the documented format (Neuron Monitor User Guide)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from jobs.eks.usage import PROCESS_SCRIPT, PROCESSES, parse_neuron_monitor, parse_processes

# Field names and nesting follow the guide; the numbers are made up.
RUNTIME: dict[str, Any] = {
    "pid": 4711,
    "neuron_runtime_tag": "4711",
    "error": "",
    "report": {
        "neuroncore_counters": {
            "period": 5.0,
            "neuroncores_in_use": {
                "0": {"neuroncore_utilization": 80.0},
                "1": {"neuroncore_utilization": 40.0},
            },
            "error": "",
        },
        "memory_used": {
            "period": 5.0,
            "neuron_runtime_used_bytes": {"host": 100, "neuron_device": 2 * 1024**3},
            "error": "",
        },
    },
}
SYSTEM: dict[str, Any] = {
    "vcpu_usage": {
        "period": 5.0,
        "average_usage": {"user": 20.0, "nice": 0, "system": 5.0, "idle": 75.0, "io_wait": 0},
        "error": "",
    },
    "memory_info": {
        "period": 5.0,
        "memory_total_bytes": 512 * 1024**3,
        "memory_used_bytes": 64 * 1024**3,
        "error": "",
    },
}


def report(*runtimes: dict[str, Any], **system: Any) -> str:
    return json.dumps({"neuron_runtime_data": list(runtimes), "system_data": {**SYSTEM, **system}})


def test_cores_memory_and_vcpus_are_parsed() -> None:
    usage = parse_neuron_monitor(report(RUNTIME))

    assert usage.cores_in_use == 2
    assert usage.core_percent == 60.0
    assert usage.device_bytes == 2 * 1024**3
    assert usage.cpu_percent == 25.0
    assert usage.memory_bytes == 64 * 1024**3
    assert usage.errors == ()


def test_node_without_runtime_is_idle() -> None:
    usage = parse_neuron_monitor(report())

    assert (usage.cores_in_use, usage.core_percent, usage.device_bytes) == (0, 0.0, 0)


def test_processes_of_node_are_summed() -> None:
    other = json.loads(json.dumps(RUNTIME))
    other["report"]["neuroncore_counters"]["neuroncores_in_use"] = {
        "2": {"neuroncore_utilization": 60.0}
    }
    usage = parse_neuron_monitor(report(RUNTIME, other))

    assert usage.cores_in_use == 3
    assert usage.device_bytes == 4 * 1024**3


@pytest.mark.parametrize("group", [None, {}, {"period": 5.0, "error": "no access"}])
def test_missing_group_does_not_affect_others(group: Any) -> None:
    broken = json.loads(json.dumps(RUNTIME))
    broken["report"]["neuroncore_counters"] = group
    usage = parse_neuron_monitor(report(broken, vcpu_usage=group))

    assert usage.cores_in_use == 0
    assert usage.cpu_percent is None
    assert usage.device_bytes == 2 * 1024**3
    assert usage.errors == (("no access",) if group and "error" in group else ())


@pytest.mark.parametrize("line", ["", "[]", '{"other": 1}', "usage: neuron-monitor"])
def test_invalid_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        parse_neuron_monitor(line)


def test_processes_are_matched_by_job_and_node() -> None:
    environment = {**os.environ, "TRAINIUM_JOB_ID": "usage-test", "TRAINIUM_NODE_INDEX": "3"}
    other = {**environment, "TRAINIUM_NODE_INDEX": "4"}
    busy = [sys.executable, "-c", "held = bytearray(30_000_000)\nwhile True: pass"]
    mine = subprocess.Popen(busy, env=environment)
    not_mine = subprocess.Popen(busy, env=other)
    try:
        words = [sys.executable, "-c", PROCESS_SCRIPT]
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    finally:
        mine.kill()
        not_mine.kill()
        mine.wait()
        not_mine.wait()
    usage = parse_processes(found.stdout)

    assert usage.measured_by == PROCESSES
    assert 5 < (usage.cpu_percent or 0) < 150
    assert 30e6 < (usage.memory_bytes or 0) < 60e6
