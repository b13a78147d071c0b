"""TorchNeuron's compiled graphs (NEFFs), shared by nodes and jobs through the bucket.

TorchNeuron stores each graph under a content hash in a folder on the node,
``TORCH_NEURONX_NEFF_CACHE_DIR/ab/cd/abcd....neff``, written to a temporary name and renamed; it
does not support S3 (PersistentCacheBackend.cpp in the public copy of April 2026,
github.com/parmoham-aws/test-repo-parmoham). The key does not include the compiler's version, so
every Neuron release has its own folder.

Before the ranks join, one worker per node downloads other nodes' graphs, newest first, for at most
a minute; during training it uploads the node's own. An unreachable cache costs compile time but
never fails the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from training.core.contract import DeviceKind, NodeContract
from training.storage import Objects, RetryPolicy, StorageAccess, StorageError
from trainium_catalogue.contract import neff_prefix
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName

ENV_NEFF_CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR"
_SUFFIX = ".neff"
_UPLOAD_INTERVAL_S = 60.0
_RETRIES = RetryPolicy(total_s=30.0)
_CONCURRENT_DOWNLOADS = 8
_DOWNLOAD_TIMEOUT_S = 60.0
"""Bounded because the bucket also holds graphs of other models and runs."""
_FINAL_UPLOAD_TIMEOUT_S = 60.0

log = logging.getLogger(__name__)


class NeffCache:
    """A node's connection to the shared cache."""

    def __init__(self, folder: Path, shared: Objects) -> None:
        self._folder, self._shared = folder, shared
        self._known: set[str] = set()
        """Keys known to be in the bucket."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, node: NodeContract, folder: str | None) -> NeffCache | None:
        """Create the cache of a node that trains with TorchNeuron and has a bucket."""
        if node.device is not DeviceKind.TORCH_NEURON or node.bucket is None or not folder:
            return None
        assert node.neuron_release is not None
        bucket = StorageAccess.of(node).open_root(retry_policy=_RETRIES)
        return cls(Path(folder), bucket.at(neff_prefix(node.neuron_release)))

    def download(self, report: Callable[[str], None]) -> None:
        """Download graphs that this node lacks, newest first."""
        until_s = time.monotonic() + _DOWNLOAD_TIMEOUT_S
        target = SafeFolder(self._folder)

        def fetch(key: str) -> bool:
            if time.monotonic() > until_s:
                return False
            with target.create(key) as file:
                self._shared.get_file(key, file)
            report("downloading compiled graphs")
            return True

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            listed = [entry for entry in self._shared.list() if entry.key.endswith(_SUFFIX)]
            self._known = {entry.key for entry in listed}
            listed.sort(key=lambda entry: entry.modified, reverse=True)
            missing = [each.key for each in listed if not (self._folder / each.key).exists()]
            with ThreadPoolExecutor(_CONCURRENT_DOWNLOADS) as pool:
                fetched = sum(pool.map(fetch, missing))
        except (StorageError, UnsafeName, OSError) as error:
            log.info("compiled graphs could not be downloaded; this node compiles them: %s", error)
        else:
            if missing:
                log.info("compiled graphs: %d of %d downloaded", fetched, len(missing))

    def start(self) -> None:
        """Upload new graphs every minute in a background thread."""
        self._thread = threading.Thread(target=self._upload_repeatedly, daemon=True)
        self._thread.start()

    def _upload_repeatedly(self) -> None:
        while not self._ended.wait(_UPLOAD_INTERVAL_S):
            self._upload()

    def close(self) -> None:
        """Finish the current upload, then upload the remaining graphs; at most a minute each."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_FINAL_UPLOAD_TIMEOUT_S)
        if self._thread is None or not self._thread.is_alive():
            self._upload(until_s=time.monotonic() + _FINAL_UPLOAD_TIMEOUT_S)

    def _upload(self, *, until_s: float = float("inf")) -> None:
        try:
            local = {
                path.relative_to(self._folder).as_posix(): path
                for path in self._folder.rglob(f"*{_SUFFIX}")
            }
            if not local.keys() - self._known:
                return
            # Other nodes may have uploaded the same graphs.
            self._known = {entry.key for entry in self._shared.list()}
            for key in sorted(local.keys() - self._known):
                if time.monotonic() > until_s:
                    return
                self._shared.put_file(key, local[key])
                self._known.add(key)
        except (StorageError, OSError) as error:
            log.info("compiled graphs could not be uploaded: %s", error)
