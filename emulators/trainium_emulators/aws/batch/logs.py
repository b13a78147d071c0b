"""CloudWatch log streams of nodes, written while they run."""

import threading
import time

from moto.logs.models import logs_backends

from trainium_emulators.aws.cloudformation.spi import Place

_LOCK = threading.Lock()


class LogStream:
    """One node's stream, as the awslogs driver of its job definition names it."""

    def __init__(self, *, place: Place, group: str, stream: str):
        self._backend = logs_backends[place.account_id][place.region]
        self._group = group
        self.name = stream
        with _LOCK:
            self._backend.create_log_stream(group, stream)

    def write(self, line: str) -> None:
        """Append one line, now."""
        event = {"timestamp": int(time.time() * 1000), "message": line}
        with _LOCK:
            self._backend.put_log_events(self._group, self.name, [event])
