"""The addresses of this node and the main node, and the rendezvous port."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from collections.abc import Iterator

# awsvpc gives the task its own interface, eth0 in the container; AWS's Batch samples read the main
# node's address from it (aws-neuron-samples, torch-neuronx/training/aws-batch).
TASK_INTERFACE = "eth0"

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NOWHERE = "192.0.2.1"  # RFC 5737: never routed; connecting a datagram socket sends nothing
_LOOK_AGAIN_S = 1.0


class AddressNotFound(OSError):
    """This node has no address at which peers could reach it."""


class HostNotFound(OSError):
    """A host name has no address even after waiting."""


def find_host(host: str, *, within_s: float) -> str:
    """Look up a host name's IPv4 address, which may appear late; ``HostNotFound`` if it does not.

    A pod's name behind a headless service resolves once the pod has an address and the cluster's
    DNS knows it (kubernetes.io/docs/concepts/services-networking/dns-pod-service), and the pods
    of a gang start at the same time.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            if time.monotonic() + _LOOK_AGAIN_S > deadline:
                raise HostNotFound(
                    f"the main node's name {host} has no address within {within_s:g} s "
                    f"(join-timeout-s): {error.strerror}"
                ) from None
        time.sleep(_LOOK_AGAIN_S)


def find_address(main_address: str | None) -> str:
    """Find the address at which peers reach this node, without any name lookup.

    A child uses the one it would reach the main node from; the main node uses the task
    interface's or, failing that, the default route's.
    """
    if main_address is None:
        with contextlib.suppress(OSError):
            return interface_address(TASK_INTERFACE)
    try:
        return source_address(main_address or _NOWHERE)
    except OSError as error:
        raise AddressNotFound(f"the node's own address cannot be found: {error}") from None


def interface_address(name: str) -> str:
    """First IPv4 address of a network interface; ``OSError`` if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def source_address(destination: str) -> str:
    """Source address that the kernel would use for ``destination``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((destination, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the interface that has ``address``, or None."""
    if address.startswith("127."):
        return "lo"
    for _, name in socket.if_nameindex():
        try:
            if interface_address(name) == address:
                return name
        except OSError:
            continue  # this one has no IPv4 address
    return None


@contextlib.contextmanager
def reserve_port(wanted: int) -> Iterator[int]:
    """Yield ``wanted``, or a free port if it is taken, and keep it for torchrun.

    torchrun's store listens on every address, so two jobs on one laptop would collide. A socket
    that is bound but not listening holds the port: Linux lets another socket listen there if
    both have SO_REUSEADDR, and refuses a second reservation, which is made without it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(("", wanted))
        except OSError:
            holder.bind(("", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]
