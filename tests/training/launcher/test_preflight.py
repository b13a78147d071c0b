"""Preflight on simulated hosts, with the production code."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.nodes import node_on
from training.core.contract import NodeContract
from training.core.host import Host
from training.launcher.preflight import (
    Failed,
    Outcome,
    Passed,
    Skipped,
    check_devices,
    check_disk,
    check_driver,
    check_efa,
    check_files,
    check_lustre,
    check_memlock,
    check_packages,
    check_process,
    check_shared_memory,
    preflight,
    problem,
    report_lines,
)
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.instances import INSTANCE_TYPES


def make_host(
    root: Path,
    *,
    devices: int = 16,
    efa: int = 8,
    efa_of_host: int = 8,
    driver: str = "2.28.0.0",
    limit: int = resource.RLIM_INFINITY,
    pid: int = 2,
) -> Host:
    """Write the files of a Trainium host."""
    (root / "dev/infiniband").mkdir(parents=True)
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "sys/module/neuron").mkdir(parents=True)
    for index in range(devices):
        (root / f"dev/neuron{index}").touch()
    (root / "dev/neuron_monitor").touch()
    for index in range(efa):
        (root / f"dev/infiniband/uverbs{index}").touch()
    for index in range(efa_of_host):
        (root / f"sys/class/infiniband/rdmap{index}s0").mkdir()
    if driver:
        (root / "sys/module/neuron/version").write_text(f"{driver}\n")
    return Host(
        root=root,
        disk=root,
        shared_memory=root,
        fi_info=None,
        limits=lambda kind: (limit, limit),
        pid=lambda: pid,
    )


def finding(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed), outcome
    assert outcome.remedy
    return outcome.finding


TRN1 = node_on("trn1.32xlarge", num_nodes=2)
WANTED = "release 2.28.0 requires 2.26.5 or newer, below 2.29"


@pytest.mark.parametrize(
    ("name", "driver"), [("trn1.32xlarge", "2.26.5"), ("trn2.3xlarge", "2.28.0.0")]
)
def test_a_healthy_host_passes_the_hardware_checks(name: str, driver: str, tmp_path: Path) -> None:
    kind = INSTANCE_TYPES[name]
    efa = kind.num_efa_interfaces
    devices = kind.num_neuron_devices
    host = make_host(tmp_path, devices=devices, efa=efa, efa_of_host=efa, driver=driver)
    node = node_on(name, num_nodes=2 if kind.supports_multi_node else 1)

    checks = (check_devices, check_driver, check_efa, check_memlock, check_process)

    assert not [check for check in checks if isinstance(check(node, host), Failed)]
    assert isinstance(check_packages(node_on(None), host), Passed)


@pytest.mark.parametrize(
    ("check", "change", "expected"),
    [
        (check_devices, {"devices": 15}, "15 of 16 Neuron devices (/dev/neuron*)"),
        (
            check_efa,
            {"efa_of_host": 7},
            "7 of 8 EFA interfaces of the host (/sys/class/infiniband)",
        ),
        (check_efa, {"efa": 7}, "7 of 8 EFA devices of the container (/dev/infiniband/uverbs*)"),
        (check_driver, {"driver": ""}, "no Neuron driver is loaded on the host"),
        (check_driver, {"driver": "2.26.4"}, f"Neuron driver 2.26.4 on the host; {WANTED}"),
        (check_driver, {"driver": "2.29"}, f"Neuron driver 2.29 on the host; {WANTED}"),
        (check_driver, {"driver": "x"}, f"Neuron driver x on the host; {WANTED}"),
        (check_memlock, {"limit": 65536}, "memlock is limited to 65536 bytes"),
        (check_process, {"pid": 1}, "the launcher is PID 1 of the container, so its guardian"),
        (check_packages, {}, "the image has no torch_xla"),
    ],
)
def test_a_lack_is_detected(
    check: Callable[[NodeContract, Host], Outcome],
    change: dict[str, Any],
    expected: str,
    tmp_path: Path,
) -> None:
    assert finding(check(TRN1, make_host(tmp_path, **change))).startswith(expected)


def test_libfabric_must_find_every_interface(tmp_path: Path) -> None:
    tool = tmp_path / "fi_info"
    lines = "".join(f"provider: efa\\n    domain: rdmap{i}s0-rdm\\n" for i in range(7))
    tool.write_text(f"#!/bin/sh\nprintf '{lines}{lines}'\n")
    tool.chmod(0o755)

    outcome = check_efa(TRN1, replace(make_host(tmp_path), fi_info=str(tool)))

    assert finding(outcome) == "7 of 8 EFA domains that libfabric finds (fi_info -p efa)"


def test_a_hanging_tool_does_not_stop_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "fi_info"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr("training.core.host._FI_INFO_TIMEOUT_S", 0.5)
    heartbeats: list[int] = []
    host = replace(make_host(tmp_path), fi_info=str(tool), heartbeat=lambda: heartbeats.append(1))

    assert finding(check_efa(TRN1, host)).startswith("0 of 8 EFA domains")
    assert len(heartbeats) >= 2


@pytest.mark.parametrize(
    ("node", "bound"),
    [(TRN1, 65536), (node_on(None, num_nodes=1000), 1511)],
    ids=["trn1", "thousand"],
)
def test_open_files_have_a_lower_bound(node: NodeContract, bound: int, tmp_path: Path) -> None:
    lower = make_host(tmp_path / "lower", limit=bound - 1)

    assert isinstance(check_files(node, make_host(tmp_path, limit=bound)), Passed)
    assert finding(check_files(node, lower)) == f"nofile is {bound - 1}, below {bound}"


class SmallDisk(Host):
    """Return a host with the given file-system sizes."""

    __slots__ = ()

    def shared_memory_mib(self) -> int:
        return 64

    def free_disk_gib(self) -> float:
        return 1.5


@pytest.mark.parametrize("check", [check_shared_memory, check_disk])
def test_small_file_systems_suffice_for_cpus_but_not_for_chips(
    check: Callable[[NodeContract, Host], Outcome],
) -> None:
    assert isinstance(check(node_on(None), SmallDisk()), Passed)
    assert isinstance(check(TRN1, SmallDisk()), Failed)
    wanted = INSTANCE_TYPES["trn1.32xlarge"].shared_memory_mib
    assert f"below {wanted} MiB" in finding(check_shared_memory(TRN1, SmallDisk()))


def test_a_cpu_skips_hardware_and_says_why(tmp_path: Path) -> None:
    outcomes = preflight(node_on(None, num_nodes=2), Host(disk=tmp_path))

    skipped: list[Outcome] = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    assert report_lines(skipped) == [
        "preflight skipped: Neuron devices, Neuron driver, EFA, memlock (the device is the CPU)",
        "preflight skipped: Lustre (the deployment has none)",
    ]


def test_all_failures_of_a_node_become_one_verdict(tmp_path: Path) -> None:
    host = make_host(tmp_path, devices=15, driver="2.30.2")
    outcomes = [check_devices(TRN1, host), check_driver(TRN1, host)]

    verdict, of_driver = problem(TRN1, outcomes), problem(TRN1, outcomes[1:])

    assert verdict is not None and verdict.code is ExitCode.PREFLIGHT
    assert of_driver is not None and (verdict.unfit_host, of_driver.unfit_host) == (True, False)
    assert verdict.reason.startswith("node 0 failed preflight: 15 of 16 Neuron devices")
    assert "driver 2.30.2" in verdict.reason
    assert verdict.reason.count(" -> ") == 2
    assert [line.split(":")[0] for line in report_lines(outcomes)] == ["preflight FAILED"] * 2


def with_lustre(root: Path, *, kind: str) -> Host:
    """Return a host with a file system at /fsx."""
    host = make_host(root)
    (root / "proc").mkdir()
    (root / "fsx").mkdir()
    (root / "proc/mounts").write_text(f"/dev/root / ext4 rw 0 0\nfs@tcp:/abc /fsx {kind} rw 0 0\n")
    return host


def test_lustre_must_be_mounted_where_configured(tmp_path: Path) -> None:
    node = replace(node_on("trn1.32xlarge"), lustre="/fsx")

    assert check_lustre(node, with_lustre(tmp_path / "a", kind="lustre")) == Passed(
        what="Lustre at /fsx"
    )
    for host in (with_lustre(tmp_path / "b", kind="ext4"), make_host(tmp_path / "c")):
        assert finding(check_lustre(node, host)) == "no Lustre file system is mounted at /fsx"


def test_a_folder_replaces_lustre_on_a_cpu(tmp_path: Path) -> None:
    node = replace(node_on(None), lustre="/fsx")

    assert check_lustre(node, with_lustre(tmp_path, kind="ext4")) == Passed(
        what="a folder for Lustre at /fsx"
    )
    assert isinstance(check_lustre(node, make_host(tmp_path / "none")), Failed)


def test_lustre_must_be_writable(tmp_path: Path) -> None:
    node = replace(node_on("trn1.32xlarge"), lustre="/fsx")
    host = with_lustre(tmp_path, kind="lustre")
    (tmp_path / "fsx").rmdir()

    assert finding(check_lustre(node, host)) == "/fsx cannot be written to"
