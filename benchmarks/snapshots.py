"""The overhead of snapshots for training, and the speed of a restore.

``snapshots-on``: the time of a training run that rewrites 350 MB within 30 seconds, with and
without snapshots. ``restore``: the restore of a 1 GB snapshot into an empty folder, compared with
``aws s3 cp --recursive`` of the same bytes; both are whole processes. The bucket is emulated on
this machine.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT, seconds_of
from training.program.snapshots.process import SnapshotProcess, SnapshotSettings, open_snapshots
from training.program.snapshots.restore import restore
from training.storage import StorageAccess

_FOLDER = ROOT / "build" / "bench" / "snapshots"
_BUCKET = "snapshots"
_REGION = "us-east-1"
_MB = 1_000_000
_STEPS, _SMALL_STEPS = 600, 40
"""Steps that take about 30 seconds, or 2, on one core."""
_WRITTEN_BYTES, _SMALL_WRITTEN_BYTES = 350 * _MB, 20 * _MB
_EVERY_S, _SMALL_EVERY_S = 10.0, 1.0
_RESTORED = (600, 150, 100, 50, 50, 30, 10, *(1 for _ in range(10)))
"""Sizes of the snapshot's files in MB."""


@contextmanager
def bucket(environment: Mapping[str, str], *, yields: bool) -> Iterator[dict[str, str]]:
    """Serve an emulated bucket from a separate process; yield the environment for using it.

    ``yields`` lowers its priority, because S3 would not use this machine's processors.
    """
    env = {
        **environment,
        "PYTHONPATH": str(ROOT),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": _REGION,
        "OMP_NUM_THREADS": "1",  # as set by torchrun for several workers
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.snapshots", "serve", "15" if yields else "0"],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # one line per request
        text=True,
    )
    try:
        assert server.stdout is not None
        yield {**env, "AWS_ENDPOINT_URL": server.stdout.readline().strip()}
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(_FOLDER, ignore_errors=True)


def training(env: Mapping[str, str], *, small: bool) -> Comparison:
    """Compare training with snapshots to training without."""

    def seconds(with_snapshots: bool) -> float:
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir(parents=True)
        arguments = ["train", "with" if with_snapshots else "without", "small" if small else "full"]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.snapshots", *arguments],
            env=dict(env),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments} failed:\n{done.stdout}\n{done.stderr}")
        return float(done.stdout.splitlines()[-1])

    return Comparison(
        name="snapshots-on",
        product="30 s of training that writes 350 MB, with snapshots",
        baseline="the same, without",
        target=1.05,
        measure_product=lambda: seconds(True),
        measure_baseline=lambda: seconds(False),
    )


def restoring(env: Mapping[str, str], aws: Callable[[], Path], *, small: bool) -> Comparison:
    """Compare a restore with a copy by the AWS CLI."""
    into = _FOLDER / "restored"
    arguments = [sys.executable, "-m", "benchmarks.snapshots"]
    aws_programs: list[Path] = []

    def seconds(command: list[str]) -> float:
        if not aws_programs:
            _FOLDER.mkdir(parents=True, exist_ok=True)
            seconds_of([*arguments, "create", "small" if small else "full"], env)
            aws_programs.append(aws())
        shutil.rmtree(into, ignore_errors=True)
        return seconds_of([part.format(aws=aws_programs[0]) for part in command], env)

    copy = ["{aws}", "s3", "cp", "--recursive", "--only-show-errors", f"s3://{_BUCKET}/plain/"]
    return Comparison(
        name="restore",
        product="restore of a snapshot of 1 GB, verified",
        baseline="aws s3 cp --recursive of the same files",
        target=1.0,
        measure_product=lambda: seconds([*arguments, "restore"]),
        measure_baseline=lambda: seconds([*copy, str(into)]),
    )


def _serve(niceness: int) -> None:
    """Serve an empty bucket, and print its address."""
    import boto3
    from moto.moto_server import threaded_moto_server

    os.nice(niceness)
    moto = threaded_moto_server.DomainDispatcherApplication
    threaded_moto_server.DomainDispatcherApplication = lambda make: _with_ranges(moto(make))
    server = threaded_moto_server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=url, region_name=_REGION).create_bucket(Bucket=_BUCKET)
    print(url, flush=True)
    while True:
        time.sleep(3600)


