"""`jobs tensorboard`: a run's curves in a browser, without making anything public."""

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
from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, command, opened
from jobs.deployment import Deployment, OfRun
from jobs.errors import EXIT_OK, Refusal, from_aws
from jobs.job import valid_run_name
from jobs.orchestrators import found_summary, services_of
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
"""TensorBoard's own."""
_COPY_EVERY_S = 15.0
_START_LIMIT_S = 60.0
_EVENTS = "tfevents"
"""Part of the names of TensorBoard's files (tensorboard, summary/writer/event_file_writer.py)."""


@command
def tensorboard(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run name.")],
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
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show a run in TensorBoard, until Ctrl-C.

    TensorBoard runs on this machine, on copies of the run's logs that are renewed; of a program of
    your own, on the event files in its newest snapshot.

    \b
    Examples:
      python -m jobs tensorboard bert-1
      python -m jobs tensorboard bert-1 --no-browser --port 16006
    """

    valid_run_name(run)
    aws, target = opened(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    _check_known(aws, target, bucket, run)
    chosen_port = free_port(port)
    is_program = bucket.head(run_key(run, RUN_PROGRAM)) is not None
    url = f"http://127.0.0.1:{chosen_port}/#timeseries" if is_program else _page_url(chosen_port)

    def announce() -> None:
        note(f"TensorBoard of run {run}: {url} (Ctrl-C ends it)")
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
            # A terminal browser would wait for the page, which is only served after this returns.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    try:
        _serve_here(bucket, run, chosen_port, announce)
    except KeyboardInterrupt:
        note("TensorBoard has ended; training does not depend on it")
    return EXIT_OK


def _page_url(port: int) -> str:
    """Build the page's URL, with the loss pinned."""
    # TensorBoard opens two of its chart groups, which may not include the loss.
    asked = {"pinnedCards": json.dumps([{"plugin": "scalars", "tag": LOSS_SCALAR}])}
    return f"http://127.0.0.1:{port}/?{urlencode(asked, quote_via=quote)}#timeseries"


@dataclass(frozen=True, kw_only=True)
class TensorboardDocument(OfRun):
    """The page that is served until Ctrl-C."""

    from_: Literal["local"]
    """Where TensorBoard runs: on this machine."""
    url: str


def _check_known(aws: Aws, target: Deployment, bucket: Bucket, run: str) -> None:
    """Refuse an unknown run; the bucket has the logs of one whose jobs are forgotten."""
    if bucket.has(run_key(run, "")):
        return
    try:
        found_summary(services_of(aws, target, note), target, run, others=known_runs(bucket))
    except Refusal as refusal:
        # An unavailable cluster is no reason to doubt the name.
        if refusal.code == "unknown-run":
            raise


def _serve_here(bucket: Bucket, run: str, port: int, announce: Callable[[], None]) -> None:

    check_installed()
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as name:
        # The folder is named after the run, because the page shows the name.
        folder = Path(name)
        if not copy_logs(bucket, run, folder / run):
            raise no_logs_refusal(bucket, run)
        process = start(folder, port)
        copies = Copies(bucket, run, folder / run)
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
class Copies:
    """A run's logs on this machine, renewed as far as AWS answers."""

    bucket: Bucket
    run: str
    folder: Path
    _is_troubled: bool = False

    def renew(self) -> None:
        """Fetch what is new; errors of AWS, noted once, leave the page as it is."""
        try:
            copy_logs(self.bucket, self.run, self.folder)
        except Exception as error:
            trouble = from_aws(error, region=None)
            if trouble is None:
                raise
            if not self._is_troubled:
                note(f"the curves are not renewed at the moment: {trouble.message}")
            self._is_troubled = True
            return
        if self._is_troubled:
            note("the curves are renewed again")
        self._is_troubled = False


def check_installed() -> None:
    """Refuse if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise Refusal(
            "no-tensorboard",
            "TensorBoard is not installed here; install what requirements-rehearsal.txt pins "
            "(`make setup`)",
        )


def copy_logs(bucket: Bucket, run: str, folder: Path) -> int:
    """Fetch new or grown files; return the run's number of files."""
    number, copies = 0, SafeFolder(folder)
    for log in _logs(bucket, run):
        number += 1
        try:
            path_parts(log.foreign)
            target = copies.path(log.name)
            if target.exists() and target.stat().st_size == log.size:
                continue
            data = bucket.read(log.key)
            if data is None:
                continue
            # TensorBoard may be reading the file, and events are only ever appended.
            with copies.update(log.name) as file:
                file.write(data)
        except UnsafeName as error:
            raise Refusal(
                "key",
                f"a file that s3://{bucket.name}/{log.origin} names cannot become one of this "
                f"machine: {error}; training writes no such names, so find out who has, and remove "
                "that object",
            ) from None
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """A file of logs in the bucket."""

    name: str
    """Name of the copy."""
    foreign: str
    """The part of it that was not given here."""
    key: str
    size: int
    origin: str
    """Key of what names it: itself, or a snapshot's manifest."""


def _logs(bucket: Bucket, run: str) -> Iterator[_Log]:
    prefix = run_prefix(run, "logs")
    for found in bucket.objects(prefix):
        if _EVENTS in found.key.rpartition("/")[2]:
            name = found.key.removeprefix(prefix)
            yield _Log(name=name, foreign=name, key=found.key, size=found.size, origin=found.key)
    # A program writes them where it likes: they are kept with its checkpoints, or its output.
    output = f"{run_prefix(run, 'results')}output/"
    for found in bucket.objects(output):
        if _EVENTS in found.key.rpartition("/")[2]:
            name = found.key.removeprefix(output)
            yield _Log(
                name=f"output/{name}",
                foreign=name,
                key=found.key,
                size=found.size,
                origin=found.key,
            )
    snapshot = newest_snapshot(bucket, run)
    if snapshot is None:
        return
    for file in snapshot.checkpoints:
        if _EVENTS in file.path.rpartition("/")[2]:
            yield _Log(
                name=f"node-{file.node}/{file.path}",
                foreign=file.path,
                key=object_key(run, file.sha256),
                size=file.bytes,
                origin=manifest_key(run, snapshot.number),
            )


def no_logs_refusal(bucket: Bucket, run: str) -> Refusal:
    """Make the refusal for a run that has logged nothing."""
    if bucket.head(run_key(run, RUN_PROGRAM)) is not None:
        return Refusal(
            "no-logs",
            f"the newest snapshot of run {run} has no file with {_EVENTS} in its name; have the "
            f"program write TensorBoard's files below {ENV_CHECKPOINT_DIR}, or --checkpoint-dir, "
            f"and look again after a snapshot: python -m jobs status {run}",
        )
    return Refusal(
        "no-logs",
        f"run {run} has no TensorBoard logs in s3://{bucket.name}/{run_prefix(run, 'logs')}; "
        f"training writes the first with its first logged step: python -m jobs status {run}",
    )


def free_port(wanted: int | None) -> int:
    """Find a port: the requested one, else TensorBoard's default, else any; refuse a taken one."""
    import socket  # imported late, as below, to keep the CLI's start fast

    for port in (DEFAULT_PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Refusal(
        "port-taken", f"--port {wanted} is taken on this machine; leave --port out for a free one"
    )


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start TensorBoard and wait until it answers."""
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
    raise Refusal("tensorboard", f"TensorBoard does not start here; see why with: {' '.join(argv)}")
