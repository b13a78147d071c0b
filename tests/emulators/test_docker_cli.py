"""The docker emulator: records, refusals and pushes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import CREDENTIALS
from tests.emulators.conftest import client_of
from trainium_emulators.docker_cli import read_record

REGION = "us-west-2"
IMAGE = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/trainium-default:abc"
LOCAL = "cdkasset-abc"


@dataclass(frozen=True, slots=True)
class Docker:
    """The file that CDK_DOCKER names, called as the CDK CLI calls it."""

    path: Path
    record: Path
    context: Path
    environment: dict[str, str]

    def __call__(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path), *words],
            cwd=self.context,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
        )

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self(
            *("build", "--build-arg", "BASE_IMAGE=neuron:2.28", "--tag", LOCAL),
            *("--file", "docker/neuron/Dockerfile", "--platform", "linux/amd64", *options, "."),
        )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def docker(tmp_path: Path, endpoint: str) -> Docker:
    dockerfile = tmp_path / "context" / "docker" / "neuron" / "Dockerfile"
    dockerfile.parent.mkdir(parents=True)
    dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")
    (tmp_path / "context" / "training.py").write_text("")
    path, record = tmp_path / "docker", tmp_path / "docker.jsonl"
    cdk.write_docker_emulator(path, record=record)
    environment = {
        **CREDENTIALS,
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
    }
    return Docker(path, record, tmp_path / "context", environment)


def test_build_is_recorded_with_base_image_platform_and_context(docker: Docker) -> None:
    assert docker.build().returncode == 0

    (build,) = read_record(docker.record)
    assert build["base_image"] == "neuron:2.28"
    assert build["platform"] == "linux/amd64"
    assert build["context_files"] == ["docker/neuron/Dockerfile", "training.py"]


def test_undeclared_build_argument_is_refused(docker: Docker) -> None:
    done = docker.build("--build-arg", "BASE=typo")

    assert done.returncode == 125
    assert "BASE" in done.stderr


@pytest.mark.parametrize("words", [("run", "image"), ("build", "--squash", ".")])
def test_unsupported_command_is_refused(docker: Docker, words: tuple[str, ...]) -> None:
    assert docker(*words).returncode == 125
    assert read_record(docker.record) == []


def test_unknown_image_is_reported_like_docker(docker: Docker) -> None:
    # The CDK CLI takes 1 for "not built yet" and everything else for an error.
    assert docker("inspect", LOCAL).returncode == 1


def test_built_image_is_known_under_each_of_its_names(docker: Docker) -> None:
    docker.build()
    docker("tag", LOCAL, IMAGE)

    assert [docker("inspect", name).returncode for name in (LOCAL, IMAGE)] == [0, 0]


def test_password_is_accepted_but_not_recorded(docker: Docker) -> None:
    done = docker("login", "--username", "AWS", "--password-stdin", "registry", stdin="secret")

    assert done.returncode == 0
    assert "secret" not in docker.record.read_text()


def test_push_puts_an_image_into_the_repository(docker: Docker, endpoint: str) -> None:
    ecr = client_of(endpoint, "ecr")
    ecr.create_repository(repositoryName="trainium-default")
    docker.build()
    docker("tag", LOCAL, IMAGE)

    assert docker("push", IMAGE).returncode == 0
    (image,) = ecr.list_images(repositoryName="trainium-default")["imageIds"]
    assert image["imageTag"] == "abc"
    assert json.loads(docker.record.read_text().splitlines()[-1])["digest"] == image["imageDigest"]