def _with_ranges(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Serve ranges without reading the whole object for each, unlike moto.

    Both sides request ranges; with moto alone, the side that requests fewer would win.
    """
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)", environ.get("HTTP_RANGE", ""))
        if environ["REQUEST_METHOD"] != "GET" or requested is None:
            return application(environ, start_response)
        bucket_name, _, name = environ["PATH_INFO"].lstrip("/").partition("/")
        key = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket_name, name)
        start, end = int(requested[1]), min(int(requested[2]), key.contentsize - 1)
        if start > end:
            return application(environ, start_response)
        with key.lock:
            key._value_buffer.seek(start)
            part = key._value_buffer.read(end - start + 1)
        headers = {
            "Content-Length": str(len(part)),
            "Content-Range": f"bytes {start}-{end}/{key.contentsize}",
            "Content-Type": "binary/octet-stream",
            "ETag": key.etag,
            "Last-Modified": key.last_modified_RFC1123,
        }
        start_response("206 Partial Content", list(headers.items()))
        return [part]

    return respond


def _settings(scratch: Path, every_s: float) -> SnapshotSettings:
    storage = StorageAccess(
        root=f"s3://{_BUCKET}", region=_REGION, endpoint_url=os.environ["AWS_ENDPOINT_URL"]
    )
    return SnapshotSettings(
        storage=storage,
        run="bench",
        job_id="bench",
        attempt=1,
        node=0,
        main=0,
        num_nodes=1,
        scratch=scratch,
        checkpoints=scratch / "checkpoints",
        cache=scratch / "cache",
        every_s=every_s,
        keep=1,
        mib_per_s=200.0,
        limit_gib=100.0,
    )


def _train(with_snapshots: bool, small: bool) -> None:
    """Train for a fixed number of steps, print the seconds, and check that a snapshot was taken.

    The checkpoint is written after the first steps, so that the measured time includes all of the
    snapshot's work.
    """
    import torch

    os.environ["TRAINIUM_SCRATCH"] = str(_FOLDER)
    scratch = _FOLDER
    (scratch / "checkpoints").mkdir(exist_ok=True)
    settings = _settings(scratch, _SMALL_EVERY_S if small else _EVERY_S)
    snapshots = SnapshotProcess(settings, os.environ) if with_snapshots else None
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.rand(512, 768)
    state = torch.rand((_SMALL_WRITTEN_BYTES if small else _WRITTEN_BYTES) // 4)
    steps = _SMALL_STEPS if small else _STEPS
    began_s = 0.0
    for step in range(-3, steps):
        if step == 0:
            began_s = time.perf_counter()
        if step == 3:
            torch.save(state, settings.checkpoints / "latest.pt")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began_s
    if snapshots is not None:
        deadline = time.monotonic() + 120
        while not any(item.bytes for item in snapshots.poll().snapshots):
            assert time.monotonic() < deadline, "no snapshot was taken"
            time.sleep(0.1)
        snapshots.kill()
    print(seconds)


def _create_snapshot(small: bool) -> None:
    """Create the snapshot to restore, and upload the same files under their own names."""
    import boto3

    scratch = _FOLDER / "source"
    settings = _settings(scratch, 3600.0)
    settings.checkpoints.mkdir(parents=True)
    client = boto3.client("s3", region_name=_REGION)
    for number, size in enumerate(_RESTORED):
        path = settings.checkpoints / f"part-{number}.bin"
        with path.open("wb") as file:
            for _ in range(1 if small else size):
                file.write(os.urandom(_MB))
        client.upload_file(str(path), _BUCKET, f"plain/{path.name}")
    snapshots = SnapshotProcess(settings, os.environ)
    snapshots.final()
    while not snapshots.done:
        time.sleep(0.1)
    assert snapshots.failure is None, snapshots.failure
    shutil.rmtree(scratch)


def _restore() -> None:
    into = _FOLDER / "restored"
    settings = _settings(into, 3600.0)
    storage = settings.storage.open_root()
    manifest = restore(open_snapshots(storage, settings.run), settings)
    assert manifest is not None and len(manifest.files) == len(_RESTORED)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", niceness]:
            _serve(int(niceness))
        case ["train", how, size]:
            _train(how == "with", size == "small")
        case ["create", size]:
            _create_snapshot(size == "small")
        case ["restore"]:
            _restore()
