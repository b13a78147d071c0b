"""What a program finds in its environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE
from training.core.arguments import parse
from training.core.contract import DeviceKind
from training.program.environment import program_environment
from training.program.settings import ProgramFolders, ProgramSettings, check


def environment(folder: Path, *flags: str, device: DeviceKind = DeviceKind.CPU) -> dict[str, str]:
    request = parse(["program", f"--code={'0' * 64}", "--script=train.py", *flags])
    settings = ProgramSettings.from_request(request)
    folders = ProgramFolders.of(folder, settings, replace(CPU_NODE, device=device))
    return program_environment({"PATH": "/bin"}, settings, folders, device)


def test_torchneuron_keeps_its_graphs_where_the_bucket_has_a_copy(tmp_path: Path) -> None:
    env = environment(tmp_path, device=DeviceKind.TORCH_NEURON)

    folder = Path(env["TORCH_NEURONX_NEFF_CACHE_DIR"])
    assert folder.parent == Path(env["NEURON_COMPILE_CACHE_URL"])


@pytest.mark.parametrize("device", [DeviceKind.CPU, DeviceKind.XLA])
def test_other_devices_have_one_cache(tmp_path: Path, device: DeviceKind) -> None:
    assert "TORCH_NEURONX_NEFF_CACHE_DIR" not in environment(tmp_path, device=device)


def test_variables_of_the_user_come_last(tmp_path: Path) -> None:
    env = environment(tmp_path, "--env", "PATH=/mine 'NEURON_CC_FLAGS=--optlevel 1'")

    assert (env["PATH"], env["NEURON_CC_FLAGS"]) == ("/mine", "--optlevel 1")


def test_a_variable_that_torchrun_sets_is_refused_on_the_node_too() -> None:
    values = parse(["program", f"--code={'0' * 64}", "--script=train.py", "--env=RANK=1"]).values

    with pytest.raises(ValueError, match="--env RANK: torchrun sets it"):
        check(values, 2)
