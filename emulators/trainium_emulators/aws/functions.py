"""Runs Python Lambda functions, each invocation in a separate process.

moto runs them only in containers of AWS's image.
"""

import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moto.awslambda_simple.models import LambdaSimpleBackend

_SCRIPT = """
import importlib, json, sys, time
end = time.monotonic() + float(sys.argv[3])
class Context:
    def get_remaining_time_in_millis(self):
        return int(1000 * (end - time.monotonic()))
module, _, name = sys.argv[1].rpartition(".")
result = getattr(importlib.import_module(module), name)(json.loads(sys.argv[2]), Context())
json.dump(result, open("result.json", "w"))
"""


def install(endpoint: Callable[[], str]) -> None:
    """Make moto's Invoke run functions that use the AWS endpoint ``endpoint``."""

    def invoke(
        self: Any, function_name: str, qualifier: Any, body: Any, _: Any, headers: Any
    ) -> bytes:
        function = self.get_function(function_name, qualifier)
        return _invoke(function, body or "{}", endpoint(), headers)

    LambdaSimpleBackend.invoke = invoke


def _invoke(function: Any, event: str, endpoint: str, headers: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="function-") as folder:
        zipfile.ZipFile(io.BytesIO(function.code_bytes)).extractall(folder)
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, function.handler, event, str(function.timeout)],
            cwd=folder,
            env={
                **function.environment_vars,
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_REGION": function.region,
                "AWS_ACCESS_KEY_ID": "function",
                "AWS_SECRET_ACCESS_KEY": "function",
            },
            capture_output=True,
            text=True,
            timeout=function.timeout,
        )
        if done.returncode:
            # As on AWS, the response reports an error that the function raises (Lambda API
            # reference, Invoke).
            headers["x-amz-function-error"] = "Unhandled"
            return json.dumps({"errorMessage": done.stderr[-2000:]}).encode()
        return Path(folder, "result.json").read_bytes()
