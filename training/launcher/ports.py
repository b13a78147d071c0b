"""A port for the rendezvous that no other launcher on this machine takes meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserve_port(wanted: int) -> Iterator[int]:
    """Yield ``wanted``, or a free port when it is taken, and keep it for torchrun.

    torchrun's store listens on every address, so two jobs on one laptop would collide. The port is
    held by a socket that is bound but does not listen: Linux lets another socket listen there when
    both have SO_REUSEADDR, and refuses a second reservation, which asks without it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(("", wanted))
        except OSError:
            holder.bind(("", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]
