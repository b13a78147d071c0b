"""Who builds an image on an unsuitable machine is told before it begins."""

from __future__ import annotations

from pathlib import Path

from stacks.build_host import NEEDED_GIB, BuildHost, build_warnings

GIB = 1024**3


def host(*, machine: str = "x86_64", free_gib: float = 500) -> BuildHost:
    return BuildHost(
        machine=machine, docker_root=Path("/var/lib/docker"), free_bytes=round(free_gib * GIB)
    )


def test_a_suitable_machine_is_told_nothing() -> None:
    assert list(build_warnings(host())) == []


def test_a_full_disk_is_told_with_figures_and_remedies() -> None:
    ((_, text),) = build_warnings(host(free_gib=12))

    assert "12 GiB are free in /var/lib/docker" in text
    assert f"about {NEEDED_GIB} GiB" in text
    assert "trainium:image_uri" in text


def test_just_enough_disk_is_enough() -> None:
    assert list(build_warnings(host(free_gib=NEEDED_GIB))) == []


def test_an_arm_machine_is_told_what_will_happen() -> None:
    for machine in ("arm64", "aarch64"):
        ((_, text),) = build_warnings(host(machine=machine))

        assert f"this machine is {machine} and the image is linux/amd64" in text
        assert "emulation" in text


def test_each_warning_can_be_acknowledged_on_its_own() -> None:
    ids = [warning_id for warning_id, _ in build_warnings(host(machine="arm64", free_gib=1))]

    assert ids == ["trainium:buildDisk", "trainium:buildMachine"]


def test_this_machine_can_be_looked_at() -> None:
    here = BuildHost.here()

    assert here.machine
    assert here.docker_root.exists()
    assert here.free_bytes > 0
