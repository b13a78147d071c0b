"""The node's own IPv4 address, without any name look-up."""

from __future__ import annotations

import fcntl
import socket
import struct

# awsvpc gives the task its own interface, which is eth0 in the container; AWS's Batch samples read
# the main node's address from it (aws-neuron-samples, torch-neuronx/training/aws-batch).
TASK_INTERFACE = "eth0"

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NOWHERE = "192.0.2.1"  # RFC 5737: never routed; connecting a datagram socket sends nothing


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
