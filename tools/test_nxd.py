"""Run tests/nxd, which needs neuronx_distributed's own version of torch.

    NXD_SOURCE=<folder> python tools/test_nxd.py [pytest argument]...

Run by `make test-nxd` with Python 3.11 to 3.13. A Python that already has torch_xla, such as a
Neuron image's, is used as is; otherwise the pinned packages are installed in build/nxd, once.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "tests" / "nxd"
REQUIREMENTS = SUITE / "requirements.txt"
VENV = ROOT / "build" / "nxd"
STAMP = VENV / "setup.json"
ENV_SOURCE = "NXD_SOURCE"

NO_PACKAGE = f"""\
test-nxd: neuronx_distributed is not installed. Get its public source, and set its location:
    git clone https://github.com/aws-neuron/neuronx-distributed
    git -C neuronx-distributed checkout fbac349     # 0.18.0, SDK 2.29; 73ab227 is 0.17.0, SDK 2.28
    make test-nxd {ENV_SOURCE}=$PWD/neuronx-distributed/src
The folder is the one that contains the package: in a Neuron image it is site-packages, where Python
finds it without {ENV_SOURCE}."""


def main(arguments: list[str]) -> int:
    """Set up the environment if needed, and run the tests."""
    source = os.environ.get(ENV_SOURCE)
    if not source and find_spec("neuronx_distributed") is None:
        sys.exit(NO_PACKAGE)
    if source and not (Path(source) / "neuronx_distributed" / "__init__.py").is_file():
        sys.exit(f"test-nxd: {ENV_SOURCE}={source} does not contain package neuronx_distributed")
    command = [
        python_of_the_suite(), "-m", "pytest",
        # tests/conftest.py needs packages from the other environment.
        f"--confcutdir={SUITE}", "-p", "no:cacheprovider", "--show-capture=no",
        str(SUITE), *arguments,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


def python_of_the_suite() -> str:
    """Find or install a Python with torch_xla and pytest."""
    if find_spec("torch_xla") is not None:
        missing = [n for n in ("pytest", "pytest_timeout") if find_spec(n) is None]
        if missing:
            sys.exit("test-nxd: this Python has torch_xla; run: pip install pytest pytest-timeout")
        return sys.executable
    python = VENV / "bin" / "python"
    digest = hashlib.sha256(sys.version.encode() + REQUIREMENTS.read_bytes()).hexdigest()
    if STAMP.exists() and json.loads(STAMP.read_text()) == digest:
        return str(python)
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        version = sys.version.split()[0]
        sys.exit(
            f"test-nxd: torch_xla 2.9 supports Python up to 3.13, not {version}; "
            "run make with PYTHON=/path/to/python3.13"
        )
    print("test-nxd: installing torch 2.9 and torch_xla into build/nxd (up to 8 GB)", flush=True)
    venv.create(VENV, clear=True, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    if subprocess.run([*pip, "-r", str(REQUIREMENTS)], cwd=ROOT).returncode:
        sys.exit("test-nxd: the packages could not be installed; see pip's output above")
    STAMP.write_text(json.dumps(digest))
    return str(python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
