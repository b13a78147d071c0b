"""`kubectl exec` through the Kubernetes client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from jobs.eks.cluster import Cluster
from jobs.errors import Refusal

_STDIN, _ERROR, _RESIZE = 0, 3, 4
_NOT_FOUND = 127
_NOT_RUN = (126, _NOT_FOUND)
"""Exit codes of shells and container runtimes for a program that cannot run."""
_LOST = 255
"""Exit code for a lost connection, as in ssh."""
_OPENING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    code: int
    output: str


def run_in_pod(
    cluster: Cluster, pod: str, command: Sequence[str], *, limit_s: float
) -> CommandResult:
    """Run a command without a terminal; its code is 127 if the pod has no such program."""
    socket = _open(cluster, pod, command, stdin=False, tty=False)
    socket.run_forever(timeout=limit_s)
    if socket.is_open():
        socket.close()
        raise Refusal(
            "pod-silent", f"{command[0]} in pod {pod} timed out after {limit_s:g} s; try again"
        )
    code, _ = parse_status(_last_message(socket))
    return CommandResult(code=code, output=socket.read_channel(1).decode(errors="replace"))


def interact(cluster: Cluster, pod: str, command: Sequence[str]) -> int:
    """Run a command attached to this terminal or to piped input; return its exit code."""
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    socket = _open(cluster, pod, command, stdin=True, tty=has_terminal)
    threading.Thread(target=_send_input, args=(socket,), daemon=True).start()
    has_output = False
    with _terminal(socket) if has_terminal else nullcontext():
        while socket.is_open():
            socket.update(timeout=1)
            has_output |= _forward_output(socket)
        has_output |= _forward_output(socket)
    code, message = parse_status(_last_message(socket))
    if code in _NOT_RUN and not message and not has_output:
        message = f"{command[0]}: exit code {code}; pod {pod} has no such program, or cannot run it"
    if message:
        print(message, file=sys.stderr)
    return code


def _open(cluster: Cluster, pod: str, command: Sequence[str], *, stdin: bool, tty: bool) -> Any:
    from kubernetes.client import CoreV1Api
    from kubernetes.stream import stream

    # The client temporarily patches one of the ApiClient's functions.
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


def parse_status(text: str) -> tuple[int, str]:
    """Parse the server's last message; return the command's exit code and a message to show.

    The text is a Status: success, a failure whose cause is an exit code, or the reason why the
    command could not be started (kubernetes/kubernetes, pkg/kubelet, remotecommand).
    """
    if not text.strip():
        return _LOST, "the connection to the pod was lost"
    status = json.loads(text)
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


def _forward_output(socket: Any) -> bool:
    """Print pending output; return whether there was any."""
    has_output = False
    for channel, target in ((1, sys.stdout), (2, sys.stderr)):
        data = socket.read_channel(channel)
        if data:
            has_output = True
            target.write(data.decode(errors="replace"))
            target.flush()
    return has_output


@contextmanager
def _terminal(socket: Any) -> Iterator[None]:
    """Send every keystroke to the pod, including Ctrl-C, and report window size changes."""
    import termios
    import tty

    def send_size(*_: object) -> None:
        size = shutil.get_terminal_size()
        message = {"Width": size.columns, "Height": size.lines}
        socket.write_channel(_RESIZE, json.dumps(message).encode())

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    handler = signal.signal(signal.SIGWINCH, send_size)
    try:
        tty.setraw(descriptor)
        send_size()
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
