"""The cluster's story, told with the user's own commands: nodes, two trainings, a lost pod."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from rehearsal import browser, cdk, curve, eks_gangs, eks_scenes, evidence, tensorboard
from rehearsal.aws import Aws
from rehearsal.eks_scenes import BERT, MNIST, Scene
from rehearsal.faults import PARAMETER
from rehearsal.receipt_stories import Check, ClusterStory, Step
from rehearsal.state import Folder, Settings
from rehearsal.submission import LAUNCH_DEFAULTS, job_status, judge, own_parameters
from trainium_catalogue import contract

WORKLOADS = ("mnist", "bert-tiny")
_AT_A_TIME = 4
"""Commands that run beside each other: most of a command is waiting for Python to start."""
MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""The pod is killed when this step is in the log: well after a save, well before the next."""
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "mnist": {"require-accuracy": "true"},
    "bert-tiny": {
        "max-steps": str(MAX_STEPS),
        "save-every": str(SAVE_EVERY),
        "global-batch": "16",
        "micro-batch": "8",
        "warmup-steps": "3",
    },
}


def parameters(settings: Settings) -> dict[str, dict[str, str]]:
    """Of each workload: the rehearsal's own, then the user's."""
    return {
        name: {**own, **LAUNCH_DEFAULTS, **own_parameters(settings.parameters, name)}
        for name, own in PARAMETERS.items()
    }


def arm_fault(aws: Aws) -> None:
    """Ask the kubelet to kill a pod in the middle of training, in the first attempt."""
    fault = {"kind": "kill-child", "run": BERT, "after": f"training: step {KILLED_AFTER} "}
    aws.client("ssm").put_parameter(
        Name=PARAMETER, Value=json.dumps(fault), Type="String", Overwrite=True
    )


def _disarm(aws: Aws) -> None:
    """A fault that no job took would be left over."""
    with contextlib.suppress(ClientError):
        aws.client("ssm").delete_parameter(Name=PARAMETER)


