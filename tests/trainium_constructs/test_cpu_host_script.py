"""The boot script of a CPU host: jobs share its network, but not its role."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.limits import scaled
from trainium_constructs.host_setup import cpu_host_script

DROP_IN = "etc/systemd/system/ecs.service.d/10-trainium.conf"
NOBODY = "65534"

# A job's request to the metadata service, with a short timeout.
ASK = ["curl", "--silent", "--max-time", "2", "http://169.254.169.254/"]
# An address that exists only in this network namespace, and a server on it.
SERVE = (
    "ip link set lo up && ip address add 169.254.169.254/32 dev lo && cd {folder} && "
    "{{ python3 -m http.server 80 --bind 169.254.169.254 >/dev/null 2>&1 & }} && sleep 1"
)


def booted(root: Path, *, systemctl: str = "exit 0") -> subprocess.CompletedProcess[str]:
    """Run the script as cloud-init would, on a host made of files."""
    commands = root / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    fake = commands / "systemctl"
    fake.write_text(f'#!/bin/bash\necho "systemctl $*" >>"{root}/log"\n{systemctl}\n')
    fake.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", cpu_host_script()],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "TRAINIUM_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def commands_before_agent(root: Path) -> list[str]:
    """List the commands that systemd runs before it starts the agent."""
    lines = (root / DROP_IN).read_text().splitlines()
    assert lines[0] == "[Service]"
    return [line.removeprefix("ExecStartPre=") for line in lines[1:]]


def test_agent_does_not_start_without_the_rule(tmp_path: Path) -> None:
    assert booted(tmp_path).returncode == 0

    remove, insert = commands_before_agent(tmp_path)

    # To systemd, a dash means "whatever the exit code".
    assert remove.startswith("-/usr/sbin/iptables --wait --delete OUTPUT ")
    assert insert.startswith("/usr/sbin/iptables --wait --insert OUTPUT ")
    assert (tmp_path / "log").read_text() == "systemctl daemon-reload\n"


def test_second_boot_is_idempotent(tmp_path: Path) -> None:
    booted(tmp_path)
    once = (tmp_path / DROP_IN).read_text()
    booted(tmp_path)

    assert (tmp_path / DROP_IN).read_text() == once


def test_script_passes_shellcheck(tmp_path: Path) -> None:
    script = tmp_path / "host.sh"
    script.write_text(cpu_host_script())

    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)

    assert done.stdout == ""


def in_network_namespace(folder: Path, *steps: str) -> str:
    script = " && ".join([SERVE.format(folder=shlex.quote(str(folder))), *steps])
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", f"{script}; kill %1 2>/dev/null"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    return done.stdout


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("iptables", "ip", "setpriv", "unshare"))),
    reason="needs root, iptables, iproute2 and util-linux",
)
def test_metadata_service_is_reachable_only_for_root(tmp_path: Path) -> None:
    booted(tmp_path / "host")
    served = tmp_path / "served"
    served.mkdir()
    (served / "index.html").write_text("a role's credentials\n")
    # Twice, as after a restart of the agent, with this machine's iptables.
    rules = [
        command.lstrip("-").replace("/usr/sbin/iptables", "iptables")
        + (" || true" if command.startswith("-") else "")
        for command in commands_before_agent(tmp_path / "host") * 2
    ]
    job = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *ASK]

    without = in_network_namespace(served, shlex.join(job))
    with_rule = in_network_namespace(
        served,
        *(f"{{ {rule}; }}" for rule in rules),
        f"echo as a job: $({shlex.join(job)})",
        f"echo as root: $({shlex.join(ASK)})",
        "iptables --list-rules OUTPUT | grep --count REJECT",
    )

    assert without == "a role's credentials\n"
    assert with_rule.splitlines() == ["as a job:", "as root: a role's credentials", "1"]
