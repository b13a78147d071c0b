"""The steps on the cluster: nodes, an inspected run, two trainings, a lost pod, idle nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import DEPLOYMENT, RehearsalFolder, Settings
from rehearsal.proofs import browser
from rehearsal.proofs import training as evidence
from rehearsal.proofs.tensorboard import DRAWN
from rehearsal.receipt import ClusterTraining, ReceiptCheck
from rehearsal.report import curve
from rehearsal.steps.jobs import LAUNCH_DEFAULTS, armed, ended_run, own_parameters
from rehearsal.steps.runner import Chain, Runner, Step, flags, step
from trainium_catalogue import contract, kubernetes

WORKLOADS = ("mnist", "bert-tiny")
_LOOKED_INTO, _TOO_BIG = "nodes, a run looked into", "a gang too big"
"""Names of chains that others wait for."""
MNIST, BERT, BUSY, BIG = "mnist", "bert", "busy", "too-big"
"""Names of the runs."""
PROBED = "probed-pods"
"""Name of the run of verify."""
PROCESSES_OF = {"mnist": 2, "bert-tiny": 1}
"""Processes per node: data parallelism within a pod, and across pods."""
NODES = 2
"""Nodes of the run that loses a pod."""
SLOW, _FAST = 4, 600
"""Factors by which idle time is sped up. The default of 30 minutes becomes 7 minutes, longer
than any pause in the scenario, and 3 seconds at its end."""
_TRAINIUM_NODES = "trainium/nodes=trainium"
DIGITS, TEXT = "digits", "bert-tiny"
"""Datasets."""
GROUP = 3
"""Nodes that the group is scaled to: both trainings run at the same time."""
TOO_MANY = 4
"""Nodes of the gang that waits for more than there are, within the deployment's maximum."""
_WAITS = "import time\n\ntime.sleep(600)\n"
"""Program of the run that is looked into: it leaves the processor to the others."""
MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""Step in the log at which the pod is killed: well after a save, well before the next."""
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    # As accurate as with the defaults, which take four times as many steps.
    "mnist": {"require-accuracy": "true", "epochs": "10", "lr": "0.1"},
    "bert-tiny": {
        "max-steps": str(MAX_STEPS),
        "save-every": str(SAVE_EVERY),
        "global-batch": "16",
        "micro-batch": "8",
        "warmup-steps": "3",
    },
}


@dataclass(frozen=True, slots=True)
class NodeTurns:
    """Tells when the cluster's nodes are free for a program, and when for these steps again."""

    looked_into: threading.Event = field(default_factory=threading.Event)
    """Set once no step counts the nodes: they have come and gone by command, and were too few."""
    program_ended: threading.Event = field(default_factory=threading.Event)
    """Set once no program needs the nodes, so that time may pass faster for idle ones."""


def parameters(settings: Settings) -> dict[str, dict[str, str]]:
    """Parameters of each workload: the rehearsal's own, then the user's."""
    return {
        name: {**own, **LAUNCH_DEFAULTS, **own_parameters(settings.parameters, name)}
        for name, own in PARAMETERS.items()
    }


def data() -> tuple[Step, ...]:
    """Steps that prepare what the trainings read; they need no nodes, in any order."""
    return tuple(
        step(f"prepare {dataset}", f"jobs submit prepare --dataset {dataset} --yes --follow")
        for dataset in (DIGITS, TEXT)
    )


def nodes(instance_type: str, number: int) -> tuple[Step, ...]:
    """Steps that bring up nodes."""
    ready = rf"(?s)( Ready [^\n]*{instance_type}.*){{{number}}}"
    return (
        step("scale up", f"jobs scale --nodes {number} --yes"),
        step(
            "nodes",
            f"kubectl get nodes -L {kubernetes.NODE_LABEL}",
            says={f"kubectl sees {number} Ready nodes": ready},
        ),
    )


