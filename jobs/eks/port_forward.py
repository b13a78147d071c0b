"""A port of a pod on this machine: `kubectl port-forward`, through the Kubernetes client."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Any

from jobs.eks.cluster import PODS, SERVICES, Cluster
from jobs.eks.errors import is_missing

_CHUNK = 64 * 1024


def find_service_pod(cluster: Cluster, service: str) -> str | None:
    """Name of a ready pod behind a service; None when there is no such service, or no pod."""
    try:
        selector = cluster.get(f"{SERVICES}/{service}")["spec"].get("selector") or {}
    except Exception as error:
        if not is_missing(error):
            raise
        return None
    labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    for pod in cluster.items(PODS, labelSelector=labels):
        conditions = pod.get("status", {}).get("conditions") or ()
        if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
            return str(pod["metadata"]["name"])
    return None


class Forwarder:
    """Listens on loopback; every connection goes to a service's pod on a stream of its own."""

    def __init__(
        self, cluster: Cluster, service: str, pod: str, pod_port: int, *, port: int
    ) -> None:
        self._cluster = cluster
        self._service = service
        self._pod = pod
        self._pod_port = pod_port
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        # One first, so that a refusal is said now and not to a browser.
        self._open().close()

    def serve(self) -> None:
        """Accept connections, for ever."""
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _open(self) -> Any:
        from kubernetes.client import CoreV1Api
        from kubernetes.stream import portforward

        # The client puts another function in place of the ApiClient's own for a moment.
        with _OPENING:
            return portforward(
                CoreV1Api(self._cluster.api()).connect_get_namespaced_pod_portforward,
                self._pod,
                self._cluster.namespace,
                ports=str(self._pod_port),
            )

    def _open_again(self) -> Any:
        """A stream to the service's pod, which may be another one by now: nodes come and go."""
        try:
            return self._open()
        except Exception:
            pod = find_service_pod(self._cluster, self._service)
            if pod is None or pod == self._pod:
                raise
            self._pod = pod
            return self._open()

    def _carry(self, connection: socket.socket) -> None:
        with connection:
            try:
                stream = self._open_again()
            except Exception as error:
                # Such as a pod that is gone: the page says so, and the browser may try again.
                text = f"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n{error}\n"
                connection.sendall(text.encode())
                return
            # The browser may leave at any time.
            with suppress(OSError):
                _carry_both_ways(connection, stream.socket(self._pod_port))
            stream.close()


_OPENING = threading.Lock()


def _carry_both_ways(one: Any, other: Any) -> None:
    ends = {one.fileno(): (one, other), other.fileno(): (other, one)}
    while True:
        ready, _, _ = select.select(list(ends), (), ())
        for number in ready:
            source, target = ends[number]
            data = source.recv(_CHUNK)
            if not data:
                return
            target.sendall(data)
