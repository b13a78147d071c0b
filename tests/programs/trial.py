"""Run a public program twice through the real launcher: undisturbed, and with a killed node."""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import signal
import tarfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.programs.catalogue import FOR_NEURON, PACKAGES, PublicProgram
from tests.support.limits import scaled
from tests.training.conftest import ROOT, Cluster
from tests.training.program.bundles import upload
from tests.training.s3_server import REGION, s3_client, s3_server
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.exit_codes import ExitCode
from trainium_emulators.nodes.environment import device_variables

RUN_LIMIT_S = 120.0
_CHANCES = 3
_SNAPSHOT = re.compile(r"/\d{8}\.json$")


class TrialFailed(AssertionError):
    """A program did not behave as its entry states."""


class HitTooLate(TrialFailed):
    """The node was killed after the program had finished, which proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of a program's two runs."""

    undisturbed: str
    """Its result, as its own output has it."""
    survived: str
    """The same, after a node was killed."""
    after: int
    """Results of the attempt that followed."""
    whole: int
    """Results of the undisturbed run: an attempt that has fewer went on where it was."""
    said: bool | None
    """Whether the second attempt said that it goes on; None for a program that does not say."""
    seconds: float
    """Length of the undisturbed run."""

    @property
    def resumed(self) -> bool:
        """Return whether the second attempt skipped the first one's work."""
        return self.after < self.whole if self.said is None else self.said


def try_program(program: PublicProgram, folder: Path) -> Trial:
    """Run a program twice; raises ``TrialFailed``."""
    program.lay_out(folder / "files")
    archive = _archive(folder / "files")
    began = time.monotonic()
    with s3_server("undisturbed") as url:
        on_cpu = program.cpu_version()
        job = _Job(on_cpu, folder / "undisturbed", "undisturbed", url, archive)
        undisturbed = job.run_to_its_end(attempt=1)
    seconds = time.monotonic() - began
    job, survived = _disturbed(program, folder, archive)
    return Trial(
        undisturbed=undisturbed[-1],
        survived=survived[-1],
        after=len(survived),
        whole=len(undisturbed),
        said=job.said_to_go_on(),
        seconds=seconds,
    )


def _disturbed(program: PublicProgram, folder: Path, archive: bytes) -> tuple[_Job, list[str]]:
    """Kill a node, and run to the end; return the results of the attempt after it.

    A program that saves constantly may have no snapshot before its end: it gets further tries.
    """
    for number in range(1, _CHANCES + 1):
        bucket = f"disturbed-{number}"
        with s3_server(bucket) as url:
            job = _Job(program, folder / bucket, bucket, url, archive)
            try:
                job.run_until_killed()
                return job, job.run_to_its_end(attempt=2)
            except HitTooLate:
                if number == _CHANCES:
                    raise
    raise AssertionError("unreachable")


