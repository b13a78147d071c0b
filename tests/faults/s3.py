"""An emulated S3 behind a fault-injecting proxy, as a separate process.

    python -m tests.faults.s3 <plan>

Prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.faults.local_storage import is_hit
from tests.training.checkpoint.faulty import Fault, Request, faulty_proxy
from tests.training.s3_server import s3_server

BUCKET = "faults"


def main(plan: Path) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    count = iter(range(1 << 62))

    def decide(request: Request) -> Fault | None:
        node = request.host.partition(":")[0]
        kind = is_hit(plan, urlsplit(request.path).path, node, next(count))
        return Fault[kind] if kind else None

    with s3_server(BUCKET) as url, faulty_proxy(url, address="") as proxy:
        proxy.slow_s = 0.4
        proxy.plan = decide
        print(urlsplit(proxy.url).port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
