"""Files and words that look like keys: a bundle is kept, and read by whoever reads the bucket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from jobs.program.globs import match_any

NAMES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.p12", "*.pfx", "*.key", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"),
    *(".netrc", "_netrc", ".pypirc", ".git-credentials", ".npmrc", ".pgpass"),
    *(".aws/credentials", "*/.aws/credentials", ".docker/config.json", "*/.docker/config.json"),
    *(".kube/config", "*/.kube/config", ".huggingface/token", "*/.huggingface/token"),
)
"""Files that are keys by their name."""
EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")
"""Files that show what such a file looks like."""

_CONTENTS = (
    ("a private key", re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")),
    # AWS's documentation uses ids that end in EXAMPLE.
    ("an AWS access key", re.compile(rb"\b(?:AKIA|ASIA)(?![A-Z0-9]*EXAMPLE)[A-Z2-7]{16}\b")),
    (
        "an AWS secret key",
        re.compile(rb"(?i)aws_secret_access_key[\"']?\s*[=:]\s*[\"']?(?![A-Za-z0-9/+=]*EXAMPLE)"
                   rb"[A-Za-z0-9/+=]{40}\b"),
    ),
    ("a token of Hugging Face", re.compile(rb"\bhf_[A-Za-z0-9]{34}\b")),
    ("a token of GitHub", re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{82})\b")),
)  # fmt: skip
_WORD = re.compile(
    r"(?:\b(?:AKIA|ASIA)[A-Z2-7]{16}\b|\bhf_[A-Za-z0-9]{34}\b|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{20,}|\bxox[abpr]-[\w-]{10,})"
)
_FLAG = re.compile(
    r"--?(?:[\w-]*[-_])?(?:api[-_]?key|secret|(?P<token>token)|password|passwd|access[-_]?key)"
    r"(?:=(?P<value>.+))?",
    re.IGNORECASE,
)


def secret_name(path: str) -> str | None:
    """Return what a file seems to be, by its name; None if nothing."""
    if match_any(path, EXAMPLES):
        return None
    found = match_any(path, NAMES)
    return None if found is None else f"a file named like {found}, which holds keys"


def secret_content(data: bytes) -> str | None:
    """Return what kind of key a file holds; None if it seems to hold none."""
    return next((what for what, pattern in _CONTENTS if pattern.search(data)), None)


def secret_words(argv: Sequence[str]) -> Iterable[str]:
    """Yield the arguments that look like a key, or are named like one, without their values."""
    for index, word in enumerate(argv):
        flag = _FLAG.fullmatch(word)
        if flag is not None:
            follows = flag["value"] or (argv[index + 1] if index + 1 < len(argv) else "")
            # `--eos_token </s>`, or `--secret` alone: nothing that is as long as a key.
            least = 8 if flag["token"] else 1
            if len(follows) >= least and not follows.startswith("--"):
                yield word.partition("=")[0]
        elif _WORD.search(word) and not (index and _FLAG.fullmatch(argv[index - 1])):
            yield f"{word[:6]}..."


def check_arguments(argv: Sequence[str]) -> None:
    """Raise ``ValueError`` for an argument that has the form of a key."""
    for index, word in enumerate(argv):
        if _WORD.search(word) or secret_content(word.encode()):
            before = argv[index - 1] if index and argv[index - 1].startswith("-") else ""
            shown = before or (word.partition("=")[0] if "=" in word else f"{word[:6]}...")
            raise ValueError(
                f"argument {shown}: it has the form of a key, and can be read in the job's "
                "description, in program.json and in logs; let the program read it from "
                "elsewhere, such as AWS Secrets Manager with --aws-credentials"
            )


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for an environment variable that looks like a key."""
    for name, value in variables.items():
        if any(secret_words([f"--{name}={value}", value])) or secret_content(value.encode()):
            raise ValueError(
                f"--env {name}: it looks like a key, and can be read in the job's description, in "
                "program.json and in logs; let the program read it from elsewhere, such as AWS "
                "Secrets Manager with --aws-credentials"
            )
