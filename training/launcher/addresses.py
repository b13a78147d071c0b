"""The addresses of this node and the main node, and the rendezvous port."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from collections.abc import Iterator

# The container's interface in awsvpc mode; AWS's Batch samples read the main node's address from it
# (aws-neuron-samples, torch-neuronx/training/aws-batch).
TASK_INTERFACE = "eth0"

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_UNROUTED_ADDRESS = "192.0.2.1"  # RFC 5737; connecting a datagram socket sends nothing
_RETRY_S = 1.0


class AddressNotFound(OSError):
    """This node has no address that peers can reach."""


class HostNotFound(OSError):
    """A host name did not resolve in time."""


def find_host(host: str, *, within_s: float) -> str:
    """Resolve a host name to IPv4, waiting for it to appear; raise ``HostNotFound`` on timeout.

    The pods of a gang start together, but a pod's name behind a headless service resolves only once
    the pod has an address and the cluster's DNS serves its record
    (kubernetes.io/docs/concepts/services-networking/dns-pod-service).
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise HostNotFound(
                    f"the main node's name {host} did not resolve within {within_s:g} s "
                    f"(join-timeout-s): {error.strerror}"
                ) from None
        time.sleep(_RETRY_S)


def find_address(main_address: str | None) -> str:
    """Find the address at which peers reach this node, without a DNS lookup.

    On a child this is the source address for the main node; on the main node, the address of the
    task's interface or else of the default route.
    """
    if main_address is None:
        with contextlib.suppress(OSError):
            return interface_address(TASK_INTERFACE)
    try:
        return source_address(main_address or _UNROUTED_ADDRESS)
    except OSError as error:
        raise AddressNotFound(f"cannot determine the node's own address: {error}") from None


def interface_address(name: str) -> str:
    """Return the first IPv4 address of a network interface; raise ``OSError`` if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def source_address(destination: str) -> str:
    """Return the source address that the kernel would use for ``destination``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((destination, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the name of the interface with ``address``; None if there is none."""
    if address.startswith("127."):
        return "lo"
    for _, name in socket.if_nameindex():
        try:
            if interface_address(name) == address:
                return name
        except OSError:
            continue  # no IPv4 address
    return None


@contextlib.contextmanager
def reserve_port(wanted: int) -> Iterator[int]:
    """Yield ``wanted``, or a free port if it is taken, and reserve it for torchrun.

    torchrun's store listens on every address, so two jobs on one laptop would collide. A socket
    that is bound but not listening reserves the port: Linux allows a second socket to listen there
    if both have SO_REUSEADDR, and refuses a second reservation, which is made without it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(("", wanted))
        except OSError:
            holder.bind(("", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]
