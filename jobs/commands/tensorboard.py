"""`jobs tensorboard`: show a run's curves in a local TensorBoard."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

import typer

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import known_runs
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.deployment import Deployment, RunFields
from jobs.errors import EXIT_OK, Refusal, from_aws
from jobs.job import valid_run_name
from jobs.orchestrators import find_summary, services_of
from jobs.output.console import note, print_document
from jobs.program.snapshots import manifest_key, newest_snapshot, object_key
from trainium_catalogue.contract import (
    ENV_CHECKPOINT_DIR,
    LOSS_SCALAR,
    RUN_PROGRAM,
    run_key,
    run_prefix,
)
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName, path_parts

DEFAULT_PORT = 6006
"""TensorBoard's default."""
_COPY_EVERY_S = 15.0
_START_LIMIT_S = 60.0
_EVENTS = "tfevents"
"""Part of the name of an event file (tensorboard, summary/writer/event_file_writer.py)."""


@command
def tensorboard(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run name.")],
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Port on this machine.",
            show_default="6006, or a free one",
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show a run in TensorBoard, until Ctrl-C.

    TensorBoard runs on this machine, on regularly refreshed copies of the run's logs; for your own
    program, on the event files in its newest snapshot and, once it has ended, in its output.

    \b
    Examples:
      python -m jobs tensorboard bert-1
      python -m jobs tensorboard bert-1 --no-browser --port 16006
    """
    valid_run_name(run)
    aws, target = open_deployment(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    _check_known(aws, target, bucket, run)
    chosen_port = free_port(port)
    is_program = bucket.head(run_key(run, RUN_PROGRAM)) is not None
    url = f"http://127.0.0.1:{chosen_port}/#timeseries" if is_program else _page_url(chosen_port)

    def announce() -> None:
        note(f"TensorBoard of run {run}: {url} (stop with Ctrl-C)")
        if as_json:
            print_document(
                TensorboardDocument(
                    deployment=target.name,
                    region=target.region,
                    run=run,
                    from_="local",
                    url=url,
                )
            )
        if browser:
            # In a thread, because a text browser would block the refreshing of the logs.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    try:
        _serve_here(bucket, run, chosen_port, announce)
    except KeyboardInterrupt:
        note("stopped TensorBoard; training is not affected")
    return EXIT_OK


def _page_url(port: int) -> str:
    """Build the page's URL, with the loss pinned."""
    # TensorBoard expands two of its chart groups, which may not include the loss.
    query = {"pinnedCards": json.dumps([{"plugin": "scalars", "tag": LOSS_SCALAR}])}
    return f"http://127.0.0.1:{port}/?{urlencode(query, quote_via=quote)}#timeseries"


@dataclass(frozen=True, kw_only=True)
class TensorboardDocument(RunFields):
    """The page that is served until Ctrl-C."""

    from_: Literal["local"]
    """Where TensorBoard runs: this machine."""
    url: str


def _check_known(aws: Aws, target: Deployment, bucket: Bucket, run: str) -> None:
    """Refuse an unknown run; the bucket still has the logs of a run without jobs."""
    if bucket.has(run_key(run, "")):
        return
    try:
        find_summary(services_of(aws, target, note), target, run, others=known_runs(bucket))
    except Refusal as refusal:
        # An unavailable cluster does not make the name unknown.
        if refusal.code == "unknown-run":
            raise


def _serve_here(bucket: Bucket, run: str, port: int, announce: Callable[[], None]) -> None:
    """Serve copies of the run's logs in TensorBoard; call ``announce`` once it responds."""
    check_installed()
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as name:
        # The folder is named after the run, because the page shows the name.
        folder = Path(name)
        if not copy_logs(bucket, run, folder / run):
            raise no_logs_refusal(bucket, run)
        process = start(folder, port)
        copies = LogMirror(bucket, run, folder / run)
        announce()
        ended = threading.Event()
        try:
            while process.poll() is None:
                ended.wait(_COPY_EVERY_S)
                copies.renew()
        finally:
            process.terminate()
            process.wait()


@dataclass(slots=True)
class LogMirror:
    """Local copy of a run's logs, updated on a best-effort basis."""

    bucket: Bucket
    run: str
    folder: Path
    _has_failed: bool = False

    def renew(self) -> None:
        """Fetch new data; note AWS errors once, and keep the page as it is."""
        try:
            copy_logs(self.bucket, self.run, self.folder)
        except Exception as error:
            refusal = from_aws(error, region=None)
            if refusal is None:
                raise
            if not self._has_failed:
                note(f"the curves are not being updated: {refusal.message}")
            self._has_failed = True
            return
        if self._has_failed:
            note("the curves are being updated again")
        self._has_failed = False


def check_installed() -> None:
    """Refuse if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise Refusal(
            "no-tensorboard",
            "TensorBoard is not installed here; install it from requirements-rehearsal.txt (`make "
            "setup`)",
        )


def copy_logs(bucket: Bucket, run: str, folder: Path) -> int:
    """Download new and changed files; return the number of the run's event files."""
    number, copies = 0, SafeFolder(folder)
    for log in _logs(bucket, run):
        number += 1
        try:
            path_parts(log.stored_name)
            target = copies.path(log.name)
            if target.exists() and target.stat().st_size == log.size:
                continue
            data = bucket.read(log.key)
            if data is None:
                continue
            # In place: TensorBoard may be reading the file, and event files only grow.
            with copies.update(log.name) as file:
                file.write(data)
        except UnsafeName as error:
            raise Refusal(
                "key",
                f"a file name in s3://{bucket.name}/{log.origin} cannot be used on this machine: "
                f"{error}; training writes no such names, so find out what wrote it, and delete "
                "that object",
            ) from None
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """A log file in the bucket."""

    name: str
    """Name of the copy."""
    stored_name: str
    """Part of the name that comes from the bucket, and is not trusted."""
    key: str
    size: int
    origin: str
    """Key of the object that names it: itself, or a snapshot's manifest."""


def _logs(bucket: Bucket, run: str) -> Iterator[_Log]:
    # A program may write event files to its checkpoints or to its output.
    output = f"{run_prefix(run, 'results')}output/"
    for prefix, folder in ((run_prefix(run, "logs"), ""), (output, "output/")):
        for stored in bucket.objects(prefix):
            if _EVENTS in stored.key.rpartition("/")[2]:
                name = stored.key.removeprefix(prefix)
                yield _Log(
                    name=f"{folder}{name}",
                    stored_name=name,
                    key=stored.key,
                    size=stored.size,
                    origin=stored.key,
                )
    snapshot = newest_snapshot(bucket, run)
    if snapshot is None:
        return
    for file in snapshot.checkpoints:
        if _EVENTS in file.path.rpartition("/")[2]:
            yield _Log(
                name=f"node-{file.node}/{file.path}",
                stored_name=file.path,
                key=object_key(run, file.sha256),
                size=file.bytes,
                origin=manifest_key(run, snapshot.number),
            )


def no_logs_refusal(bucket: Bucket, run: str) -> Refusal:
    """Build the refusal for a run without logs."""
    if bucket.head(run_key(run, RUN_PROGRAM)) is not None:
        return Refusal(
            "no-logs",
            f"the newest snapshot of run {run} has no file with {_EVENTS} in its name; make the "
            f"program write its event files below {ENV_CHECKPOINT_DIR} or --checkpoint-dir, and "
            f"check again after a snapshot with `python -m jobs status {run}`",
        )
    return Refusal(
        "no-logs",
        f"run {run} has no TensorBoard logs in s3://{bucket.name}/{run_prefix(run, 'logs')}; "
        f"training writes them from its first logged step; see `python -m jobs status {run}`",
    )


def free_port(requested: int | None) -> int:
    """Return the requested port, else TensorBoard's default, else any; refuse one in use."""
    import socket  # imported here, as below, to keep the CLI's startup fast

    for port in (DEFAULT_PORT, 0) if requested is None else (requested,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Refusal(
        "port-taken",
        f"--port {requested} is in use on this machine; omit --port to use a free one",
    )


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start TensorBoard and wait until it responds."""
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--reload_interval", "5"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _START_LIMIT_S
    opener = build_opener(ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"http://127.0.0.1:{port}/", timeout=5).close()
            return process
        except (URLError, OSError):
            time.sleep(0.2)
    process.terminate()
    raise Refusal(
        "tensorboard", f"TensorBoard did not start; find the reason with: {' '.join(argv)}"
    )
