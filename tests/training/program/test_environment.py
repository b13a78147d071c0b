"""A program's environment."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE, node_on
from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.launcher.program import ProgramNode
from training.program.environment import program_environment
from training.program.settings import ProgramFolders, ProgramSettings, check


def environment(folder: Path, *flags: str, device: DeviceKind = DeviceKind.CPU) -> dict[str, str]:
    request = parse(["program", f"--code={'0' * 64}", "--script=train.py", *flags])
    settings = ProgramSettings.from_request(request)
    folders = ProgramFolders.of(folder, settings, replace(CPU_NODE, device=device))
    return program_environment({"PATH": "/bin"}, settings, folders, device)


def test_torchneuron_cache_is_inside_the_folder_copied_to_the_bucket(tmp_path: Path) -> None:
    env = environment(tmp_path, device=DeviceKind.TORCH_NEURON)

    on_xla = environment(tmp_path, device=DeviceKind.XLA)
    folder = Path(env["TORCH_NEURONX_NEFF_CACHE_DIR"])
    assert folder.parent.name == Path(on_xla["NEURON_COMPILE_CACHE_URL"]).name
    assert "NEURON_COMPILE_CACHE_URL" not in env


@pytest.mark.parametrize("device", [DeviceKind.CPU, DeviceKind.XLA])
def test_other_devices_have_one_cache(tmp_path: Path, device: DeviceKind) -> None:
    assert "TORCH_NEURONX_NEFF_CACHE_DIR" not in environment(tmp_path, device=device)


def test_user_variables_take_precedence(tmp_path: Path) -> None:
    env = environment(tmp_path, "--env", "PATH=/mine 'NEURON_CC_FLAGS=--optlevel 1'")

    assert (env["PATH"], env["NEURON_CC_FLAGS"]) == ("/mine", "--optlevel 1")


def test_user_variables_cannot_put_every_process_on_the_same_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flags = "NEURON_RT_NUM_CORES=64 NEURON_RT_ROOT_COMM_ID=localhost:48620 NEURON_RT_LOG_LEVEL=INFO"
    request = parse(["program", f"--code={'0' * 64}", "--script=train.py", "--env", flags])
    node = replace(node_on("trn2.48xlarge", num_nodes=2, release="2.33.0"), main_address="10.0.0.1")
    (scratch := tmp_path / "scratch").mkdir()
    program = ProgramNode(request, node, {}, scratch, heartbeat=lambda: None)

    with caplog.at_level(logging.INFO):
        env = program._environment()

    assert not {"NEURON_RT_NUM_CORES", "NEURON_RT_ROOT_COMM_ID"} & env.keys()
    assert env["NEURON_RT_LOG_LEVEL"] == "INFO"
    assert "NEURON_RT_NUM_CORES=64 is removed" in caplog.text


def program_on(scratch: Path, node: NodeContract, *flags: str, **env: str) -> ProgramNode:
    request = parse(["program", f"--code={'0' * 64}", "--script=train.py", *flags])
    scratch.mkdir()
    return ProgramNode(request, node, env, scratch, heartbeat=lambda: None)


def test_a_users_path_keeps_the_limit_on_concurrent_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for folder in ("image", "mine"):
        (compiler := tmp_path / folder / "neuronx-cc").parent.mkdir()
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
    node = node_on("trn2.48xlarge", release="2.33.0")
    mine = f"{tmp_path}/mine:/bin"
    program = program_on(tmp_path / "a", node, f"--env=PATH={mine}", PATH=f"{tmp_path}/image")

    path = program._environment()["PATH"]

    first, _, rest = path.partition(":")
    assert rest == mine
    assert f"exec {tmp_path}/mine/neuronx-cc" in (Path(first) / "neuronx-cc").read_text()


def test_torchneurons_locks_are_in_the_folder_of_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, scratch = "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR", tmp_path / "a"
    on_trn2 = program_on(scratch, node_on("trn2.48xlarge", release="2.33.0"))
    on_trn1 = program_on(tmp_path / "b", node_on("trn1.32xlarge"))

    assert Path(on_trn2._environment()[name]).is_relative_to(scratch)
    assert name not in on_trn1._environment()


def test_a_variable_set_by_torchrun_is_also_refused_on_the_node() -> None:
    values = parse(["program", f"--code={'0' * 64}", "--script=train.py", "--env=RANK=1"]).values

    with pytest.raises(ValueError, match="--env RANK: torchrun sets it"):
        check(values, 2)
