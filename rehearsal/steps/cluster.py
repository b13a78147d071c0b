"""The steps on the cluster: nodes, an inspected run, two training runs, a lost pod, idle nodes."""

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
from rehearsal.steps.jobs import LAUNCH_DEFAULTS, armed, own_parameters, read_finished_run
from rehearsal.steps.notifications import subscribed
from rehearsal.steps.runner import Chain, Runner, Step, flags, step
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.contract import Orchestrator

WORKLOADS = ("mnist", "bert-tiny")
_INSPECTED, _TOO_BIG = "nodes, an inspected run", "a gang that is too large"
"""Names of chains that other chains wait for."""
MNIST, BERT, BUSY, BIG = "mnist", "bert", "busy", "too-big"
"""Names of the runs."""
PROBED = "probed-pods"
"""Name of verify's run."""
PROCESSES_OF = {"mnist": 2, "bert-tiny": 1}
"""Processes per node: data parallelism within a pod, and across pods."""
NODES = 2
"""Nodes of the run with a lost pod."""
SLOW, _FAST = 4, 600
"""Factors by which idle time is sped up. The default idle timeout of 30 minutes becomes 7 minutes,
longer than any pause in the scenario, and finally 3 seconds."""
_TRAINIUM_NODES = "trainium/nodes=trainium"
DIGITS, TEXT = "digits", "bert-tiny"
"""Datasets."""
GROUP = 3
"""Size of the node group, large enough for concurrent training runs."""
TOO_MANY = 4
"""Nodes of a waiting gang: more than there are, but within the deployment's maximum."""
_SNAPSHOT_LIMIT_S = 60.0
"""Longer than the node scaler's interval between cluster snapshots."""
_WAITING_PROGRAM = "import time\n\ntime.sleep(600)\n"
"""Program of the inspected run, which uses no CPU time."""
MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""Logged step at which the pod is killed: well after a save, well before the next."""
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    # These values reach the accuracy of the defaults in a quarter of the steps.
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
    """Signals that nodes are free for a program, and afterwards for the other steps."""

    inspected: threading.Event = field(default_factory=threading.Event)
    """Set once no step depends on the cluster's number of nodes."""
    program_ended: Mapping[str, threading.Event] = field(
        default_factory=lambda: {name: threading.Event() for name in Orchestrator}
    )
    """By orchestrator: set once no program needs its nodes. Then `verify` may use Batch's nodes,
    and the idle time of the cluster's nodes may be sped up."""


def parameters(settings: Settings) -> dict[str, dict[str, str]]:
    """Return the parameters of each workload: the rehearsal's, overridden by the user's."""
    return {
        name: {**own, **LAUNCH_DEFAULTS, **own_parameters(settings.parameters, name)}
        for name, own in PARAMETERS.items()
    }


def data() -> tuple[Step, ...]:
    """Return the steps that prepare the datasets, without nodes and in any order."""
    return tuple(
        step(f"prepare {dataset}", f"jobs submit prepare --dataset {dataset} --yes --follow")
        for dataset in (DIGITS, TEXT)
    )


def nodes(instance_type: str, number: int) -> tuple[Step, ...]:
    """Return the steps that bring up nodes."""
    ready = rf"(?s)( Ready [^\n]*{instance_type}.*){{{number}}}"
    return (
        step("scale up", f"jobs scale --nodes {number} --yes"),
        step(
            "nodes",
            f"kubectl get nodes -L {kubernetes.NODE_LABEL}",
            expects={f"kubectl sees {number} Ready nodes": ready},
        ),
    )


def training(
    parameters: Mapping[str, Mapping[str, str]], *, has_compile_job: bool
) -> tuple[Step, ...]:
    """Return the steps of the two runs; the second has a compile job and loses a pod.

    TorchNeuron compiles during training, without a compile job.
    """
    compiled = {
        "one job compiles into the shared cache": r"cache is cold: no job has compiled",
        "training starts when that job has ended": r"job \S+ has compiled the graphs",
    }
    return (
        step(
            MNIST,
            f"jobs submit mnist --on eks --nodes 1 --scale --dataset {DIGITS} --name "
            f"{MNIST} {flags(parameters['mnist'])} --yes --follow",
            processes=PROCESSES_OF["mnist"],
            expects={"the accuracy is in the required band": r"accuracy: 0\.\d+ .*within"},
        ),
        step(
            BERT,
            f"jobs submit bert-tiny --on eks --nodes {NODES} --scale "
            f"{'--compile ' if has_compile_job else ''}--dataset {TEXT} --name {BERT} "
            f"{flags(parameters['bert-tiny'])} --yes --follow",
            processes=PROCESSES_OF["bert-tiny"],
            expects=compiled if has_compile_job else {},
        ),
    )


