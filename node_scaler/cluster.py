"""Minimal client of the Kubernetes API for a pod with a service account, without dependencies.

Source: Kubernetes documentation, Accessing the Kubernetes API from a Pod, without using a proxy.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_TIMEOUT_S = 30.0
_MERGE = "application/merge-patch+json"


class ClusterError(RuntimeError):
    """The API server rejected a request, or did not respond."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep the HTTP status of the response; 0 if there was no response."""
        super().__init__(message)
        self.status = status


class ClusterClient:
    """Client that lists, patches and creates objects."""

    def __init__(self, url: str, credentials: Path) -> None:
        """Use ``token`` and ``ca.crt`` in the folder mounted by the kubelet."""
        self._url = url.rstrip("/")
        self._token = credentials / "token"
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def items(self, path: str, **query: str) -> list[Json]:
        """List objects; without a resourceVersion, the API returns their most recent state."""
        suffix = f"?{urllib.parse.urlencode(query)}" if query else ""
        return list(self._call("GET", path + suffix)["items"])

    def find(self, path: str) -> Json | None:
        """Read one object; None if it does not exist."""
        try:
            return self._call("GET", path)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def patch(self, path: str, changes: Json) -> None:
        """Merge-patch an object; null removes a field."""
        self._call("PATCH", path, changes, content_type=_MERGE)

    def create(self, path: str, entry: Json) -> None:
        """Create an object."""
        self._call("POST", path, entry)

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
    ) -> Json:
        # Read for each call, because the kubelet rotates it.
        token = self._token.read_text(encoding="utf-8").strip()
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": content_type},
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                found: Json = json.load(response)
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode(errors="replace")
            raise ClusterError(f"{method} {path}: {error.code} {detail}", error.code) from None
        except OSError as error:
            raise ClusterError(f"{method} {path}: {error}") from error
        return found