class Teller:
    """Runs scenes, and keeps what they said."""

    def __init__(
        self,
        *,
        folder: Folder,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        phase: Callable[[str], Any],
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._on_line = on_line
        self._phase = phase
        self._started: list[subprocess.Popen[str]] = []
        self.story = ClusterStory()

    def tell(self, scenes: Iterable[Scene]) -> bool:
        """Run scenes up to the first that ends otherwise than it must; whether all did."""
        return all(self.together(scene.name, [[scene]]) for scene in scenes)

    def together(self, name: str, chains: Sequence[Sequence[Scene]]) -> bool:
        """Run chains of scenes that need nothing of each other at the same time.

        Each goes on to the first that ends otherwise than it must.
        """
        with self._phase(f"cluster: {name}"), ThreadPoolExecutor(max_workers=_AT_A_TIME) as pool:
            try:
                told = [found for chain in pool.map(self._chain, chains) for found in chain]
            except BaseException:
                # A signal to this process alone ends none of those that others follow.
                for process in self._started:
                    process.terminate()
                raise
        self.story.steps += [step for step, _ in told]
        self.story.checks += [check for _, checks in told for check in checks]
        return all(_is_right(step) for step, _ in told)

    def _chain(self, scenes: Sequence[Scene]) -> list[tuple[Step, list[Check]]]:
        found: list[tuple[Step, list[Check]]] = []
        for scene in scenes:
            found.append(self._run(scene))
            if not _is_right(found[-1][0]):
                break
        return found

    def _run(self, scene: Scene) -> tuple[Step, list[Check]]:
        begin = time.monotonic()
        log = self._folder.log(f"eks-{scene.name.replace(' ', '-')}")
        environment = {**self._environment, **_processes(scene)}
        code = (
            tensorboard.look(scene, log=log, environment=environment)
            if scene.until_seen
            else cdk.run(
                eks_scenes.command(scene),
                log=log,
                environment=environment,
                on_line=self._on_line,
                on_start=self._started.append,
                # Whatever it is, it goes into the receipt.
                codes=tuple(range(256)),
            )
        )
        said = log.read_text(encoding="utf-8")
        step = Step(
            name=scene.name,
            command=scene.shown,
            exit_code=code,
            expected_exit_code=scene.exit_code,
            seconds=round(time.monotonic() - begin, 2),
        )
        return step, [
            Check(name=name, ok=bool(re.search(pattern, said)), detail=scene.shown)
            for name, pattern in scene.says.items()
        ]


def _is_right(step: Step) -> bool:
    return step.exit_code == step.expected_exit_code


def _processes(scene: Scene) -> dict[str, str]:
    if scene.processes is None:
        return {}
    return {contract.ENV_PROCESSES_PER_NODE: str(scene.processes)}


def tell(
    settings: Settings,
    *,
    aws: Aws,
    folder: Folder,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    phase: Callable[[str], Any],
) -> ClusterStory:
    """Run every command; stop at the first that fails, and say how it went."""
    environment = {**environment, "KUBECONFIG": str(folder.kubeconfig)}
    teller = Teller(folder=folder, environment=environment, on_line=on_line, phase=phase)
    given = parameters(settings)
    if not (
        teller.tell(eks_scenes.access())
        and teller.together(
            "data, nodes, a run looked into",
            [
                *([scene] for scene in eks_scenes.data()),
                [
                    eks_scenes.clock("clock", eks_scenes.SLOW),
                    eks_gangs.refused(),
                    *eks_scenes.nodes(settings.instance_type, eks_gangs.GROUP),
                    *eks_gangs.watched(),
                ],
            ],
        )
    ):
        return teller.story
    arm_fault(aws)
    trained = teller.together(
        "mnist, bert, a gang too big",
        [*([scene] for scene in eks_scenes.training(given)), eks_gangs.too_big()],
    )
    _disarm(aws)
    story = teller.story
    # A refused one has left no job.
    done = [step.name for step in story.steps if step.exit_code in (0, 1)]
    ids: dict[str, str] = {}
    for run in (MNIST, BERT):
        if run not in done:
            continue
        status = job_status(run, environment)
        ids[run] = status["job_id"]
        story.runs.append(
            judge(
                run=run,
                fault="kill-child" if run == BERT else None,
                status=status,
                jobs_exit_code=next(s.exit_code for s in story.steps if s.name == run),
                sizes=None,
                on_cluster=True,
                seconds=next(s.seconds for s in story.steps if s.name == run),
            )
        )
    if trained:
        _look(story, aws=aws, folder=folder, given=given)
        teller.together(
            "status, logs, list, kubectl, torchx",
            [[s] for s in eks_scenes.watching(ids, with_browser=browser.is_installed())],
        )
        teller.tell(eks_scenes.probing())
        teller.tell(eks_scenes.end())
    return story


def _look(
    story: ClusterStory, *, aws: Aws, folder: Folder, given: Mapping[str, Mapping[str, str]]
) -> None:
    """Read what the runs left in the bucket, and judge it."""
    plan = evidence.Wanted(
        max_steps=int(given["bert-tiny"]["max-steps"]),
        save_every=int(given["bert-tiny"]["save-every"]),
        killed_after=KILLED_AFTER,
    )
    found = evidence.gather_training(aws, run=BERT, log=folder.log(f"eks-{BERT}"), plan=plan)
    story.attempts, story.resumed_from = found.attempts, found.resumed_from
    story.killed_after = KILLED_AFTER
    figure = folder.path / "bert-loss.svg"
    curve.write_svg(figure, found.attempts)
    story.figure = str(figure)
    story.checks += [
        *(Check(name=f"{BERT}: {c.name}", ok=c.ok, detail=c.detail) for c in found.checks),
        evidence.judge_finished(aws, MNIST),
    ]
