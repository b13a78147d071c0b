"""A package index on loopback, with wheels and source archives generated on demand."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Builds without setuptools, which pip would fetch from the index.
_BACKEND = """
import base64, hashlib, os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    {build}
    name = "{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("{module}.py", "BUILT = True")
        info = "{module}-{version}.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return name
"""  # noqa: E501


@dataclass
class PackageIndex:
    """A folder in pip's simple layout, and its address."""

    folder: Path
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """Paths that were asked for."""

    def add(
        self,
        name: str,
        version: str,
        requires: Sequence[str] = (),
        *,
        files: Mapping[str, str] | None = None,
        python: str = "",
    ) -> Path:
        """Add a wheel; by default with one module that contains its version."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
        metadata += [f"Requires-Dist: {line}\n" for line in requires]
        if python:
            metadata.append(f"Requires-Python: {python}\n")
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        contents = {
            **(files or {f"{module}/__init__.py": f"VERSION = {version!r}\n"}),
            f"{info}/METADATA": "".join(metadata),
            f"{info}/WHEEL": wheel,
        }
        record = "".join(f"{path},sha256={_digest(text)},\n" for path, text in contents.items())
        path = self._folder(name) / f"{module}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name_inside, text in {**contents, f"{info}/RECORD": record}.items():
                archive.writestr(name_inside, text)
        return path

    def add_source(self, name: str, version: str, *, build: str = "pass") -> Path:
        """Add a source archive; ``build`` is a statement that runs when it is built."""
        module = name.replace("-", "_")
        pyproject = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]'
        files = {
            "backend.py": _BACKEND.format(name=name, module=module, version=version, build=build),
            "pyproject.toml": pyproject,
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }
        path = self._folder(name) / f"{module}-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for inside, text in files.items():
                member = tarfile.TarInfo(f"{module}-{version}/{inside}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        return path

    def text(self, *requirements: str) -> str:
        """Return requirements that come from this index."""
        return "".join(f"{line}\n" for line in (f"--index-url {self.url}", *requirements))

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@contextmanager
def serve_index(folder: Path) -> Iterator[PackageIndex]:
    """Serve an index with its packages below ``folder``."""
    index = PackageIndex(folder)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            index.requests.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