def training(parameters: Mapping[str, Mapping[str, str]]) -> tuple[Step, ...]:
    """Steps of the two runs; the second has a job of its own to compile graphs, and loses a pod."""
    return (
        step(
            MNIST,
            f"jobs submit mnist --on eks --nodes 1 --scale --dataset {DIGITS} --name "
            f"{MNIST} {flags(parameters['mnist'])} --yes --follow",
            processes=PROCESSES_OF["mnist"],
            says={"digits are read as well as they must be": r"accuracy: 0\.\d+ .*within"},
        ),
        step(
            BERT,
            f"jobs submit bert-tiny --on eks --nodes {NODES} --scale --compile --dataset "
            f"{TEXT} --name {BERT} {flags(parameters['bert-tiny'])} --yes --follow",
            processes=PROCESSES_OF["bert-tiny"],
            says={
                "one job compiles into the cache of all": r"cache is cold: no job has compiled",
                "training begins when that job has ended": r"job \S+ has compiled the graphs",
            },
        ),
    )


def drawing(*, with_browser: bool) -> Step:
    """Step that shows a run's loss; ``with_browser`` looks at TensorBoard's page too."""
    drawn = {DRAWN: r"draws a curve of \d+ pixels"} if with_browser else {}
    return step(
        "tensorboard",
        f"jobs tensorboard {MNIST} --no-browser",
        until_seen=MNIST,
        says={
            "TensorBoard has the run's loss": rf"(?s){MNIST}\S* has .*loss",
            **drawn,
        },
    )


