"""Writes 2,000 small files as its checkpoint, and restores all of them."""

import os
import shutil
import time
from pathlib import Path

COUNT = 2_000
kept = Path(os.environ["TRAINIUM_CHECKPOINT_DIR"])
done = max((int(path.name[5:]) for path in kept.glob("step-*")), default=0)
if done:
    found = sorted(path.read_text() for path in (kept / f"step-{done}").iterdir())
    assert found == sorted(f"{done} {number}" for number in range(COUNT)), len(found)
for step in range(done + 1, 4):
    if os.environ["RANK"] == "0":
        part = kept / "part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for number in range(COUNT):
            (part / f"{number}").write_text(f"{step} {number}")
        part.rename(kept / f"step-{step}")
        shutil.rmtree(kept / f"step-{step - 1}", ignore_errors=True)
    print(f"step {step}: loss {1 / step:.4f}", flush=True)
    time.sleep(12)
