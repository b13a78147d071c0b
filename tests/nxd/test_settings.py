"""The launcher sets every environment variable of AWS's recipe, or omits it with a reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.nxd import on_cpu
from training.launcher.settings import OMITTED, SETTINGS


def test_every_variable_of_the_aws_recipe_is_set_or_omitted_with_a_reason() -> None:
    source = Path(os.environ.get(on_cpu.ENV_SOURCE, ""))
    folder = source.parent / "examples/training/llama/tp_zero1_llama_hf_pretrain"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: an installed NxD has no examples")
    script = (folder / "tp_zero1_llama2_7B_hf_pretrain.sh").read_text()
    program = (folder / "tp_zero1_llama_hf_pretrain.py").read_text()

    asked = set(re.findall(r"export (\w+)=", script))
    asked |= set(re.findall(r'os\.environ\["(\w+)"\] = ', program))

    assert len(asked) > 10
    assert asked - {setting.name for setting in SETTINGS} == OMITTED.keys()
