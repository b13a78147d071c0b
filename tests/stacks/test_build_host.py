"""Warnings about an unsuitable machine come before the image build begins."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk

from app import build, warn_who_builds
from stacks.build_host import NEEDED_GIB, BuildHost, build_warnings
from stacks.config import AppConfig
from tests.stacks.synthesis import FLAGS

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


def warnings(host: BuildHost, **keys: object) -> list[str]:
    app = cdk.App(context=FLAGS)
    config = AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys.items()})
    build(app, config)
    warn_who_builds(app, config, host)
    return [
        str(entry.data)
        for construct in app.node.find_all()
        for entry in construct.node.metadata
        if entry.type == "aws:cdk:warning"
    ]


def test_a_warning_is_shown_before_the_build() -> None:
    (text,) = warnings(host(machine="arm64"))

    assert "under emulation" in text


def test_who_builds_nothing_is_not_warned_of_a_build() -> None:
    shown = warnings(host(machine="arm64"), image_uri="public.ecr.aws/me/it:1")

    assert not [text for text in shown if "emulation" in text]


def test_this_machine_can_be_looked_at() -> None:
    here = BuildHost.here()

    assert here.machine
    assert here.docker_root.exists()
    assert here.free_bytes > 0
