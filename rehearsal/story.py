"""The training story, told with the user's own commands: from text to an exported model."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from rehearsal import cdk, curve, evidence
from rehearsal.aws import Aws
from rehearsal.faults import PARAMETER
from rehearsal.receipt_stories import Step, Training
from rehearsal.state import DEPLOYMENT, Folder, Settings
from rehearsal.submission import LAUNCH_DEFAULTS, job_status, judge, own_parameters
from trainium_catalogue import contract

WORKLOAD = "llama-tiny"
PROCESSES_PER_NODE = 2
"""With 2 nodes: tensor parallel 2 x data parallel 2."""
RUN = "tiny"
PROBED = "probed"
"""Run of verify, whose probes look whether they can look."""
CORPUS = "aws-api-docs"
DATASET = "aws-api-docs-128"
TOKENIZER = "tokenizer.model"
MAX_NODES = 2

MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""The node is killed when this step is in the log: well after a save, well before the next."""
DOCUMENTS = 400
HELD_OUT = "0.05"
"""Part of them: the default would be two documents."""
PARAMETERS = {
    "max-steps": str(MAX_STEPS),
    "save-every": str(SAVE_EVERY),
    "seq-len": "64",
    "global-batch": "8",
    "micro-batch": "4",
    "warmup-steps": "3",
    "eval-every": "8",
    "eval-sequences": "16",
}
"""Small: what is shown is that training goes on, not that the model learns much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One command of the story."""

    name: str
    words: tuple[str, ...]
    """After ``python -m jobs``."""


def scenes(settings: Settings, *, tokenizer: Path, download: Path) -> tuple[Scene, ...]:
    """Every command, in order, as a user types it."""
    follow = ("--yes", "--follow")
    values = parameters(settings)
    options = tuple(word for name, value in values.items() for word in (f"--{name}", value))
    nodes = str(num_nodes(settings))
    return (
        Scene(name="upload", words=("upload", str(tokenizer))),
        Scene(
            name="prepare",
            words=("submit", "prepare", "--dataset", CORPUS, "--max-documents", str(DOCUMENTS),
                   *follow),
        ),
        Scene(
            name="tokenize",
            words=("submit", "tokenize", "--input", CORPUS, "--tokenizer", TOKENIZER,
                   "--dataset", DATASET, "--validation-fraction", HELD_OUT, *follow),
        ),
        Scene(
            name="train",
            words=("submit", WORKLOAD, "--nodes", nodes, "--dataset", DATASET, "--name", RUN,
                   "--compile", *options, *follow),
        ),
        Scene(name="status", words=("status", RUN, "--plot")),
        Scene(name="export", words=("submit", "export", "--run", RUN, *follow)),
        Scene(name="download", words=("download", RUN, "--to", str(download))),
        Scene(
            name="verify",
            words=("submit", "verify", "--nodes", nodes, "--name", PROBED, *follow),
        ),
        Scene(name="probes", words=("verify", PROBED)),
    )  # fmt: skip


def num_nodes(settings: Settings) -> int:
    """Nodes that train."""
    return min(MAX_NODES, settings.nodes)


def fault_kind(settings: Settings) -> str:
    """Which node is killed: not the main one, if there is another."""
    return "kill-child" if num_nodes(settings) > 1 else "kill-main"


def arm_fault(aws: Aws, settings: Settings) -> None:
    """Ask the executor to kill a node in the middle of training, in the first attempt."""
    fault = {
        "kind": fault_kind(settings),
        "run": RUN,
        "after": f"training: step {KILLED_AFTER} ",
    }
    aws.client("ssm").put_parameter(
        Name=PARAMETER, Value=json.dumps(fault), Type="String", Overwrite=True
    )


def _disarm(aws: Aws) -> None:
    """A fault that no job took would be left over."""
    with contextlib.suppress(ClientError):
        aws.client("ssm").delete_parameter(Name=PARAMETER)


def tokenizer_model(folder: Folder) -> Path:
    """A SentencePiece model like Llama-2's, from a package: Meta's own needs its licence."""
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise cdk.StepFailed("mistral-common is not installed; set the project up with: make setup")
    source = Path(spec.origin).parent / "data" / "tokenizer.model.v1"
    return Path(shutil.copyfile(source, folder.path / TOKENIZER))


def tell(
    settings: Settings,
    *,
    aws: Aws,
    folder: Folder,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    phase: Callable[[str], Any],
) -> Training:
    """Run every command; stop at the first that fails, and say how training went."""
    environment = {**environment, contract.ENV_PROCESSES_PER_NODE: str(PROCESSES_PER_NODE)}
    download = folder.path / "checkpoint"
    steps: list[Step] = []
    for scene in scenes(settings, tokenizer=tokenizer_model(folder), download=download):
        if scene.name == "train":
            arm_fault(aws, settings)
        begin = time.monotonic()
        with phase(f"story: {scene.name}"):
            code = cdk.run(
                (sys.executable, "-m", "jobs", "--deployment", DEPLOYMENT, *scene.words),
                log=folder.log(f"jobs-{RUN}-{scene.name}"),
                environment=environment,
                on_line=on_line,
                codes=(0, 1) if scene.name in ("train", "probes") else (0,),
            )
        seconds = round(time.monotonic() - begin, 2)
        command = " ".join(("python -m jobs", *scene.words))
        steps.append(Step(name=scene.name, command=command, exit_code=code, seconds=seconds))
        if code:
            break
    _disarm(aws)
    status = job_status(RUN, environment)
    kind = fault_kind(settings)
    run = judge(
        run=RUN,
        fault=kind,
        status=status,
        jobs_exit_code=next(step.exit_code for step in steps if step.name == "train"),
        sizes=None,
        seconds=next(step.seconds for step in steps if step.name == "train"),
    )
    found = evidence.gather(
        aws,
        run=RUN,
        log=folder.log(f"jobs-{RUN}-train"),
        download=download,
        plan=evidence.Wanted(
            max_steps=int(parameters(settings)["max-steps"]),
            save_every=int(parameters(settings)["save-every"]),
            killed_after=KILLED_AFTER,
            eval_every=int(parameters(settings)["eval-every"]),
        ),
    )
    found.checks.append(evidence.judge_probes(aws, PROBED))
    figure = folder.path / "loss.svg"
    curve.write_svg(figure, found.attempts)
    return Training(
        steps=steps,
        run=run,
        killed_after=KILLED_AFTER,
        resumed_from=found.resumed_from,
        attempts=found.attempts,
        tokens_per_second=found.tokens_per_second,
        checks=found.checks,
        figure=str(figure),
    )


def parameters(settings: Settings) -> dict[str, str]:
    """Of the training job: the rehearsal's own, then the user's."""
    given = own_parameters(settings.parameters, WORKLOAD)
    return {**PARAMETERS, **LAUNCH_DEFAULTS, **given}
