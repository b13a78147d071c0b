"""Random changes of documents, pickles and archives, as an attacker or a bad disk makes them."""

from __future__ import annotations

import copy
import io
import json
import random
import tarfile
from collections.abc import Iterator
from typing import Any

NAMES = (
    "", ".", "..", "/", "//", "a/", "./a", "a//b", "a/./b", "../outside/x", "../../outside/x",
    "a/../../outside/x", "/tmp/outside/x", "/etc/ld.so.preload", "link/x", "link", "link/../x",
    "a\0b", "\0", "\ud800", "\udcff", "x" * 300, "/".join(["y" * 100] * 60), "~/x", "$HOME/x",
    "C:\\x", "..\\x", "a\nb", "\x1b[31m", "é", "manifest.json", ".metadata", "complete.json",
    "sitecustomize.py", "%2e%2e/x", "{}", "None", "-rf", ".part-x", "a" * 254,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63),
    0.5, 1e308, float("nan"), float("inf"), "", "0", "x", [], {}, [[]], [{}], {"": ""}, [None],
    ["x"] * 3, "uint16", "O", "object", "dcp", "0" * 64, "f" * 64, "link", "file", "checkpoints",
    "cache", "setuid", 0o4777, 0o7777, "2026-01-01", "s3://bucket/x", "file:///etc/passwd",
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:20]):
            yield from _places(inner, (*path, number))


def document(original: Any, rng: random.Random) -> bytes:
    """Change a JSON document in one to four places, or its bytes."""
    changed = copy.deepcopy(original)
    for _ in range(rng.randint(1, 4)):
        places = list(_places(changed))
        if not places:
            break
        *way, last = rng.choice(places)
        parent = changed
        for step in way:
            parent = parent[step]
        match rng.randrange(8):
            case 0:
                del parent[last]
            case 1:
                parent[last] = [parent[last]]
            case 2 if isinstance(parent, list):
                parent.insert(last, copy.deepcopy(rng.choice(parent)))
            case 3 if isinstance(parent, dict):
                parent[rng.choice(NAMES)] = parent.pop(last)
            case 4 | 5:
                parent[last] = rng.choice(NAMES)
            case _:
                parent[last] = copy.deepcopy(rng.choice(VALUES))
    data = json.dumps(changed).encode()
    if rng.random() < 0.15:
        return bytes_of(data, rng)
    if rng.random() < 0.02:
        return b"[" * 50_000 + data
    return data


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """Flip, remove, repeat or truncate bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 40)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                del changed[at:]
    return bytes(changed)


CALLS = (
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "open"), ("builtins", "__import__"), ("builtins", "getattr"), ("os", "mkdir"),
    ("subprocess", "Popen"), ("pathlib", "Path"), ("torch", "load"),
    ("torch.serialization", "load"),
    ("torch.hub", "load"), ("torch", "os.system"), ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_rebuild_tensor_v2"), ("torch.distributed.checkpoint.metadata", "os.system"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.filesystem", "pickle.loads"), ("numpy", "load"),
    ("shutil", "copyfile"), ("functools", "partial"), ("operator", "attrgetter"),
    ("types", "CodeType"),
)  # fmt: skip


def pickle(data: bytes, rng: random.Random) -> bytes:
    """Change a pickle: its bytes, a name that it looks up, or a call in front of it."""
    module, name = rng.choice(CALLS)
    match rng.randrange(4):
        case 0:
            # GLOBAL, an argument, TUPLE1, REDUCE, POP: the rest is as it was.
            call = f"c{module}\n{name}\nVtouch outside/x\n".encode() + b"\x85R0"
            return data[:2] + call + data[2:]
        case 1:
            return _renamed(data, rng, module, name)
        case _:
            return bytes_of(data, rng)


def _renamed(data: bytes, rng: random.Random, module: str, name: str) -> bytes:
    """Replace the text of a SHORT_BINUNICODE of the pickle."""
    found = [at for at, byte in enumerate(data[:-2]) if byte == 0x8C]
    if not found:
        return data
    at = rng.choice(found)
    text = rng.choice([module, name, *NAMES]).encode(errors="surrogatepass")[:255]
    return data[:at] + b"\x8c" + bytes([len(text)]) + text + data[at + 2 + data[at + 1] :]


def archive(rng: random.Random) -> bytes:
    """Make a compressed tar of odd members."""
    packed = io.BytesIO()
    kinds = (
        tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE,
        tarfile.FIFOTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE,
    )  # fmt: skip
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for _ in range(rng.randint(1, 5)):
            member = tarfile.TarInfo(rng.choice([*NAMES, "a", "b", "train.py", "a/b"]))
            member.type = rng.choice((tarfile.REGTYPE, tarfile.REGTYPE, *kinds))
            member.linkname = rng.choice([*NAMES, "a", "b", "/etc", "..", "../outside"])
            member.mode = rng.choice([0o644, 0o4755, 0o6777, 0o1777, 0])
            member.mtime = rng.choice([0, 1, 2**33, -1])
            body = b"x" * rng.randint(0, 20) if member.isreg() else b""
            member.size = len(body)
            try:
                tar.addfile(member, io.BytesIO(body))
            except (ValueError, UnicodeError):
                continue  # no tar can say that
    data = packed.getvalue()
    return bytes_of(data, rng) if rng.random() < 0.2 else data
