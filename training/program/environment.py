"""A program's environment variables, except those of torchrun and the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import training
import trainium_catalogue
from training.core.contract import DeviceKind
from training.program.reports import PROGRESS_FILE
from training.program.settings import ProgramFolders, ProgramSettings
from trainium_catalogue.contract import (
    ENV_CHECKPOINT_DIR,
    ENV_DATASET_DIR,
    ENV_INPUT_DIR,
    ENV_OUTPUT_DIR,
    ENV_PROGRESS_FILE,
)

OWN_ROOTS = tuple(
    dict.fromkeys(
        str(Path(package.__path__[0]).resolve().parent)
        for package in (training, trainium_catalogue)
    )
)
"""Folders of this project on Python's path, hidden from programs."""

# The variables of all credential sources of botocore, from its documentation
# (docs.aws.amazon.com/boto3, guide/configuration.html) and from ECS and EKS.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


def program_environment(
    env: Mapping[str, str], settings: ProgramSettings, folders: ProgramFolders, device: DeviceKind
) -> dict[str, str]:
    """Derive the program's environment from the environment of this project's workers."""
    result = dict(env)
    if not settings.aws_credentials:
        for name in CREDENTIALS:
            result.pop(name, None)
        # Otherwise a container that can reach the metadata service would use the host's role.
        result["AWS_EC2_METADATA_DISABLED"] = "true"
    entries = [Path(e).absolute() for e in result.pop("PYTHONPATH", "").split(os.pathsep) if e]
    if kept := [str(entry) for entry in entries if str(entry.resolve()) not in OWN_ROOTS]:
        result["PYTHONPATH"] = os.pathsep.join(kept)
    result |= {
        ENV_CHECKPOINT_DIR: str(folders.checkpoints),
        ENV_OUTPUT_DIR: str(folders.output),
        ENV_PROGRESS_FILE: str(folders.scratch / PROGRESS_FILE),
        "PWD": str(folders.code),
    }
    # The compile cache, which is persisted in the bucket and restored in the next attempt.
    if device is DeviceKind.TORCH_NEURON:
        result.setdefault("TORCH_NEURONX_NEFF_CACHE_DIR", str(folders.neff_cache))
    else:
        result.setdefault("NEURON_COMPILE_CACHE_URL", str(folders.cache))
    if settings.dataset:
        result[ENV_DATASET_DIR] = str(folders.dataset)
    if settings.input:
        result[ENV_INPUT_DIR] = str(folders.input)
    return result | dict(settings.env)