def watching(job_ids: Mapping[str, str]) -> tuple[Step, ...]:
    """Steps that inspect the runs, as users, kubectl and TorchX do.

    ``job_ids`` are the names of the Volcano jobs, by run.
    """
    bert, mnist = job_ids[BERT], job_ids[MNIST]
    namespace = kubernetes.NAMESPACE
    task = kubernetes.TASK
    return (
        step(
            "kubectl",
            "kubectl get pods,vcjob",
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
        step(
            "torchx status",
            f"torchx status kubernetes://torchx/{namespace}:{bert}",
            says={"TorchX says that the job succeeded": "SUCCEEDED"},
        ),
        step(
            "torchx list",
            "torchx list -s kubernetes",
            says={"TorchX lists both jobs": rf"(?s)(?=.*{bert})(?=.*{mnist})"},
        ),
        step(
            "status",
            f"jobs status {BERT}",
            says={"status says which pod has rank 0": rf"{bert}-{task}-0-0"},
        ),
        step(
            "list",
            "jobs list",
            says={
                "list has the jobs of Batch and of the cluster": (
                    rf"(?s)(?=.*{BERT})(?=.*{MNIST})(?=.*prepare)"
                )
            },
        ),
    )


def probing() -> tuple[Step, ...]:
    """Steps that run verify and its probes in pods.

    Only the checks for which pods matter, network and bucket: what the others compute is the same
    on as many processes of the other half.
    """
    return (
        step(
            "verify",
            f"jobs submit verify --on eks --nodes {NODES} --name {PROBED} --checks sums,cache "
            "--scale --yes --follow",
        ),
        step(
            "probes",
            f"jobs verify {PROBED}",
            says={"probes in pods are green where they need no hardware": r"\b0 red, 0 crashed"},
        ),
    )


def clock(name: str, factor: int) -> Step:
    """Step that speeds up idle time; a new process of the node scaler takes over."""
    return step(
        name,
        f"kubectl -n {kubernetes.SCALER} set env deployment/{kubernetes.SCALER} "
        f"{contract.ENV_IDLE_CLOCK}={factor}",
        says={"the node scaler runs in the cluster": "env updated"},
    )


def end() -> tuple[Step, ...]:
    """Steps that show idle nodes being removed without anyone asking: idle nodes cost money."""
    return (
        clock("let time pass", _FAST),
        step("idle nodes", f"kubectl wait --for=delete nodes -l {_TRAINIUM_NODES} --timeout=600s"),
        step(
            "who took them",
            f"kubectl -n {kubernetes.SCALER} logs --tail=100 -l "
            f"app.kubernetes.io/name={kubernetes.SCALER}",
            says={
                "the node scaler takes idle nodes away by itself": (
                    r"node \S+: terminated i-\w+: idle since"
                )
            },
        ),
        step(
            "no nodes",
            "jobs scale",
            says={
                "no node is left, and none is wanted": r"0 of at most \d+ nodes .* wanted, 0 are"
            },
        ),
        step(
            "logs",
            f"jobs logs {BERT} --node 0",
            says={
                "the logs of both attempts are there when the nodes are gone": (
                    r"(?s)node 0 \| .*step \d+ of \d+.*node 0, attempt 2 \| .*step \d+ of \d+"
                )
            },
        ),
    )


def refused() -> Step:
    """Step that submits a job before there are nodes."""
    return step(
        "refused",
        f"jobs submit all-reduce --on eks --nodes {NODES} --yes",
        exit_code=2,
        says={"without nodes, submit names the command that gets them": rf"scale --nodes {NODES}"},
    )


def waiting_program(folder: RehearsalFolder) -> Path:
    """Write the program that waits, in a folder of its own, as submit packs all that is there."""
    path = folder.path / BUSY / "wait.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_WAITS, encoding="utf-8")
    return path


def watched(program: Path) -> tuple[Step, ...]:
    """Steps that inspect a run from inside until they stop it."""
    hello = 'echo "node $TRAINIUM_NODE_INDEX of $TRAINIUM_NUM_NODES of $TRAINIUM_RUN"'
    return (
        step(
            "submit busy",
            f"jobs submit {quote(str(program))} --on eks --nodes {NODES} --name {BUSY} --yes",
        ),
        # kubectl does not wait for pods of which there is none yet.
        step(
            "wait for the job",
            "kubectl wait --for=jsonpath={.status.state.phase}=Running vcjob "
            f"-l {kubernetes.LABEL_RUN}={BUSY} --timeout=300s",
        ),
        step(
            "wait for pods",
            f"kubectl wait --for=condition=Ready pods -l {kubernetes.LABEL_RUN}={BUSY} "
            "--timeout=300s",
            says={"kubectl waits for every pod of a run": rf"(?s)(condition met.*){{{NODES}}}"},
        ),
        step(
            "shell",
            f"jobs shell {BUSY} --node 1 -- sh -c {quote(hello)}",
            says={"a command runs inside a node's pod": rf"node 1 of {NODES} of {BUSY}"},
        ),
        step(
            "top",
            f"jobs top {BUSY}",
            says={
                "top shows processor and memory of each pod, and says that they are of processes": (
                    r"(?s)vCPU %.*memory"
                    r".* 0 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                    r".* 1 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                )
            },
        ),
        step(
            "fewer nodes",
            f"jobs scale --nodes {NODES}",
            says={"scale takes an idle node": rf"{GROUP} -> {NODES} nodes"},
        ),
        step(
            "busy nodes",
            f"kubectl get pods -l {kubernetes.LABEL_RUN}={BUSY}",
            says={"and leaves the nodes of a run alone": rf"(?s)( 1/1 +Running +0 .*){{{NODES}}}"},
        ),
        step(
            "stop",
            f"jobs stop {BUSY} --grace 60",
            says={"a run that is stopped ends, and says who stopped it": r"stopped by"},
        ),
    )


def too_big() -> tuple[Step, ...]:
    """Steps of a gang for which there are too few nodes, which only `submit` would refuse."""
    queue = f"queue={kubernetes.QUEUE},namespace={kubernetes.NAMESPACE}"
    return (
        step(
            "torchx run",
            f"torchx run -s kubernetes --workspace '' -cfg {queue} "
            f"jobs/torchx_components.py:all_reduce --nnodes {TOO_MANY} --name {BIG} "
            f"--deployment {DEPLOYMENT}",
            says={"TorchX alone submits a component": r"kubernetes://torchx/"},
        ),
        step(
            "why it waits",
            f"jobs status {BIG}",
            says={
                "a gang that is too big waits, and status names the command that helps": (
                    rf"(?s)RUNNABLE.*needs {TOO_MANY} nodes.*scale --nodes {TOO_MANY}"
                )
            },
        ),
        step(
            "no pods",
            f"kubectl get pods -l {kubernetes.LABEL_RUN}={BIG}",
            says={"no pod of a gang starts without the others": r"No resources found"},
        ),
        step(
            "stop what waits",
            f"jobs stop {BIG} --grace 20",
            says={"a gang that waits can be stopped": r"cancelled before it starts"},
        ),
    )


def before_training(settings: Settings, program: Path) -> tuple[Chain, ...]:
    """Chains that the trainings need, and a run that is inspected meanwhile.

    One data job at a time, so that the other half's starts at once: the emulator runs as many as
    the machine has processors.
    """
    digits, text = data()
    looks = (
        # Gives kubectl and TorchX access.
        step("kubeconfig", "jobs kubeconfig"),
        clock("clock", SLOW),
        refused(),
        *nodes(settings.instance_type, GROUP),
        *watched(program),
    )
    return (
        Chain(name=TEXT, steps=(text,)),
        Chain(name=DIGITS, after=(TEXT,), steps=(digits,)),
        Chain(name=_LOOKED_INTO, steps=looks),
    )


def trainings(
    settings: Settings, program: Path, turns: NodeTurns, *, with_browser: bool
) -> tuple[Chain, ...]:
    """Chains of both trainings, each started as early as possible, beside a gang too big to fit.

    Probes, and a look at the shorter training, follow while the longer one is still under way.
    """
    mnist, bert = training(parameters(settings))
    return (
        *before_training(settings, program),
        Chain(name=BERT, after=(TEXT, _LOOKED_INTO), steps=(bert,)),
        Chain(name=MNIST, after=(DIGITS, _LOOKED_INTO), steps=(mnist,)),
        Chain(name=_TOO_BIG, after=(_LOOKED_INTO,), steps=too_big(), ended=turns.looked_into.set),
        Chain(name="verify", after=(MNIST, _TOO_BIG), steps=probing()),
        Chain(name="tensorboard", after=(MNIST,), steps=(drawing(with_browser=with_browser),)),
    )


def afterwards(job_ids: Mapping[str, str]) -> tuple[Chain, ...]:
    """Chains after the trainings: inspections of the runs, and the end of idle nodes."""
    looks = [Chain(name=step.name, steps=(step,)) for step in watching(job_ids)]
    return (*looks, Chain(name="idle nodes", after=tuple(c.name for c in looks), steps=end()))


def run(
    settings: Settings,
    *,
    aws: EmulatedAccount,
    folder: RehearsalFolder,
    runner: Runner,
    turns: NodeTurns,
) -> ClusterTraining:
    """Run every command, and report how it went."""
    with armed(aws, run=BERT, kind="kill-child", after=KILLED_AFTER):
        looked_into = waiting_program(folder)
        runner.run(trainings(settings, looked_into, turns, with_browser=browser.is_installed()))
    result = ClusterTraining(steps=runner.steps, checks=runner.checks)
    for name in (MNIST, BERT):
        # A refused submission leaves no job.
        if (step := runner.step(name)) is not None and step.exit_code in (0, 1):
            fault = "kill-child" if name == BERT else None
            result.runs.append(ended_run(runner, name, run=name, fault=fault, on_cluster=True))
    if all((step := runner.step(name)) and step.exit_code == 0 for name in (MNIST, BERT)):
        _look(result, aws=aws, folder=folder, log=runner.log(BERT), given=parameters(settings))
        ids = {run.run: str(run.job_id) for run in result.runs}
        turns.program_ended.wait()
        runner.run(afterwards(ids))
    return result


def _look(
    result: ClusterTraining,
    *,
    aws: EmulatedAccount,
    folder: RehearsalFolder,
    log: Path,
    given: Mapping[str, Mapping[str, str]],
) -> None:
    """Read what the runs left in the bucket, and judge it."""
    plan = evidence.ExpectedTraining(
        max_steps=int(given["bert-tiny"]["max-steps"]),
        save_every=int(given["bert-tiny"]["save-every"]),
        killed_after=KILLED_AFTER,
    )
    found = evidence.gather_training(aws, run=BERT, log=log, plan=plan)
    result.attempts, result.resumed_from = found.attempts, found.resumed_from
    result.killed_after = KILLED_AFTER
    figure = folder.path / "bert-loss.svg"
    curve.write_svg(
        figure,
        found.attempts,
        title=f"bert-tiny on {NODES} nodes: loss by step",
        killed_after=KILLED_AFTER,
        resumed_from=found.resumed_from,
    )
    result.figure = str(figure)
    result.checks += [
        *(ReceiptCheck(name=f"{BERT}: {c.name}", ok=c.ok, detail=c.detail) for c in found.checks),
        evidence.judge_finished(aws, MNIST),
    ]
