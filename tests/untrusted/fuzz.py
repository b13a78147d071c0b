"""Feeds randomly mutated bucket contents to every function that reads them.

    python -m tests.untrusted.fuzz --seed 1 --cases 1000 [--only metadata]

Each case must change nothing outside its folder, execute nothing, and end with a result or one of
the refusals that its reader documents. Prints a JSON document; exits with 1 if any case did
otherwise. The kind and seed of a case reproduce it.
"""

from __future__ import annotations

import argparse
import codecs
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from jobs.errors import Refusal
from tests.untrusted import client_readers, data_readers, program_readers
from tests.untrusted.common import Case
from tests.untrusted.guard import Guard, Violation
from training.checkpoint import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.pretrained import PretrainedWeightsError
from training.datasets.manifest import DatasetError
from training.program.settings import NotPrepared
from training.program.snapshots.restore import InsufficientSpace, NoRestorableSnapshot
from training.program.wheels import install, packages
from training.trainer.runs import RunConfigError

CASE_LIMIT_S = 60
_CODECS = (
    *("utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be", "utf_8_sig"),
    *("unicode_escape", "raw_unicode_escape", "latin_1", "ascii", "cp437", "idna", "punycode"),
)
_MEMORY = 12 * 2**30
_FILE_BYTES = 64 * 2**20

_CHECKPOINT = (CheckpointUnusable,)
CASES: Mapping[str, Case] = {
    "packed-manifest": Case(data_readers.packed_manifest, (DatasetError,)),
    "files-manifest": Case(data_readers.files_manifest, (DatasetError,)),
    "corpus-manifest": Case(data_readers.corpus_manifest, ()),
    "part-record": Case(data_readers.part_record, ()),
    "marker": Case(data_readers.marker, _CHECKPOINT),
    "metadata": Case(data_readers.metadata, _CHECKPOINT),
    "tensors": Case(data_readers.tensors, (CheckpointDamaged,)),
    "weights": Case(data_readers.given_weights, (PretrainedWeightsError,)),
    "snapshot": Case(program_readers.snapshot, (InsufficientSpace, NoRestorableSnapshot)),
    "listing": Case(program_readers.listing, (ValueError,)),
    "run-config": Case(data_readers.run_config, (RunConfigError,)),
    "lock": Case(data_readers.lock, ()),
    "model-config": Case(data_readers.model_config, (PretrainedWeightsError,)),
    "metrics": Case(client_readers.metrics, ()),
    "report": Case(client_readers.report, ()),
    "program-record": Case(client_readers.program_record, (Refusal,)),
    "bert-shard": Case(data_readers.bert_shard, (DatasetError,)),
    "wheels": Case(program_readers.wheels_marker, (install.DependenciesRefused, NotPrepared)),
    "archive": Case(program_readers.archive, (NotPrepared,)),
    "input-keys": Case(program_readers.keys_of_inputs, (NotPrepared,)),
    "log-keys": Case(client_readers.keys_of_logs, (Refusal,)),
    "export-keys": Case(client_readers.keys_of_exports, (Refusal,)),
    "local-snapshot": Case(client_readers.local_snapshot, (Refusal,)),
    "code-listing": Case(client_readers.code_listing, (Refusal,)),
}


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else str(path.lstat().st_mode).encode()
        for path in folder.rglob("*")
    }


def run_case(kind: str, seed: str, base: Path, guard: Guard | None) -> tuple[str, str]:
    """Run one case in a new folder; return its outcome and, if it is wrong, the details."""
    rng = random.Random(f"{kind}/{seed}")
    inside, outside = base / "case" / "inside", base / "case" / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_bytes(b"old")
    before, known = _tree(outside), len(guard.violations) if guard else 0
    case, detail, outcome = CASES[kind], "", "read"
    signal.alarm(CASE_LIMIT_S)
    try:
        with guard.watching() if guard else nullcontext():
            found = case.run(inside, rng)
        outcome = found if isinstance(found, str) and found else outcome
    except case.refusals as error:
        outcome = "refused"
        if not str(error).strip():
            detail = f"a refusal without a message: {error!r}"
    except (Exception, Violation) as error:
        lines = traceback.format_exception(error)
        outcome, detail = "wrong", f"{error!r}\n{''.join(lines[-4:])}"
    finally:
        signal.alarm(0)
    if guard and len(guard.violations) > known:
        outcome, detail = "wrong", guard.violations[-1]
    if _tree(outside) != before:
        outcome, detail = "wrong", "a file outside was changed"
    shutil.rmtree(base / "case")
    return outcome, detail


def main(argv: list[str] | None = None) -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", choices=sorted(CASES))
    wanted = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    here = packages.installed()
    # Listing the installed packages takes most of a case's time, and its result never changes.
    vars(packages)["installed"] = lambda *_: here
    vars(install)["_run_pip"] = lambda *_: None
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _too_long)
    kinds = [wanted.only] if wanted.only else list(CASES)
    outcomes, wrong, began = Counter[str](), list[str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        base = Path(name)
        os.chdir(base)
        for codec in _CODECS:  # json and pickletools import them when a document needs them
            codecs.lookup(codec)
        for kind in kinds:  # modules imported here are not watched
            run_case(kind, "warm-up", base, None)
        guard = Guard(base / "case" / "inside")
        for number in range(wanted.cases):
            kind = kinds[number % len(kinds)]
            seed = f"{wanted.seed}-{number}"
            outcome, detail = run_case(kind, seed, base, guard)
            outcomes[f"{kind}: {outcome}"] += 1
            if detail:
                wrong.append(f"{kind} {seed}: {detail}")
    print(
        json.dumps(
            {
                "cases": wanted.cases,
                "seconds": round(time.monotonic() - began, 1),
                "outcomes": dict(sorted(outcomes.items())),
                "wrong": wrong[:20],
            },
            indent=1,
        )
    )
    return 1 if wrong else 0


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Violation(f"more than {CASE_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
