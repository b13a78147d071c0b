"""A program's environment."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE, node_on
from training.core.arguments import parse
from training.core.contract import DeviceKind
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


def test_a_variable_set_by_torchrun_is_also_refused_on_the_node() -> None:
    values = parse(["program", f"--code={'0' * 64}", "--script=train.py", "--env=RANK=1"]).values

    with pytest.raises(ValueError, match="--env RANK: torchrun sets it"):
        check(values, 2)
