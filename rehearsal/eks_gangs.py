"""Scenes about gangs: one that users look into while it runs, and one that is too big."""

from __future__ import annotations

from rehearsal.eks_scenes import NODES, Scene
from rehearsal.state import DEPLOYMENT
from trainium_catalogue import kubernetes

BUSY, BIG = "busy", "too-big"
"""Names of the runs."""
GROUP = 3
"""Nodes that the group is scaled to: both trainings go on at the same time."""
TOO_MANY = 4
"""Nodes of the gang that waits for more than there are; the deployment may have as many."""
_ENDLESS = ("iterations=1000000", "seconds-per-size=600", "total-seconds=600", "max-bytes=1024")


def refused() -> Scene:
    """A submission before there are nodes."""
    return Scene(
        name="refused",
        program="jobs",
        words=("submit", "all-reduce", "--on", "eks", "--nodes", str(NODES), "--yes"),
        exit_code=2,
        says={"without nodes, submit names the command that gets them": rf"scale --nodes {NODES}"},
    )


def watched() -> tuple[Scene, ...]:
    """A run that goes on until it is stopped, seen from inside."""
    endless = tuple(word for pair in _ENDLESS for word in ("--set", pair))
    hello = 'echo "node $TRAINIUM_NODE_INDEX of $TRAINIUM_NUM_NODES of $TRAINIUM_RUN"'
    return (
        Scene(
            name="submit busy",
            program="jobs",
            words=("submit", "all-reduce", "--on", "eks", "--nodes", str(NODES), "--name", BUSY,
                   "--yes", *endless),
        ),
        Scene(
            name="wait for pods",
            program="kubectl",
            words=("wait", "--for=condition=Ready", "pods", "-l",
                   f"{kubernetes.LABEL_RUN}={BUSY}", "--timeout=60s"),
            says={"kubectl waits for every pod of a run": rf"(?s)(condition met.*){{{NODES}}}"},
        ),
        Scene(
            name="shell",
            program="jobs",
            words=("shell", BUSY, "--node", "1", "--", "sh", "-c", hello),
            says={"a command runs inside a node's pod": rf"node 1 of {NODES} of {BUSY}"},
        ),
        Scene(
            name="top",
            program="jobs",
            words=("top", BUSY),
            says={
                "top shows processor and memory of each pod, and says that they are of processes": (
                    r"(?s)vCPU %.*memory"
                    r".* 0 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                    r".* 1 [^\n]* \d+\.\d [^\n]* \d+\.\d\d .*processes"
                )
            },
        ),
        Scene(
            name="fewer nodes",
            program="jobs",
            words=("scale", "--nodes", str(NODES)),
            says={"scale takes an idle node": rf"{GROUP} -> {NODES} nodes"},
        ),
        Scene(
            name="busy nodes",
            program="kubectl",
            words=("get", "pods", "-l", f"{kubernetes.LABEL_RUN}={BUSY}"),
            says={"and leaves the nodes of a run alone": rf"(?s)( 1/1 +Running +0 .*){{{NODES}}}"},
        ),
        Scene(
            name="stop",
            program="jobs",
            words=("stop", BUSY, "--grace", "60"),
            says={"a run that is stopped ends, and says who stopped it": r"stopped by"},
        ),
    )  # fmt: skip


def too_big() -> tuple[Scene, ...]:
    """A gang for which there are too few nodes, which only `submit` would have refused."""
    queue = f"queue={kubernetes.QUEUE},namespace={kubernetes.NAMESPACE}"
    return (
        Scene(
            name="torchx run",
            program="torchx",
            words=("run", "-s", "kubernetes", "--workspace", "", "-cfg", queue,
                   "jobs/torchx_components.py:all_reduce", "--nnodes", str(TOO_MANY),
                   "--name", BIG, "--deployment", DEPLOYMENT),
            says={"TorchX alone submits a component": r"kubernetes://torchx/"},
        ),
        Scene(
            name="why it waits",
            program="jobs",
            words=("status", BIG),
            says={
                "a gang that is too big waits, and status names the command that helps": (
                    rf"(?s)RUNNABLE.*needs {TOO_MANY} nodes.*scale --nodes {TOO_MANY}"
                )
            },
        ),
        Scene(
            name="no pods",
            program="kubectl",
            words=("get", "pods", "-l", f"{kubernetes.LABEL_RUN}={BIG}"),
            says={"no pod of a gang starts without the others": r"No resources found"},
        ),
        Scene(name="stop what waits", program="jobs", words=("stop", BIG, "--grace", "20"),
              says={"a gang that waits can be stopped": r"cancelled before it starts"}),
    )  # fmt: skip
