"""A program's output: forwarded unchanged, thinned where it rewrites a line, and parsed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import scaled
from training.program.output import OutputProgress, ProgressBarFilter, Recorder
from training.program.reports import OutputReport


def passed_on(folder: Path, data: bytes, *words: str) -> tuple[bytes, OutputReport]:
    done = subprocess.run(
        [sys.executable, "-m", "training.program.output", str(folder), *words],
        input=data,
        stdout=subprocess.PIPE,
        timeout=scaled(20),
    )
    assert done.returncode == 0
    return done.stdout, OutputReport.read(folder)


def test_lines_are_forwarded_byte_for_byte(tmp_path: Path) -> None:
    data = "one\n\n  grüße \n".encode() + b"\xff\xfe\x00 no text\nno end"

    shown, noted = passed_on(tmp_path, data)

    assert shown == data
    assert (noted.lines, noted.last_line, noted.bytes) == (4, "no end", len(data))


def test_dots_without_a_line_are_counted(tmp_path: Path) -> None:
    """As printed by neuronx-cc while it compiles."""
    recorder = Recorder(tmp_path, "")
    recorder.count_bytes(3)
    recorder.write(0.0)

    noted = OutputReport.read(tmp_path)
    assert (noted.bytes, noted.lines) == (3, 0)


def test_a_progress_bar_logs_its_last_state() -> None:
    written, seen = bytearray(), []
    progress_filter = ProgressBarFilter(written.extend, lambda text, now: seen.append(text))
    for number in range(100):
        progress_filter.feed(b"\r %d%%" % number, now_s=1.0)
    progress_filter.feed(b"\r 100%\ndone\n", now_s=2.0)
    progress_filter.end(3.0)

    assert written.split(b"\n") == [b" 0%", b" 100%", b"done", b""]
    assert seen[-2:] == [b" 100%", b"done"]


def test_a_progress_bar_that_runs_for_hours_is_logged_periodically() -> None:
    written = bytearray()
    progress_filter = ProgressBarFilter(written.extend, lambda text, now: None)
    for second in range(60):
        progress_filter.feed(b"\r %d s" % second, now_s=float(second))

    assert written.split(b"\n") == [b" 0 s", b" 10 s", b" 20 s", b" 30 s", b" 40 s", b" 50 s", b""]


def test_a_partial_line_is_not_held_back() -> None:
    written = bytearray()
    progress_filter = ProgressBarFilter(written.extend, lambda text, now: None)

    progress_filter.feed(b"loading ...", now_s=0.0)
    assert written == b"loading ..."
    progress_filter.feed(b" done\n", now_s=1.0)
    assert written == b"loading ... done\n"


@pytest.mark.parametrize(
    ("lines", "step", "loss"),
    [
        pytest.param(
            [
                "{'loss': 2.7081, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': 0.1}",
                " 10%|#         | 10/100 [00:01<00:10,  9.50it/s]",
            ],
            *(10, 2.7081),
            id="hugging-face",
        ),
        pytest.param(
            ["Epoch 0:  25%|##5       | 50/200 [00:05<00:15,  9.9it/s, v_num=3, train_loss=1.230]"],
            *(50, 1.23),
            id="lightning",
        ),
        (["iter 250: loss 2.4567, time 130.21ms, mfu 3.14%"], 250, 2.4567),
        (["step 500: train loss 2.1000, val loss 2.2000"], 500, 2.1),
        # Megatron's.
        (
            [" iteration      120/  500 | samples: 960 | lm loss: 6.5E-01 | grad norm: 1.0"],
            120,
            0.65,
        ),
        (["Loading 7 shards", "nothing to see"], None, None),
    ],
)
def test_common_progress_formats_are_parsed(
    lines: list[str], step: int | None, loss: float | None
) -> None:
    noted = OutputReport()
    progress = OutputProgress(noted)
    for line in lines:
        progress.extract(line, 0.0)

    assert (noted.step, noted.loss) == (step, loss)


def test_a_custom_pattern_replaces_them(tmp_path: Path) -> None:
    data = b"step 9: loss 9\nUPDATE <17> L=0.5\n"

    _, noted = passed_on(tmp_path, data, r"UPDATE <(?P<step>\d+)> L=(?P<loss>\S+)")

    assert (noted.step, noted.loss) == (17, 0.5)


def test_steps_have_a_rate() -> None:
    noted = OutputReport()
    progress = OutputProgress(noted)
    for second in range(11):
        progress.extract(f"iter {second * 3}: loss 1.0", float(second))

    assert noted.steps_per_second == 3.0
