"""A program's environment."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE, node_on
from tests.training.program.bundles import FLAGS, workspace
from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.launcher.program import ProgramNode
from training.program.environment import program_environment

Launch = Callable[..., ProgramNode]


def environment(folder: Path, *flags: str, device: DeviceKind = DeviceKind.CPU) -> dict[str, str]:
    place = workspace(folder, replace(CPU_NODE, device=device), *FLAGS, *flags)
    return program_environment({"PATH": "/bin"}, place.settings, place.folders, device)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Return a function that makes a node's launch of a program, with its folders in tmp_path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(node: NodeContract, *flags: str, **env: str) -> ProgramNode:
        scratch = tmp_path / str(node.instance_type)
        scratch.mkdir()
        return ProgramNode(
            parse(["program", *FLAGS, *flags]), node, env, scratch, heartbeat=lambda: None
        )

    return make


def test_torchneuron_cache_is_inside_the_folder_copied_to_the_bucket(tmp_path: Path) -> None:
    env = environment(tmp_path, device=DeviceKind.TORCH_NEURON)

    on_xla = environment(tmp_path, device=DeviceKind.XLA)
    folder = Path(env["TORCH_NEURONX_NEFF_CACHE_DIR"])
    assert folder.parent.name == Path(on_xla["NEURON_COMPILE_CACHE_URL"]).name
    assert "NEURON_COMPILE_CACHE_URL" not in env
    assert "TORCH_NEURONX_NEFF_CACHE_DIR" not in on_xla


def test_user_variables_take_precedence(tmp_path: Path) -> None:
    env = environment(tmp_path, "--env", "PATH=/mine 'NEURON_CC_FLAGS=--optlevel 1'")

    assert (env["PATH"], env["NEURON_CC_FLAGS"]) == ("/mine", "--optlevel 1")


def test_user_variables_cannot_put_every_process_on_the_same_cores(
    launch: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    flags = "NEURON_RT_NUM_CORES=64 NEURON_RT_ROOT_COMM_ID=localhost:48620 NEURON_RT_LOG_LEVEL=INFO"
    node = replace(node_on("trn2.48xlarge", num_nodes=2, release="2.33.0"), main_address="10.0.0.1")

    with caplog.at_level(logging.INFO):
        env = launch(node, f"--env={flags}")._environment()

    assert not {"NEURON_RT_NUM_CORES", "NEURON_RT_ROOT_COMM_ID"} & env.keys()
    assert env["NEURON_RT_LOG_LEVEL"] == "INFO"
    assert "NEURON_RT_NUM_CORES=64 is removed" in caplog.text


def test_a_users_path_keeps_the_limit_on_concurrent_compilers(
    tmp_path: Path, launch: Launch
) -> None:
    for folder in ("image", "mine"):
        (compiler := tmp_path / folder / "neuronx-cc").parent.mkdir()
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
    mine = f"{tmp_path}/mine:/bin"
    node = node_on("trn2.48xlarge", release="2.33.0")

    path = launch(node, f"--env=PATH={mine}", PATH=f"{tmp_path}/image")._environment()["PATH"]

    first, _, rest = path.partition(":")
    assert rest == mine
    assert f"exec {tmp_path}/mine/neuronx-cc" in (Path(first) / "neuronx-cc").read_text()


def test_torchneurons_locks_are_in_the_folder_of_the_launch(tmp_path: Path, launch: Launch) -> None:
    name = "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"
    on_trn2 = launch(node_on("trn2.48xlarge", release="2.33.0"))
    on_trn1 = launch(node_on("trn1.32xlarge"))

    assert Path(on_trn2._environment()[name]).is_relative_to(tmp_path / "trn2.48xlarge")
    assert name not in on_trn1._environment()
