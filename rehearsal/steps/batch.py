"""The steps on Batch: from text to an exported model, with a lost node."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import RehearsalFolder, Settings
from rehearsal.proofs import training as evidence
from rehearsal.receipt import BatchTraining
from rehearsal.report import curve
from rehearsal.steps.jobs import LAUNCH_DEFAULTS, armed, own_parameters, read_finished_run
from rehearsal.steps.runner import Chain, Runner, flags, step

WORKLOAD = "llama-tiny"
PROCESSES_PER_NODE = 2
"""Tensor parallel 2 x data parallel 2 on 2 nodes."""
RUN = "tiny"
VERIFY = "verify"
"""Workload of the probes, which every rehearsal on Batch that trains also runs."""
PROBED = "probed"
"""Name of verify's run, with its probes."""
CORPUS = "aws-api-docs"
DATASET = "aws-api-docs-128"
TOKENIZER = "tokenizer.model"
MAX_NODES = 2

MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""Logged step at which the node is killed: well after a save, well before the next."""
DOCUMENTS = 400
HELD_OUT = "0.05"
"""Fraction of documents to hold out; the default would hold out only two."""
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
"""Parameters of a small run, which should resume rather than learn much."""


def chains(
    settings: Settings,
    *,
    tokenizer: Path,
    download: Path,
    page: Path,
    program_ended: threading.Event,
) -> tuple[Chain, ...]:
    """Return all commands as a user would type them."""
    nodes, training = num_nodes(settings), flags(parameters(settings))
    checks = flags(own_parameters(settings.parameters, VERIFY))
    prepare = f"jobs submit prepare --dataset {CORPUS} --max-documents {DOCUMENTS}"
    tokenize = f"jobs submit tokenize --input {CORPUS} --tokenizer {TOKENIZER} --dataset {DATASET}"
    train = f"jobs submit {WORKLOAD} --nodes {nodes} --dataset {DATASET} --name {RUN}"
    return (
        # Starts after the program has ended, to leave nodes free for training, the longest step.
        _chain(
            "verify",
            wait=program_ended.wait,
            verify=f"jobs submit {VERIFY} --nodes {nodes} --name {PROBED} {checks} --yes --follow",
            probes=f"jobs verify {PROBED}",
        ),
        # The critical path waits only for steps that it needs.
        _chain("tokenizer", upload=f"jobs upload {quote(str(tokenizer))}"),
        _chain("text", prepare=f"{prepare} --yes --follow"),
        _chain(
            "dataset",
            after=("tokenizer", "text"),
            tokenize=f"{tokenize} --validation-fraction {HELD_OUT} --yes --follow",
        ),
        _chain("train", after=("dataset",), train=f"{train} {training} --yes --follow"),
        _chain(
            "export",
            after=("train",),
            export=f"jobs submit export --run {RUN} --yes --follow",
            download=f"jobs download {RUN} --to {quote(str(download))}",
        ),
        _chain(
            "status",
            after=("train",),
            status=f"jobs status {RUN} --plot",
            report=f"jobs report {RUN} --html {quote(str(page))} --json",
        ),
    )


def _chain(
    name: str,
    *,
    after: tuple[str, ...] = (),
    wait: Callable[[], object] = lambda: None,
    **lines: str,
) -> Chain:
    return Chain(
        name=name,
        after=after,
        wait=wait,
        steps=tuple(step(n, line, processes=PROCESSES_PER_NODE) for n, line in lines.items()),
    )


def num_nodes(settings: Settings) -> int:
    """Return the number of nodes that train."""
    return min(MAX_NODES, settings.nodes)


def fault_kind(settings: Settings) -> str:
    """Return the fault that kills a node, other than the main node if possible."""
    return "kill-child" if num_nodes(settings) > 1 else "kill-main"


def tokenizer_model(folder: RehearsalFolder) -> Path:
    """Copy a SentencePiece model like Llama-2's from a package; Meta's requires a license."""
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise cdk.StepFailed("mistral-common is not installed; set the project up with: make setup")
    source = Path(spec.origin).parent / "data" / "tokenizer.model.v1"
    return Path(shutil.copyfile(source, folder.path / TOKENIZER))


def run(
    settings: Settings,
    *,
    aws: EmulatedAccount,
    folder: RehearsalFolder,
    runner: Runner,
    program_ended: threading.Event,
) -> BatchTraining:
    """Run every command, and report on the training."""
    download, page = folder.checkpoint, folder.path / "report.html"
    table = chains(
        settings,
        tokenizer=tokenizer_model(folder),
        download=download,
        page=page,
        program_ended=program_ended,
    )
    with armed(aws, run=RUN, kind=fault_kind(settings), after=KILLED_AFTER):
        runner.run(table)
    values = parameters(settings)
    results = evidence.gather(
        aws,
        run=RUN,
        log=runner.log("train"),
        download=download,
        plan=evidence.ExpectedTraining(
            max_steps=int(values["max-steps"]),
            save_every=int(values["save-every"]),
            killed_after=KILLED_AFTER,
            eval_every=int(values["eval-every"]),
        ),
    )
    results.checks.append(evidence.judge_probes(aws, PROBED))
    results.checks.append(evidence.judge_report(runner.log("report"), of=runner.log("train")))
    figure = folder.path / "loss.svg"
    curve.write_svg(
        figure,
        results.attempts,
        title=f"{WORKLOAD} on {num_nodes(settings)} nodes: loss by step",
        killed_after=KILLED_AFTER,
        resumed_from=results.resumed_from,
    )
    return BatchTraining(
        steps=runner.steps,
        run=read_finished_run(runner, "train", run=RUN, fault=fault_kind(settings)),
        killed_after=KILLED_AFTER,
        resumed_from=results.resumed_from,
        attempts=results.attempts,
        tokens_per_second=results.tokens_per_second,
        checks=results.checks,
        figure=str(figure),
    )


def parameters(settings: Settings) -> dict[str, str]:
    """Return the training job's parameters: the rehearsal's, overridden by the user's."""
    return {**PARAMETERS, **LAUNCH_DEFAULTS, **own_parameters(settings.parameters, WORKLOAD)}
