"""A host made of files, on which the boot script runs for real.

Only commands that need root or a real host are fakes: systemctl, systemd-run, sysctl, dnf,
modprobe, mount, mountpoint, and the EFA installer inside a signed archive. The real gpg checks
signatures.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.limits import scaled
from trainium_constructs import HostSetup
from trainium_constructs.host_setup import EFA_VERSION

ARCHIVE = f"aws-efa-installer-{EFA_VERSION}.tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """The owner of an OpenPGP key, like Amazon's for the EFA installer."""

    home: Path
    fingerprint: str

    @classmethod
    def create(cls, home: Path) -> Signer:
        """Create a key."""
        home.mkdir(mode=0o700)
        cls._gpg(home, "--passphrase", "", "--quick-gen-key", "EFA <efa@example.com>", "rsa2048")
        listing = cls._gpg(home, "--list-keys", "--with-colons")
        return cls(
            home=home,
            fingerprint=next(
                line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr")
            ),
        )

    def publish(self, folder: Path) -> None:
        """Sign the archive in ``folder`` and put the key next to it."""
        self._gpg(self.home, "--yes", "--detach-sign", str(folder / ARCHIVE))
        key = self._gpg(self.home, "--armor", "--export")
        (folder / "aws-efa-installer.key").write_text(key)

    @staticmethod
    def _gpg(home: Path, *arguments: str) -> str:
        command = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback"]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=True
        ).stdout


def make_installer(folder: Path) -> None:
    """Pack an installer that gives the host its EFA interfaces."""
    script = folder / "efa_installer.sh"
    script.write_text(
        "#!/bin/bash\nset -e\n"
        'echo "efa_installer $*" >>"${FAKE_LOG}"\n'
        'mkdir -p "${TRAINIUM_DEV}/infiniband"\n'
        'for ((i = 0; i < FAKE_EFA; i++)); do touch "${TRAINIUM_DEV}/infiniband/uverbs${i}"; done\n'
    )
    script.chmod(0o755)
    with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
        archive.add(script, "aws-efa-installer/efa_installer.sh")
    script.unlink()


@dataclass(slots=True, kw_only=True)
class Host:
    """A host made of files, whose privileged commands are only logged."""

    root: Path
    setup: HostSetup
    num_efa: int
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in ("bin", "dev", "sys/module/neuron", "etc", "downloads", "root"):
            (self.root / folder).mkdir(parents=True)
        for name in ("systemctl", "systemd-run", "sysctl", "dnf", "mount"):
            self.command(name, f'echo "{name} $*" >>"${{FAKE_LOG}}"')
        # A folder counts as mounted once a mount was requested.
        self.command("mountpoint", 'grep --quiet "^mount .* ${2}$" "${FAKE_LOG}"')
        self.command("modprobe", 'echo "modprobe $*" >>"${FAKE_LOG}"')
        self.script.write_text(self.setup.script())
        self.script.chmod(0o755)
        make_installer(self.root / "downloads")

    @property
    def script(self) -> Path:
        """Path at which cloud-init puts the script."""
        return self.root / "part-001"

    @property
    def log(self) -> list[str]:
        """Privileged commands that were called."""
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def console(self) -> str:
        """Text that the EC2 console would show."""
        return (self.root / "console").read_text()

    def command(self, name: str, body: str) -> None:
        """Put a fake command on the path."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\nset -e\n{body}\n")
        path.chmod(0o755)

    def add_devices(self, *, neuron: int, driver: str) -> None:
        """Give the host chips and a loaded driver."""
        for old in (self.root / "dev").glob("neuron*"):
            old.unlink()
        for index in range(neuron):
            (self.root / "dev" / f"neuron{index}").touch()
        (self.root / "sys/module/neuron/version").write_text(driver + "\n")

    def add_efa_to_image(self, interfaces: int) -> None:
        """Give the image a loaded EFA module, and a device for each interface it serves."""
        (self.root / "sys/module/efa").mkdir()
        (self.root / "dev/infiniband").mkdir()
        for index in range(interfaces):
            (self.root / f"dev/infiniband/uverbs{index}").touch()

    def block_downloads(self) -> None:
        """Make all downloads by curl or dnf fail."""
        for path in (self.root / "downloads").iterdir():
            path.unlink()
        self.command("dnf", 'echo "dnf $*" >>"${FAKE_LOG}"; exit 1')

    def run(self, *arguments: str, script: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the script as cloud-init or systemd would."""
        console = self.root / "console"
        console.touch()
        return subprocess.run(
            [str(script or self.script), *arguments],
            env={
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                "TRAINIUM_ROOT": str(self.root / "root"),
                "TRAINIUM_DEV": str(self.root / "dev"),
                "TRAINIUM_SYS": str(self.root / "sys"),
                "TRAINIUM_CONSOLE": str(console),
                "TRAINIUM_EFA_URL": (self.root / "downloads").as_uri(),
                "TRAINIUM_DEVICE_WAIT_S": "0",
                "TRAINIUM_FETCH_RETRIES": "0",
                "FAKE_LOG": str(self.root / "log"),
                "FAKE_EFA": str(self.num_efa),
                **self.environment,
            },
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )

    def agent_may_start(self) -> bool:
        """Run the check of the agent's unit before every start."""
        (line,) = [
            line
            for line in self.file("etc/systemd/system/ecs.service.d/10-trainium.conf").splitlines()
            if line.startswith("ExecStartPre=")
        ]
        program, verb = line.removeprefix("ExecStartPre=").split()
        return self.run(verb, script=Path(program)).returncode == 0

    def file(self, path: str) -> str:
        """Read a file of the host."""
        return (self.root / "root" / path).read_text()

    def files(self) -> dict[str, str]:
        """Read all files that setup wrote."""
        top = self.root / "root"
        return {
            str(path.relative_to(top)): path.read_text()
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }
