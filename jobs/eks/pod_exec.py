"""Commands inside a pod: `kubectl exec`, through the Kubernetes client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jobs.eks.cluster import Cluster
from jobs.errors import Refusal

_STDIN, _ERROR, _RESIZE = 0, 3, 4
_NOT_FOUND = 127
_NOT_RUN = (126, _NOT_FOUND)
"""As shells and container runtimes say it."""
_LOST = 255
"""As ssh says it."""
_OPENING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that has ended."""

    code: int
    output: str


def run_in_pod(cluster: Cluster, pod: str, command: Sequence[str], *, limit_s: float) -> Finished:
    """Run a command that needs no terminal; 127 when the pod has no such program."""
    socket = _open(cluster, pod, command, stdin=False, tty=False)
    socket.run_forever(timeout=limit_s)
    if socket.is_open():
        socket.close()
        raise Refusal(
            "pod-silent", f"{command[0]} in pod {pod} has not ended after {limit_s:g} s; try again"
        )
    code, _ = ending(_last_message(socket))
    return Finished(code=code, output=socket.read_channel(1).decode(errors="replace"))


def interact(cluster: Cluster, pod: str, command: Sequence[str]) -> int:
    """Run a command with this terminal, or with what is piped in; return its exit code."""
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    socket = _open(cluster, pod, command, stdin=True, tty=has_terminal)
    threading.Thread(target=_send_input, args=(socket,), daemon=True).start()
    spoke = False
    with _terminal(socket) if has_terminal else _nothing():
        while socket.is_open():
            socket.update(timeout=1)
            spoke |= _pass_on(socket)
        spoke |= _pass_on(socket)
    code, said = ending(_last_message(socket))
    if code in _NOT_RUN and not said and not spoke:
        said = f"{command[0]}: exit code {code}; pod {pod} has no such program, or may not run it"
    if said:
        print(said, file=sys.stderr)
    return code


def _open(cluster: Cluster, pod: str, command: Sequence[str], *, stdin: bool, tty: bool) -> Any:
    from kubernetes.client import CoreV1Api
    from kubernetes.stream import stream

    # The client puts another function in place of the ApiClient's own for a moment.
    with _OPENING:
        return stream(
            CoreV1Api(cluster.api()).connect_get_namespaced_pod_exec,
            pod,
            cluster.namespace,
            command=list(command),
            stdin=stdin,
            stdout=True,
            stderr=True,
            tty=tty,
            binary=True,
            _preload_content=False,
        )


def ending(said: str) -> tuple[int, str]:
    """Exit code of a command, and what is to be said of it, from the server's last message.

    That is a Status: Success, a failure whose cause is an exit code, or one that says why the
    command could not be started (kubernetes/kubernetes, pkg/kubelet, remotecommand).
    """
    if not said.strip():
        return _LOST, "the connection to the pod was lost"
    status = json.loads(said)
    if status.get("status") == "Success":
        return 0, ""
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"]), ""
    return _NOT_FOUND, str(status.get("message") or "the command could not be started")


def _last_message(socket: Any) -> str:
    data: bytes = socket.read_channel(_ERROR)
    return data.decode(errors="replace")


def _send_input(socket: Any) -> None:
    while data := os.read(sys.stdin.fileno(), 4096):
        if not socket.is_open():
            return
        socket.write_channel(_STDIN, data)
    socket.close_channel(_STDIN)


def _pass_on(socket: Any) -> bool:
    """Show what has come; tells whether anything has."""
    spoke = False
    for channel, target in ((1, sys.stdout), (2, sys.stderr)):
        data = socket.read_channel(channel)
        if data:
            spoke = True
            target.write(data.decode(errors="replace"))
            target.flush()
    return spoke


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _terminal(socket: Any) -> Iterator[None]:
    """Every key goes to the pod, Ctrl-C too; a window that changes tells its size."""
    import termios
    import tty

    def tell_size(*_: object) -> None:
        size = shutil.get_terminal_size()
        message = {"Width": size.columns, "Height": size.lines}
        socket.write_channel(_RESIZE, json.dumps(message).encode())

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    handler = signal.signal(signal.SIGWINCH, tell_size)
    try:
        tty.setraw(number)
        tell_size()
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