def drawing(*, with_browser: bool) -> Step:
    """Return the step that shows a run's loss; ``with_browser`` also opens TensorBoard's page."""
    drawn = {DRAWN: r"draws a curve of \d+ pixels"} if with_browser else {}
    return step(
        "tensorboard",
        f"jobs tensorboard {MNIST} --no-browser",
        until_seen=MNIST,
        expects={
            "TensorBoard shows the run's loss": rf"(?s){MNIST}\S* has .*loss",
            **drawn,
        },
    )


def inspections(job_ids: Mapping[str, str]) -> tuple[Step, ...]:
    """Return the steps that inspect the runs with this project's CLI, kubectl and TorchX.

    ``job_ids`` are the names of the Volcano jobs by run.
    """
    bert, mnist = job_ids[BERT], job_ids[MNIST]
    namespace = kubernetes.NAMESPACE
    task = kubernetes.TASK
    return (
        step(
            "kubectl",
            "kubectl get pods,vcjob",
            expects={
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
            expects={"TorchX reports that the job succeeded": "SUCCEEDED"},
        ),
        step(
            "torchx list",
            "torchx list -s kubernetes",
            expects={"TorchX lists both jobs": rf"(?s)(?=.*{bert})(?=.*{mnist})"},
        ),
        step(
            "status",
            f"jobs status {BERT}",
            expects={"status names the pod of rank 0": rf"{bert}-{task}-0-0"},
        ),
        step("report", f"jobs report {BERT} --json"),
        step(
            "list",
            "jobs list",
            expects={
                "list shows the jobs of Batch and of the cluster": (
                    rf"(?s)(?=.*{BERT})(?=.*{MNIST})(?=.*prepare)"
                )
            },
        ),
    )


def probing() -> tuple[Step, ...]:
    """Return the steps that run verify and its probes in pods.

    They include only checks that depend on pods, network and bucket; the other half covers the
    rest.
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
            expects={"probes in pods are green where they need no hardware": r"\b0 red, 0 crashed"},
        ),
    )


def clock(name: str, factor: int) -> Step:
    """Return the step that speeds up idle time by restarting the node scaler."""
    return step(
        name,
        f"kubectl -n {kubernetes.SCALER} set env deployment/{kubernetes.SCALER} "
        f"{contract.ENV_IDLE_CLOCK}={factor}",
        expects={"the node scaler runs in the cluster": "env updated"},
    )


def end() -> tuple[Step, ...]:
    """Return the steps that show that idle nodes are removed automatically."""
    return (
        clock("speed up time", _FAST),
        step("idle nodes", f"kubectl wait --for=delete nodes -l {_TRAINIUM_NODES} --timeout=600s"),
        step(
            "removed by",
            f"kubectl -n {kubernetes.SCALER} logs --tail=100 -l "
            f"app.kubernetes.io/name={kubernetes.SCALER}",
            expects={
                "the node scaler removes idle nodes automatically": (
                    r"node \S+: terminated i-\w+: idle since"
                )
            },
        ),
        step(
            "no nodes",
            "jobs scale",
            expects={"no node is left": r"nodes of \S+: 0 requested of at most \d+, 0 ready"},
        ),
        step(
            "logs",
            f"jobs logs {BERT} --node 0",
            expects={
                "the logs of both attempts remain after the nodes are removed": (
                    r"(?s)node 0 \| .*step \d+ of \d+.*node 0, attempt 2 \| .*step \d+ of \d+"
                )
            },
        ),
    )


def refused() -> Step:
    """Return the step whose job is refused because there are no nodes yet."""
    return step(
        "refused",
        f"jobs submit all-reduce --on eks --nodes {NODES} --yes",
        exit_code=2,
        expects={
            "without nodes, submit names the command that adds them": rf"scale --nodes {NODES}"
        },
    )


def waiting_program(folder: RehearsalFolder) -> Path:
    """Write the waiting program to a separate folder, because submit packs the whole folder."""
    path = folder.path / BUSY / "wait.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_WAITING_PROGRAM, encoding="utf-8")
    return path


def inspected(program: Path) -> tuple[Step, ...]:
    """Return the steps that inspect a run from inside, then stop it."""
    hello = 'echo "node $TRAINIUM_NODE_INDEX of $TRAINIUM_NUM_NODES of $TRAINIUM_RUN"'
    return (
        step(
            "submit busy",
            f"jobs submit {quote(str(program))} --on eks --nodes {NODES} --name {BUSY} --yes",
        ),
        # kubectl does not wait for pods that do not exist yet.
        step(
            "wait for the job",
            "kubectl wait --for=jsonpath={.status.state.phase}=Running vcjob "
            f"-l {kubernetes.LABEL_RUN}={BUSY} --timeout=300s",
        ),
        step(
            "wait for pods",
            f"kubectl wait --for=condition=Ready pods -l {kubernetes.LABEL_RUN}={BUSY} "
            "--timeout=300s",
            expects={"kubectl waits for every pod of a run": rf"(?s)(condition met.*){{{NODES}}}"},
        ),
        step(
            "shell",
            f"jobs shell {BUSY} --node 1 -- sh -c {quote(hello)}",
            expects={"a command runs inside a node's pod": rf"node 1 of {NODES} of {BUSY}"},
        ),
        step(
            "top",
            f"jobs top {BUSY}",
            expects={
                "top shows vCPUs and memory of each pod, measured from processes": (
                    r"(?s)vCPU %.*memory"
                    r".* 0 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                    r".* 1 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                )
            },
        ),
        step(
            "fewer nodes",
            f"jobs scale --nodes {NODES}",
            expects={"scale removes an idle node": rf"{GROUP} -> {NODES} nodes"},
        ),
        step(
            "busy nodes",
            f"kubectl get pods -l {kubernetes.LABEL_RUN}={BUSY}",
            expects={"scale keeps the nodes of a run": rf"(?s)( 1/1 +Running +0 .*){{{NODES}}}"},
        ),
        step(
            "stop",
            f"jobs stop {BUSY} --wait 60",
            expects={"stop ends the run, and names the user who stopped it": r"stopped by"},
        ),
    )


def too_big() -> tuple[Step, ...]:
    """Return the steps of a gang that is too large, sent by TorchX: `submit` would refuse it."""
    queue = f"queue={kubernetes.QUEUE},namespace={kubernetes.NAMESPACE}"
    return (
        step(
            "torchx run",
            f"torchx run -s kubernetes --workspace '' -cfg {queue} "
            f"jobs/torchx_components.py:all_reduce --nnodes {TOO_MANY} --name {BIG} "
            f"--deployment {DEPLOYMENT}",
            expects={"TorchX alone submits a component": r"kubernetes://torchx/"},
        ),
        step(
            "why it waits",
            f"jobs status {BIG}",
            expects={
                "a gang that is too large waits, and status names the command that helps": (
                    rf"(?s)RUNNABLE.*needs {TOO_MANY} nodes.*scale --nodes {TOO_MANY}"
                )
            },
        ),
        step(
            "no pods",
            f"kubectl get pods -l {kubernetes.LABEL_RUN}={BIG}",
            expects={"no pod of a gang starts without the others": r"No resources found"},
        ),
        step(
            "stop what waits",
            f"jobs stop {BIG} --wait 20",
            expects={"a gang that waits can be stopped": r"cancelled before it starts"},
        ),
    )


def before_training(settings: Settings, program: Path) -> tuple[Chain, ...]:
    """Return the chains that training needs, and a run inspected in parallel.

    Data jobs run one at a time, so that the data job of the Batch half starts immediately: the
    emulator runs only as many at once as the machine has processors.
    """
    digits, text = data()
    steps = (
        # Later steps use this kubeconfig with kubectl and TorchX.
        step("kubeconfig", "jobs kubeconfig"),
        clock("clock", SLOW),
        refused(),
        *nodes(settings.instance_type, GROUP),
        *inspected(program),
    )
    return (
        Chain(name=TEXT, steps=(text,)),
        Chain(name=DIGITS, after=(TEXT,), steps=(digits,)),
        Chain(name=_INSPECTED, steps=steps),
    )


def trainings(
    settings: Settings, program: Path, turns: NodeTurns, *, with_browser: bool
) -> tuple[Chain, ...]:
    """Return the chains of both training runs, started as early as possible, and a waiting gang.

    Probes, and TensorBoard for the shorter run, follow during the longer run.
    """
    mnist, bert = training(parameters(settings), has_compile_job=not settings.on_neuron_device)
    return (
        *before_training(settings, program),
        Chain(name=BERT, after=(TEXT, _INSPECTED), steps=(bert,)),
        Chain(name=MNIST, after=(DIGITS, _INSPECTED), steps=(mnist,)),
        Chain(name=_TOO_BIG, after=(_INSPECTED,), steps=too_big(), ended=turns.inspected.set),
        Chain(name="verify", after=(MNIST, _TOO_BIG), steps=probing()),
        Chain(name="tensorboard", after=(MNIST,), steps=(drawing(with_browser=with_browser),)),
    )


def afterwards(job_ids: Mapping[str, str]) -> tuple[Chain, ...]:
    """Return the chains after training: inspections of the runs, and removal of idle nodes."""
    chains = [Chain(name=step.name, steps=(step,)) for step in inspections(job_ids)]
    return (*chains, Chain(name="idle nodes", after=tuple(c.name for c in chains), steps=end()))


def run(
    settings: Settings,
    *,
    aws: EmulatedAccount,
    folder: RehearsalFolder,
    runner: Runner,
    turns: NodeTurns,
) -> ClusterTraining:
    """Run every command, and report the results."""
    with armed(aws, run=BERT, kind="kill-child", after=KILLED_AFTER):
        waiting = waiting_program(folder)
        runner.run(trainings(settings, waiting, turns, with_browser=browser.is_installed()))
    result = ClusterTraining(steps=runner.steps, checks=runner.checks)
    for name in (MNIST, BERT):
        # A refused submission has no job.
        if (step := runner.step(name)) is not None and step.exit_code in (0, 1):
            fault = "kill-child" if name == BERT else None
            result.runs.append(
                read_finished_run(runner, name, run=name, fault=fault, on_cluster=True)
            )
    if all((step := runner.step(name)) and step.exit_code == 0 for name in (MNIST, BERT)):
        _check(result, aws=aws, folder=folder, log=runner.log(BERT), values=parameters(settings))
        ids = {run.run: str(run.job_id) for run in result.runs}
        turns.program_ended[Orchestrator.EKS].wait()
        runner.run(afterwards(ids))
        result.checks.append(evidence.judge_report(runner.log("report"), of=runner.log(BERT)))
    with subscribed(aws) as queue:
        for record in result.runs:
            # The function reads the node scaler's periodic cluster snapshots.
            queue.check(record, limit_s=_SNAPSHOT_LIMIT_S)
    return result


def _check(
    result: ClusterTraining,
    *,
    aws: EmulatedAccount,
    folder: RehearsalFolder,
    log: Path,
    values: Mapping[str, Mapping[str, str]],
) -> None:
    """Read the runs' results from the bucket, and check them."""
    plan = evidence.ExpectedTraining(
        max_steps=int(values["bert-tiny"]["max-steps"]),
        save_every=int(values["bert-tiny"]["save-every"]),
        killed_after=KILLED_AFTER,
    )
    gathered = evidence.gather_training(aws, run=BERT, log=log, plan=plan)
    result.attempts, result.resumed_from = gathered.attempts, gathered.resumed_from
    result.killed_after = KILLED_AFTER
    figure = folder.path / "bert-loss.svg"
    curve.write_svg(
        figure,
        gathered.attempts,
        title=f"bert-tiny on {NODES} nodes: loss by step",
        killed_after=KILLED_AFTER,
        resumed_from=gathered.resumed_from,
    )
    result.figure = str(figure)
    result.checks += [
        *(
            ReceiptCheck(name=f"{BERT}: {c.name}", ok=c.ok, detail=c.detail)
            for c in gathered.checks
        ),
        evidence.judge_finished(aws, MNIST),
    ]
