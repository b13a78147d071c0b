"""Makes parts on all cores: in this process, or in several when there are several parts."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from training.core.processes import die_with_parent
from training.datasets.text.parts import PartMaker, PartRecord, Task
from training.datasets.text.plan import Part

_POLL_S = 0.5

OnProgress = Callable[[int, int, int], None]
"""Told finished parts, tokens and uploaded bytes, whenever one of them has grown."""

_maker: PartMaker | None = None
"""Of a worker process."""


def make_parts(
    task: Task, parts: Sequence[Part], *, processes: int, on_progress: OnProgress
) -> list[PartRecord]:
    """Make every part; the first failure ends it. Returns the records in the order of parts."""
    if min(processes, len(parts)) <= 1:
        return _make_here(task, parts, on_progress)
    # Not forked: threads of the tokenizers and locks of boto3 would be copied in any state.
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 2)
    pool = ProcessPoolExecutor(
        max_workers=min(processes, len(parts)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(task, counters, os.getpid()),
    )
    seen = (0, 0, 0)
    try:
        futures = [pool.submit(_make_in_worker, part) for part in parts]
        rest: set[Future[PartRecord]] = set(futures)
        while rest:
            done, rest = wait(rest, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            with counters.get_lock():
                now = (len(parts) - len(rest), counters[0], counters[1])
            if now != seen:
                seen = now
                on_progress(*now)
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a tokenizing process was killed, most likely because memory ran out; give the job "
            "fewer --processes or a larger instance type"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _make_here(task: Task, parts: Sequence[Part], on_progress: OnProgress) -> list[PartRecord]:
    finished = tokens = uploaded = 0

    def count(more_tokens: int, more_bytes: int) -> None:
        nonlocal tokens, uploaded
        tokens += more_tokens
        uploaded += more_bytes
        on_progress(finished, tokens, uploaded)

    maker = PartMaker(task, count)
    records = []
    for part in parts:
        records.append(maker.make(part))
        finished += 1
        count(0, 0)
    return records


def _start_worker(task: Task, counters: Any, parent: int) -> None:
    global _maker
    die_with_parent(parent)
    # Parallel are the processes; the libraries read these when they first encode.
    for name in ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.putenv(name, "1")

    def count(more_tokens: int, more_bytes: int) -> None:
        with counters.get_lock():
            counters[0] += more_tokens
            counters[1] += more_bytes

    _maker = PartMaker(task, count)


def _make_in_worker(part: Part) -> PartRecord:
    assert _maker is not None
    return _maker.make(part)
