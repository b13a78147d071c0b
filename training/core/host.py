"""Facts about a host, for preflight and probes."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_FI_INFO_TIMEOUT_S = 10


def gib(mib: int) -> str:
    """Format MiB as GiB with one decimal."""
    return f"{mib / 1024:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine, or a directory tree that mimics one."""

    root: Path = Path("/")
    """Contains ``dev``, ``proc`` and ``sys``."""
    disk: Path = Path("/tmp")
    shared_memory: Path = Path("/dev/shm")
    fi_info: str | None = _FI_INFO
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit
    pid: Callable[[], int] = os.getpid
    heartbeat: Callable[[], None] = lambda: None
    """Called during slow operations."""

    def num_neuron_devices(self) -> int:
        """Count the chips; each has one device file."""
        return self._count("dev", r"neuron\d+")

    def num_efa_devices(self) -> int:
        """Count the device files that give user space access to EFA."""
        return self._count("dev/infiniband", r"uverbs\d+")

    def num_efa_interfaces(self) -> int:
        """Count the EFA interfaces known to the kernel."""
        return self._count("sys/class/infiniband", r".+")

    def num_efa_domains(self) -> int | None:
        """Count the EFA domains that libfabric offers; None if its tool is not installed."""
        if self.fi_info is None or not Path(self.fi_info).exists():
            return None
        command = [self.fi_info, "-p", "efa", "-t", "FI_EP_RDM"]
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                output = self._wait(process)
        except OSError:
            return 0
        return len(set(re.findall(r"^\s*domain:\s*(\S+)", output, re.MULTILINE)))

    def _wait(self, process: subprocess.Popen[str]) -> str:
        """Return the output of a process that may hang, sending heartbeats while waiting."""
        deadline = time.monotonic() + _FI_INFO_TIMEOUT_S
        while time.monotonic() < deadline:
            self.heartbeat()
            try:
                return process.communicate(timeout=0.2)[0]
            except subprocess.TimeoutExpired:
                continue
        process.kill()
        return ""

    def driver_version(self) -> str | None:
        """Return the version of the loaded Neuron driver; None if no driver is loaded."""
        try:
            return (self.root / "sys/module/neuron/version").read_text().strip()
        except OSError:
            return None

    def memlock_bytes(self) -> int | None:
        """Return the limit on locked memory in bytes; None if unlimited."""
        soft, _ = self.limits(resource.RLIMIT_MEMLOCK)
        return None if soft == resource.RLIM_INFINITY else soft

    def max_open_files(self) -> int:
        """Return the limit on open files per process."""
        soft, _ = self.limits(resource.RLIMIT_NOFILE)
        return 2**30 if soft == resource.RLIM_INFINITY else soft

    def shared_memory_mib(self) -> int:
        """Return the total size of the shared-memory file system."""
        return shutil.disk_usage(self.shared_memory).total // 2**20

    def free_disk_gib(self) -> float:
        """Return the free space for temporary files."""
        return shutil.disk_usage(self.disk).free / 2**30

    def file_system_type(self, folder: str) -> str | None:
        """Return the type of the file system mounted at this exact folder; None if unmounted."""
        try:
            lines = (self.root / "proc/mounts").read_text().splitlines()
        except OSError:
            return None
        kinds = [fields[2] for line in lines if (fields := line.split())[1] == folder]
        return kinds[-1] if kinds else None

    def is_writable(self, folder: str) -> bool:
        """Return whether a file can be created in the folder."""
        try:
            with tempfile.TemporaryFile(dir=self.root / folder.lstrip("/")) as file:
                file.write(b"\0")
        except OSError:
            return False
        return True

    def has_package(self, name: str) -> bool:
        """Return whether a package can be imported, without importing it."""
        return find_spec(name) is not None

    def _count(self, folder: str, pattern: str) -> int:
        path = self.root / folder
        if not path.is_dir():
            return 0
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in path.iterdir())


def raise_file_limit() -> None:
    """Raise the soft limit on open files, often far too low, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
