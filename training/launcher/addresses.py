"""The node's own IPv4 address, without any name look-up, and the main node's by its name."""

from __future__ import annotations

import fcntl
import socket
import struct
import time

# awsvpc gives the task its own interface, which is eth0 in the container; AWS's Batch samples read
# the main node's address from it (aws-neuron-samples, torch-neuronx/training/aws-batch).
TASK_INTERFACE = "eth0"

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NOWHERE = "192.0.2.1"  # RFC 5737: never routed; connecting a datagram socket sends nothing
_LOOK_AGAIN_S = 1.0


class HostNotFound(OSError):
    """A host name has no address, also after waiting."""


def find_host(host: str, *, within_s: float) -> str:
    """IPv4 address of a host name, which may appear late: ``HostNotFound`` when it does not.

    A pod's name behind a headless service is known once the pod has its address and the cluster's
    DNS has heard of it (kubernetes.io/docs/concepts/services-networking/dns-pod-service), and pods
    of a gang start side by side.
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
    """Address by which peers reach this node.

    A child takes the one it would reach the main node from; the main node takes the task
    interface's, or where there is none the default route's.
    """
    if main_address is not None:
        return source_address(main_address)
    try:
        return interface_address(TASK_INTERFACE)
    except OSError:
        return source_address(_NOWHERE)


def interface_address(name: str) -> str:
    """First IPv4 address of a network interface; ``OSError`` when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def source_address(destination: str) -> str:
    """Address that the kernel would send from to ``destination``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((destination, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the interface that carries ``address``, or None."""
    if address.startswith("127."):
        return "lo"
    for _, name in socket.if_nameindex():
        try:
            if interface_address(name) == address:
                return name
        except OSError:
            continue  # no IPv4 address on this one
    return None
