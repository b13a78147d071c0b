"""Warnings about an unsuitable machine come before the image build begins."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk

from app import build, warn_about_build_host
from stacks.build_host import NEEDED_GIB, BuildHost, build_warnings
from stacks.config import AppConfig
from tests.stacks.synthesis import FLAGS

GIB = 1024**3


def host(*, machine: str = "x86_64", free_gib: float = 500) -> BuildHost:
    return BuildHost(
        machine=machine, docker_root=Path("/var/lib/docker"), free_bytes=round(free_gib * GIB)
    )


def test_full_disk_warning_has_figures_and_remedies() -> None:
    ((_, text),) = build_warnings(host(free_gib=12))

    assert "12 GiB is free in /var/lib/docker" in text
    assert f"about {NEEDED_GIB} GiB" in text
    assert "trainium:image_uri" in text


def test_suitable_machine_with_exactly_enough_disk_causes_no_warning() -> None:
    assert list(build_warnings(host(free_gib=NEEDED_GIB))) == []


def test_arm_machine_causes_emulation_warning() -> None:
    for machine in ("arm64", "aarch64"):
        ((_, text),) = build_warnings(host(machine=machine))

        assert f"this machine is {machine} and the image is linux/amd64" in text
        assert "emulation" in text


def test_each_warning_can_be_acknowledged_on_its_own() -> None:
    ids = [warning_id for warning_id, _ in build_warnings(host(machine="arm64", free_gib=1))]

    assert ids == ["trainium:buildDisk", "trainium:buildMachine"]


def warnings(host: BuildHost, **keys: object) -> list[str]:
    app = cdk.App(context=FLAGS)
    config = AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys.items()})
    build(app, config)
    warn_about_build_host(app, config, host)
    return [
        str(entry.data)
        for construct in app.node.find_all()
        for entry in construct.node.metadata
        if entry.type == "aws:cdk:warning"
    ]


def test_warning_is_shown_before_the_build() -> None:
    (text,) = warnings(host(machine="arm64"))

    assert "under emulation" in text


def test_no_build_causes_no_build_warning() -> None:
    shown = warnings(host(machine="arm64"), image_uri="public.ecr.aws/me/it:1")

    assert not [text for text in shown if "emulation" in text]


def test_build_host_of_this_machine_is_detected() -> None:
    here = BuildHost.here()

    assert here.machine
    assert here.docker_root.exists()
    assert here.free_bytes > 0
