"""Preflight on simulated hosts, with the production code."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


def make_host(root: Path, *, devices: int = 16, efa: int = 8, driver: str = "2.28.0.0") -> Host:
    """Write the files of a Trainium host."""
    (root / "dev/infiniband").mkdir(parents=True)
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "sys/module/neuron").mkdir(parents=True)
    for index in range(devices):
        (root / f"dev/neuron{index}").touch()
    for index in range(efa):
        (root / f"dev/infiniband/uverbs{index}").touch()
        (root / f"sys/class/infiniband/rdmap{index}s0").mkdir()
    if driver:
        (root / "sys/module/neuron/version").write_text(f"{driver}\n")
    return Host(
        root=root,
        disk=root,
        shared_memory=root,
        fi_info=None,
        limits=lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    )


def limited(host: Host, soft: int) -> Host:
    return replace(host, limits=lambda kind: (soft, soft))


def finding(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed), outcome
    assert outcome.remedy
    return outcome.finding


TRN1 = node_on("trn1.32xlarge", num_nodes=2)


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_a_healthy_host_of_every_type_passes_the_hardware_checks(name: str, tmp_path: Path) -> None:
    kind = INSTANCE_TYPES[name]
    host = make_host(tmp_path, devices=kind.num_neuron_devices, efa=kind.num_efa_interfaces)
    node = node_on(name, num_nodes=2 if kind.supports_multi_node else 1)

    outcomes = [check(node, host) for check in (check_devices, check_driver, check_efa)]

    assert not [outcome for outcome in outcomes if isinstance(outcome, Failed)]


def test_a_lost_chip_is_detected(tmp_path: Path) -> None:
    outcome = check_devices(TRN1, make_host(tmp_path, devices=15))

    assert finding(outcome) == "15 of 16 Neuron devices (/dev/neuron*)"


def test_other_device_files_do_not_count(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    (tmp_path / "dev/neuron_monitor").touch()

    assert check_devices(TRN1, host) == Passed(what="16 Neuron devices")


@pytest.mark.parametrize("where", ["dev/infiniband/uverbs3", "sys/class/infiniband/rdmap3s0"])
def test_a_lost_efa_interface_is_detected(where: str, tmp_path: Path) -> None:
    host = make_host(tmp_path)
    path = tmp_path / where
    path.rmdir() if path.is_dir() else path.unlink()

    assert finding(check_efa(TRN1, host)).startswith("7 of 8 EFA ")


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
    ("driver", "fits"),
    [("2.26.4", False), ("2.26.5", True), ("2.28.0.0", True), ("2.29", False), ("x", False)],
)
def test_the_driver_must_be_in_the_releases_range(driver: str, fits: bool, tmp_path: Path) -> None:
    outcome = check_driver(TRN1, make_host(tmp_path, driver=driver))

    assert isinstance(outcome, Passed) is fits
    if not fits:
        assert "release 2.28.0 requires 2.26.5 or newer, below 2.29" in finding(outcome)


def test_a_host_without_the_driver_is_detected(tmp_path: Path) -> None:
    outcome = check_driver(TRN1, make_host(tmp_path, driver=""))

    assert finding(outcome) == "no Neuron driver is loaded on the host"


def test_limited_memlock_is_detected(tmp_path: Path) -> None:
    host = make_host(tmp_path)

    assert finding(check_memlock(TRN1, limited(host, 65536))) == "memlock is limited to 65536 bytes"
    assert isinstance(check_memlock(TRN1, host), Passed)


@pytest.mark.parametrize(
    ("node", "bound"),
    [(TRN1, 65536), (node_on(None), 512), (node_on(None, num_nodes=1000), 1511)],
    ids=["trn1", "cpu", "thousand"],
)
def test_open_files_have_a_lower_bound(node: NodeContract, bound: int, tmp_path: Path) -> None:
    host = make_host(tmp_path)

    assert isinstance(check_files(node, limited(host, bound)), Passed)
    assert finding(check_files(node, limited(host, bound - 1))) == (
        f"nofile is {bound - 1}, below {bound}"
    )


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


def test_a_missing_package_is_detected() -> None:
    assert finding(check_packages(TRN1, Host())) == "the image has no torch_xla"
    assert isinstance(check_packages(node_on(None), Host()), Passed)


def test_a_launcher_running_as_pid_1_is_found() -> None:
    assert "PID 1" in finding(check_process(TRN1, Host(pid=lambda: 1)))


def test_a_cpu_skips_hardware_and_says_why(tmp_path: Path) -> None:
    outcomes = preflight(node_on(None, num_nodes=2), Host(disk=tmp_path))

    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    assert {outcome.what for outcome in skipped} == {
        "Neuron devices",
        "Neuron driver",
        "EFA",
        "memlock",
        "Lustre",
    }
    assert {outcome.why for outcome in skipped} == {
        "the device is the CPU",
        "the deployment has none",
    }


def test_all_failures_of_a_node_become_one_verdict(tmp_path: Path) -> None:
    host = make_host(tmp_path, devices=15, driver="2.30.2")
    outcomes = [check_devices(TRN1, host), check_driver(TRN1, host)]

    verdict = problem(TRN1, outcomes)

    assert verdict is not None and verdict.code is ExitCode.PREFLIGHT
    assert verdict.reason.startswith("node 0 failed preflight: 15 of 16 Neuron devices")
    assert "driver 2.30.2" in verdict.reason
    assert verdict.reason.count(" -> ") == 2
    assert [line.split(":")[0] for line in report_lines(outcomes)] == ["preflight FAILED"] * 2


def test_a_driver_or_limit_shared_by_every_host_makes_none_unfit(tmp_path: Path) -> None:
    host = make_host(tmp_path, devices=15, driver="2.30.2")
    driver, devices = check_driver(TRN1, host), check_devices(TRN1, host)

    assert [problem(TRN1, [each]).unfit_host for each in (driver, devices)] == [False, True]  # type: ignore[union-attr]


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
    other = check_lustre(node, with_lustre(tmp_path / "b", kind="ext4"))
    none = check_lustre(node, make_host(tmp_path / "c"))
    for outcome in (other, none):
        assert isinstance(outcome, Failed)
        assert "no Lustre file system is mounted at /fsx" in outcome.finding


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

    outcome = check_lustre(node, host)

    assert isinstance(outcome, Failed)
    assert "/fsx cannot be written to" in outcome.finding
