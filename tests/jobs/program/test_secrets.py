"""Credentials that must not leave the machine, by kind, and public code without any."""

import json
import random
import re
import string
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.errors import Refusal
from jobs.program.bundle import pack
from jobs.program.files import select

_RANDOM = random.Random(7)
_HEX = "0123456789abcdef"
_BASE32 = string.ascii_uppercase + "234567"


def key(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_RANDOM.choice(alphabet) for _ in range(length))


# The detector has tests of its own rules. These are ours, and the formats in which programs for
# training usually contain keys.
KINDS = {
    "AWS key pair": (
        "a.py",
        f"id = 'AKIA{key(16, _BASE32)}'\naws_secret_access_key = '{key(40)}'\n",
    ),
    "Hugging Face": ("a.py", f"login(token='hf_{key(34, string.ascii_letters)}')\n"),
    "Weights & Biases in a shell script": ("run.sh", f"export WANDB_API_KEY={key(40, _HEX)}\n"),
    "Weights & Biases in Python": ("a.py", f'os.environ["WANDB_API_KEY"] = "{key(40, _HEX)}"\n'),
    "Weights & Biases in a call": ("a.py", f'wandb.login(key="{key(40, _HEX)}")\n'),
    "Weights & Biases in a notebook": (
        "a.ipynb",
        json.dumps({"source": [f'os.environ["WANDB_API_KEY"] = "{key(40, _HEX)}"']}),
    ),
    "Kaggle's file": (
        ".kaggle/kaggle.json",
        json.dumps({"username": "me", "key": key(32, _HEX)}),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_credential_is_refused_unless_included(tmp_path: Path, kind: str) -> None:
    name, text = KINDS[kind]
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)

    with pytest.raises(Refusal) as refused:
        pack(select(tmp_path, include=(), exclude=()))

    said = str(refused.value)
    assert re.match(
        rf"{re.escape(name)}: ((line \d+ )?contains a credential|a file named like )", said
    ), said
    assert f"--include {name}" in said
    assert not any(word in said for word in re.findall(r"\w{16,}", text) if "_" not in word)
    assert pack(select(tmp_path, include=(name,), exclude=()), include=(name,)).paths == {name}


def test_public_code_has_no_credentials() -> None:
    spec = find_spec("torchx")
    assert spec is not None and spec.origin is not None

    assert pack(select(Path(spec.origin).parent, include=(), exclude=())).files


def test_files_need_include_if_detector_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pybetterleaks", None)
    (tmp_path / "a.py").write_text("print(1)\n")
    selection = select(tmp_path, include=(), exclude=())

    with pytest.raises(Refusal, match=r"1 file .* pybetterleaks has no build .*--include a\.py$"):
        pack(selection)
    assert [file.path for file in pack(selection, include=("a.py",)).files] == ["a.py"]
