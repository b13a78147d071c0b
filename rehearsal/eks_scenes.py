"""The cluster's story as commands: what a user types, how each must end, and what it must say."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rehearsal.binaries import kubectl
from rehearsal.state import DEPLOYMENT
from trainium_catalogue import contract, kubernetes

MNIST, BERT = "mnist", "bert"
"""Names of the runs."""
PROBED = "probed-pods"
"""Run of verify."""
PROCESSES_OF = {"mnist": 2, "bert-tiny": 1}
"""Processes per node: data parallel in a pod, and over pods."""
NODES = 2
"""Of the run that loses a pod."""
SLOW, _FAST = 10, 600
"""How much faster idle time passes: for the default of 30 minutes 3 minutes, longer than any pause
of the story, and at its end 3 seconds."""
_TRAINIUM_NODES = "trainium/nodes=trainium"
DIGITS, TEXT = "digits", "bert-tiny"
"""Datasets."""
DRAWN = "a headless browser finds the loss curve on its page"
"""Check that only a machine with a browser makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One command of the story."""

    name: str
    program: str
    """``jobs``, ``kubectl`` or ``torchx``."""
    words: tuple[str, ...]
    processes: int | None = None
    """Per node, where the helper counts ranks."""
    until_seen: str = ""
    """Run that TensorBoard has to show before the command is interrupted."""
    exit_code: int = 0
    says: Mapping[str, str] = field(default_factory=dict)
    """What must be so, and the regular expression that must be in the output for it."""

    @property
    def shown(self) -> str:
        """As a user types it."""
        program = "python -m jobs" if self.program == "jobs" else self.program
        return " ".join((program, *self.words))


def command(scene: Scene) -> tuple[str, ...]:
    """As it is started."""
    match scene.program:
        case "jobs":
            return (sys.executable, "-m", "jobs", "--deployment", DEPLOYMENT, *scene.words)
        case "kubectl":
            return (str(kubectl()), *scene.words)
        case other:
            return (str(Path(sys.executable).parent / other), *scene.words)


def _flags(parameters: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in parameters.items() for word in (f"--{name}", value))


def access() -> tuple[Scene, ...]:
    """What lets kubectl and TorchX in."""
    return (Scene(name="kubeconfig", program="jobs", words=("kubeconfig",)),)


def data() -> tuple[Scene, ...]:
    """What the trainings read; it needs no nodes, and the order does not matter."""
    return tuple(
        Scene(
            name=f"prepare {dataset}",
            program="jobs",
            words=("submit", "prepare", "--dataset", dataset, "--yes", "--follow"),
        )
        for dataset in (DIGITS, TEXT)
    )


def nodes(instance_type: str, number: int) -> tuple[Scene, ...]:
    """Nodes that are there."""
    ready = rf"(?s)( Ready [^\n]*{instance_type}.*){{{number}}}"
    return (
        Scene(name="scale up", program="jobs", words=("scale", "--nodes", str(number), "--yes")),
        Scene(
            name="nodes",
            program="kubectl",
            words=("get", "nodes", "-L", kubernetes.NODE_LABEL),
            says={f"kubectl sees {number} Ready nodes": ready},
        ),
    )


def training(parameters: Mapping[str, Mapping[str, str]]) -> tuple[Scene, ...]:
    """The two runs; the second has its graphs compiled by a job of its own, and loses a pod."""
    submit, last = ("submit",), ("--yes", "--follow")
    return (
        Scene(
            name=MNIST,
            program="jobs",
            processes=PROCESSES_OF["mnist"],
            words=(
                *submit, "mnist", "--on", "eks", "--nodes", "1", "--scale", "--dataset", DIGITS,
                "--name", MNIST, *_flags(parameters["mnist"]), *last,
            ),
            says={"digits are read as well as they must be": r"accuracy: 0\.\d+ .*within"},
        ),
        Scene(
            name=BERT,
            program="jobs",
            processes=PROCESSES_OF["bert-tiny"],
            words=(
                *submit, "bert-tiny", "--on", "eks", "--nodes", str(NODES),
                "--scale", "--compile", "--dataset", TEXT, "--name", BERT,
                *_flags(parameters["bert-tiny"]), *last,
            ),
            says={
                "one job compiles into the cache of all": r"cache is cold: no job has compiled",
                "training begins when that job has ended": r"job \S+ has compiled the graphs",
            },
        ),
    )  # fmt: skip


def watching(job_ids: Mapping[str, str], *, with_browser: bool) -> tuple[Scene, ...]:
    """What users, kubectl and TorchX see of the runs.

    Args:
        job_ids: Names of the Volcano jobs, by run.
        with_browser: Look at TensorBoard's page as well.
    """
    bert, mnist = job_ids[BERT], job_ids[MNIST]
    namespace = kubernetes.NAMESPACE
    task = kubernetes.TASK
    drawn = {DRAWN: r"draws a curve of \d+ pixels"} if with_browser else {}
    return (
        Scene(
            name="kubectl",
            program="kubectl",
            words=("get", "pods,vcjob"),
            says={
                "kubectl sees a pod per node, all completed": (
                    rf"(?s){bert}-{task}-0-0 .*Completed.*{bert}-{task}-1-0 .*Completed"
                ),
                "kubectl sees both Volcano jobs completed": (
                    rf"(?s)(?=.*job.batch.volcano.sh/{bert} +Completed)"
                    rf"(?=.*job.batch.volcano.sh/{mnist} +Completed)"
                ),
            },
        ),
        Scene(
            name="torchx status",
            program="torchx",
            words=("status", f"kubernetes://torchx/{namespace}:{bert}"),
            says={"TorchX says that the job succeeded": "SUCCEEDED"},
        ),
        Scene(
            name="torchx list",
            program="torchx",
            words=("list", "-s", "kubernetes"),
            says={"TorchX lists both jobs": rf"(?s)(?=.*{bert})(?=.*{mnist})"},
        ),
        Scene(
            name="status",
            program="jobs",
            words=("status", BERT),
            says={"status says which pod has rank 0": rf"{bert}-{task}-0-0"},
        ),
        Scene(
            name="logs",
            program="jobs",
            words=("logs", BERT, "--node", "0"),
            says={"logs are read from the pod": r"step \d+ of \d+"},
        ),
        Scene(
            name="list",
            program="jobs",
            words=("list",),
            says={"list has the jobs of Batch and of the cluster": (
                rf"(?s)(?=.*{BERT})(?=.*{MNIST})(?=.*prepare)"
            )},
        ),
        Scene(
            name="tensorboard",
            program="jobs",
            words=("tensorboard", BERT, "--no-browser"),
            until_seen=BERT,
            says={
                "the cluster's TensorBoard has the run's loss": (
                    rf"(?s)from the cluster.*{BERT}\S* has .*loss"
                ),
                **drawn,
            },
        ),
    )  # fmt: skip


def probing() -> tuple[Scene, ...]:
    """What verify and the probes find in pods."""
    return (
        Scene(
            name="verify",
            program="jobs",
            words=(
                *("submit", "verify", "--on", "eks", "--nodes", str(NODES), "--name", PROBED),
                *("--scale", "--yes", "--follow"),
            ),
        ),
        Scene(
            name="probes",
            program="jobs",
            words=("verify", PROBED),
            says={"probes in pods are green where they need no hardware": r"\b0 red, 0 crashed"},
        ),
    )


def clock(name: str, factor: int) -> Scene:
    """Let idle time pass faster; it is another process of the node scaler that goes on."""
    return Scene(
        name=name,
        program="kubectl",
        words=(
            *("-n", kubernetes.SCALER, "set", "env", f"deployment/{kubernetes.SCALER}"),
            f"{contract.ENV_IDLE_CLOCK}={factor}",
        ),
        says={"the node scaler runs in the cluster": "env updated"},
    )


def end() -> tuple[Scene, ...]:
    """Nodes cost money, and nobody is there to give them up."""
    return (
        clock("let time pass", _FAST),
        Scene(
            name="idle nodes",
            program="kubectl",
            words=("wait", "--for=delete", "nodes", "-l", _TRAINIUM_NODES, "--timeout=120s"),
        ),
        Scene(
            name="who took them",
            program="kubectl",
            words=(
                *("-n", kubernetes.SCALER, "logs", "--tail=100"),
                *("-l", f"app.kubernetes.io/name={kubernetes.SCALER}"),
            ),
            says={
                "the node scaler takes idle nodes away by itself": (
                    r"node \S+: terminated i-\w+, idle since"
                )
            },
        ),
        Scene(
            name="no nodes",
            program="jobs",
            words=("scale",),
            says={
                "no node is left, and none is wanted": r"0 of at most \d+ nodes .* wanted, 0 are"
            },
        ),
    )
