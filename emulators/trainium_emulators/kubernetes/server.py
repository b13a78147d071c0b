"""Entry point of ``python -m trainium_emulators.kubernetes.server``: the stand-in as a process."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from trainium_emulators.kubernetes.cluster import serve
from trainium_emulators.kubernetes.settings import ClusterSettings
from trainium_emulators.nodes.events import emit


def options(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trainium_emulators.kubernetes.server")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--token", help="bearer token that requests must carry")
    parser.add_argument("--aws-endpoint", default="", help="emulator of AWS for the pods")
    parser.add_argument("--processes-per-node", type=int, default=1)
    parser.add_argument("--addresses", default="127.0.0", help="pods are <addresses>.202 and up")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    given = options(words)
    cluster = serve(
        ClusterSettings(
            aws_endpoint=given.aws_endpoint,
            processes_per_node=given.processes_per_node,
            addresses=given.addresses,
        ),
        port=given.port,
        token=given.token,
    )
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    emit("ready", endpoint=cluster.endpoint)
    done.wait()
    cluster.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
