"""What nodes that do not meet tell each other through the bucket, past the network between them.

The main node cannot see whether a child has started: Batch starts children after it, in any order,
and each pulls an image of many gigabytes first. So a child that finds no main node leaves a sign,
and the main node looks for signs while no child has joined. From then on the wait is not for an
image. A node that cannot reach the bucket either has no way out at all, which is known too.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from training.core.contract import NodeContract
from trainium_catalogue.contract import JOINING_FOLDER, run_prefix

if TYPE_CHECKING:
    from training.storage import Objects

QUIET_S = 5.0
"""A job whose nodes meet at once neither writes nor reads signs."""
_PAUSE_S = 5.0
_REQUEST_S = 2.0
_NAME = re.compile(r"(?P<attempt>\d+)-node-(?P<node>\d+)\.json")


class _Repeated(ABC):
    """An action on the bucket, repeated beside the launcher's loop until it says that it is done.

    In a thread of its own: a connection that nobody answers takes longer to fail than the guardian
    lets the launcher be silent.
    """

    def __init__(self, node: NodeContract) -> None:
        self._node = node
        self._due_s = time.monotonic() + QUIET_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def turn(self, now_s: float) -> None:
        """Begin once nodes had time to meet without it; called in every turn of the loop."""
        if self._thread is None and self._node.bucket is not None and now_s >= self._due_s:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Repeat it no more."""
        self._ended.set()

    def _run(self) -> None:
        folder = open_folder(self._node)
        while not self._ended.is_set():
            # Signs only shorten a wait: what goes wrong with them is no trouble of the job's.
            with contextlib.suppress(Exception):
                if self._act(folder):
                    return
            self._ended.wait(_PAUSE_S)

    @abstractmethod
    def _act(self, folder: Objects) -> bool:
        """Do it once; True: it need not be done again."""


class StartedSign(_Repeated):
    """A child's: says that it has started and cannot join."""

    def _act(self, folder: Objects) -> bool:
        document = {"schema": 1, "address": self._node.address, "main": self._node.main_address}
        name = f"{self._node.attempt}-node-{self._node.node_index}.json"
        folder.put(name, json.dumps(document).encode() + b"\n")
        return True


class Lookout(_Repeated):
    """The main node's: what is known of children that have not joined."""

    def __init__(self, node: NodeContract) -> None:
        super().__init__(node)
        self.evidence: str | None = None
        """Why a child's absence is not a matter of time, in words; None while it may be one."""

    def _act(self, folder: Objects) -> bool:
        from training.storage import StorageUnavailable

        try:
            names = [entry.key for entry in folder.list()]
        except StorageUnavailable:
            self.evidence = "this node cannot reach the bucket either"
            return False
        except Exception:  # refused, say: it answers, and tells nothing
            names = []
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        started = sorted(int(m["node"]) for m in found if int(m["attempt"]) == self._node.attempt)
        if not started:
            self.evidence = None
            return False
        self.evidence = f"node {started[0]} has started, as it says in the bucket"
        return True


def open_folder(node: NodeContract) -> Objects:
    """Where the nodes of this job leave their signs."""
    from training.storage import RetryPolicy, open_objects

    assert node.bucket is not None
    return open_objects(
        f"s3://{node.bucket}/{run_prefix(node.run, 'results')}{JOINING_FOLDER}/{node.job_id}",
        region=node.region,
        endpoint_url=node.endpoint_url,
        retry_policy=RetryPolicy(total_s=_REQUEST_S),
    )


def likely_causes(node: NodeContract) -> str:
    """Why nodes that have started do not reach each other, the most likely cause first."""
    first, second = (
        ("the nodes' security groups do not admit themselves", "a network policy or network ACL")
        if node.on_cluster
        else (
            "the VPC's default security group, which tasks carry, does not admit itself, in and "
            "out, on TCP",
            "a network ACL of the subnet",
        )
    )
    return f"likely causes, in this order: {first}; {second}; nodes in different subnets or zones"
