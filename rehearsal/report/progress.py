"""Shows the progress of a rehearsal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from rehearsal.receipt import PhaseRecord

_DETAIL_WIDTH = 56


class ProgressDisplay:
    """Display of the phases; on a terminal, with a spinner and the running tool's last line."""

    def __init__(self, console: Console, *, show_nodes: bool = False) -> None:
        self._console = console
        self._show_nodes = show_nodes
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._running: list[str] = []
        self._started: dict[tuple[str, int], dict[int, int]] = {}
        self._sizes: dict[str, int] = {}

    @contextmanager
    def phase(self, phase: PhaseRecord) -> Iterator[None]:
        """Show a phase while it runs, possibly concurrently, and print a line at its end.

        Without a terminal, print a line at its start instead of showing a spinner.
        """
        if not self._console.is_terminal:
            self._console.print(Text(f"started {phase.name}", "dim"))
        self._running.append(phase.name)
        self._show()
        try:
            yield
        finally:
            self._running.remove(phase.name)
            self._show()
            style = "green" if phase.outcome == "ok" else "bold red"
            self._console.print(
                Text.assemble(
                    (f"{phase.outcome:<6} ", style),
                    f"{phase.name:<42}",
                    (f"{phase.seconds:>7.1f} s", "dim"),
                )
            )

    def detail(self, line: str) -> None:
        """Show the last line of the running tool."""
        # Square brackets in the text are not markup.
        self._show(Text.from_ansi(line).plain[:_DETAIL_WIDTH])

    def _show(self, line: str = "") -> None:
        """Show every running phase if there is a terminal."""
        with self._lock:
            if self._status is None and self._running and self._console.is_terminal:
                self._status = self._console.status("")
                self._status.start()
            if self._status is not None and not self._running:
                self._status.stop()
                self._status = None
            if self._status is not None:
                self._status.update(Text.assemble(" | ".join(self._running), (f"  {line}", "dim")))

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(Text(text))

    def event(self, event: dict[str, Any]) -> None:
        """Print events, including the process ids and addresses needed to kill a node."""
        match event.get("event"):
            case "job-submitted":
                self._sizes[event["job_id"]] = event["num_nodes"]
            case "node-started" if self._show_nodes:
                self._print(
                    f"node {event['node']} of {event['run']}, attempt {event['attempt']}: "
                    f"process {event['pid']} on {event['address']}"
                )
            case "node-started":
                self._record_start(event)
            case "node-ended" if self._show_nodes:
                reason = f" ({event['reason']})" if event.get("reason") else ""
                self._print(f"node {event['node']} exited with {event['exit_code']}{reason}")
            case "job-status" if self._show_nodes:
                reason = f": {event['reason']}" if event.get("reason") else ""
                self._print(f"job is {event['status']}{reason}")
            case "fault-injected":
                self._print(f"injected {event['kind']}: {event['detail']}")

    def _record_start(self, event: dict[str, Any]) -> None:
        attempt = (event["job_id"], event["attempt"])
        nodes = self._started.setdefault(attempt, {})
        nodes[event["node"]] = event["pid"]
        if len(nodes) == self._sizes.get(event["job_id"]):
            pids = " ".join(str(nodes[node]) for node in sorted(nodes))
            self._print(f"attempt {event['attempt']}: nodes 0-{len(nodes) - 1}, PIDs {pids}")

    def _print(self, text: str) -> None:
        self._console.print(Text(f"  {datetime.now():%H:%M:%S} {text}", style="dim"))