class _Job:
    """A job of two nodes with one process each."""

    def __init__(
        self, program: PublicProgram, folder: Path, bucket: str, url: str, archive: bytes
    ) -> None:
        folder.mkdir(parents=True)
        self._program, self._bucket, self._url = program, bucket, url
        self._run = f"{program.name}-{uuid.uuid4().hex[:8]}"
        self._cluster = Cluster(folder, num_nodes=program.nodes)
        storage = {"AWS_ENDPOINT_URL": url, "TRAINIUM_BUCKET": bucket}
        digest = upload(storage, archive, run=self._run)
        entry = ("script", program.script) if program.script else ("module", program.module)
        self._flags = [
            f"--code={digest}",
            "--{}={}".format(*entry),
            f"--snapshot-every-s={program.snapshot_every_s}",
            "--peer-timeout-s=5",
        ]
        if program.checkpoint_dir:
            self._flags.append(f"--checkpoint-dir={program.checkpoint_dir}")
        if program.resume_later:
            self._flags.append(f"--resume-arguments={program.resume_later}")

    def run_to_its_end(self, *, attempt: int) -> list[str]:
        """Run an attempt that must succeed; return the results in its output."""
        try:
            self._start(attempt)
            codes = self._cluster.end(within_s=scaled(RUN_LIMIT_S))
            if set(codes.values()) != {0}:
                raise TrialFailed(f"attempt {attempt} ended with {codes}\n{self._logs()}")
        finally:
            self._cluster.kill()
        found = self._results()
        if not found:
            failed = HitTooLate if attempt > 1 else TrialFailed
            raise failed(f"no {self._program.result!r} in the output\n{self._logs()}")
        return found

    def said_to_go_on(self) -> bool | None:
        """Return whether the last attempt reported that it resumed, if the program does."""
        pattern = self._program.resumed
        return bool(re.search(pattern, self._cluster.log(0))) if pattern else None

    def run_until_killed(self) -> None:
        """Kill the last node once a snapshot has a checkpoint."""
        try:
            self._start(1)
            self._wait_for_checkpoint()
            _kill_node(self._cluster, self._program.nodes - 1)
            codes = self._cluster.end(within_s=scaled(60))
            # A single node is itself lost; the main node of several reports the lost one.
            if codes[0] != (ExitCode.HOST if self._program.nodes > 1 else 128 + signal.SIGKILL):
                raise TrialFailed(f"node 0 ended with {codes[0]}\n{self._logs()}")
        finally:
            self._cluster.kill()

    def _start(self, attempt: int) -> None:
        self._cluster.start(
            *self._flags,
            "--",
            *self._program.argv,
            workload="program",
            extra={
                "TRAINIUM_RUN": self._run,
                "AWS_BATCH_JOB_ATTEMPT": str(attempt),
                "AWS_ENDPOINT_URL": self._url,
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_REGION": REGION,
                "TRAINIUM_BUCKET": self._bucket,
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "emulators", PACKAGES))),
                # No program may look for models on the network.
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "TRAINIUM_PROCESSES_PER_NODE": str(self._program.processes),
                **(_emulated_device() if self._program.on_neuron else {}),
                **self._program.environment,
            },
        )

    def _wait_for_checkpoint(self) -> None:
        deadline = time.monotonic() + scaled(RUN_LIMIT_S)
        while not self._results() or (self._program.checkpoint and not self._has_checkpoint()):
            if any(node.poll() is not None for node in self._cluster.nodes.values()):
                raise HitTooLate(f"ended before it could be disturbed\n{self._logs()}")
            if time.monotonic() > deadline:
                raise TrialFailed(f"no checkpoint in a snapshot in time\n{self._logs()}")
            time.sleep(0.2)

    def _has_checkpoint(self) -> bool:
        client = s3_client(self._url)
        prefix = run_prefix(self._run, "snapshots")
        answer = client.list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        for key in (item["Key"] for item in answer.get("Contents", [])):
            if not _SNAPSHOT.search(key):
                continue
            try:
                body = client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            except client.exceptions.NoSuchKey:
                # The nodes retain the newest few, so a listed one may be deleted.
                continue
            paths = [item["path"] for item in json.loads(body)["files"]]
            if any(fnmatch.fnmatch(path, self._program.checkpoint) for path in paths):
                return True
        return False

    def _results(self) -> list[str]:
        text = self._cluster.log(0)
        return [match[1] if match.re.groups else match[0] for match in self._found(text)]

    def _found(self, text: str) -> list[re.Match[str]]:
        return list(re.finditer(self._program.result, text))

    def _logs(self) -> str:
        return self._cluster.all_logs()[-6000:]


def _emulated_device() -> dict[str, str]:
    """Return the variables of a node of a deployment for TorchNeuron, on an emulated device."""
    return FOR_NEURON | device_variables(FOR_NEURON, in_container=False)


def _kill_node(cluster: Cluster, index: int) -> None:
    """Kill every process of a node at once, as when a host is lost."""
    mark = f"TRAINIUM_NODE_ADDRESS={cluster.address(index)}".encode()
    for pid in cluster.processes():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def _archive(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, str(path.relative_to(folder)))
    return buffer.getvalue()
