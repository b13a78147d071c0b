"""The script itself, run by bash on a host made of files.

Only commands that need root or a real host are stand-ins: systemctl, sysctl, dnf, modprobe, and
the EFA installer inside a signed archive. Signatures are checked by the real gpg.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType
from trainium_catalogue.releases import NEURON_RELEASES, NeuronRelease
from trainium_constructs import HostSetup
from trainium_constructs.host_setup import EFA_VERSION

TRN1 = INSTANCE_TYPES["trn1.32xlarge"]
WITHOUT_EFA = INSTANCE_TYPES["trn1.2xlarge"]
RELEASE = NEURON_RELEASES["2.28.0"]
ARCHIVE = f"aws-efa-installer-{EFA_VERSION}.tar.gz"

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("bash", "gpg", "curl")),
    reason="needs bash, gpg and curl",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Somebody with an OpenPGP key, as Amazon has one for the EFA installer."""

    home: Path
    fingerprint: str

    @classmethod
    def create(cls, home: Path) -> Signer:
        """Make a key."""
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
        """Sign the archive in ``folder`` and put the key beside it."""
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


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    # gpg-agent's socket does not fit below a deep temporary folder.
    home = Path("/tmp") / f"trainium-gpg-{os.getpid()}"
    try:
        yield Signer.create(home)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class Host:
    """A host made of files, whose privileged commands only leave a note."""

    root: Path
    setup: HostSetup
    num_efa: int
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in ("bin", "dev", "sys/module/neuron", "etc", "downloads", "root"):
            (self.root / folder).mkdir(parents=True)
        for name in ("systemctl", "sysctl", "dnf"):
            self.command(name, f'echo "{name} $*" >>"${{FAKE_LOG}}"')
        self.command("modprobe", 'echo "modprobe $*" >>"${FAKE_LOG}"')
        self.script.write_text(self.setup.script())
        self.script.chmod(0o755)
        make_installer(self.root / "downloads")

    @property
    def script(self) -> Path:
        """Where cloud-init puts the part."""
        return self.root / "part-001"

    @property
    def log(self) -> list[str]:
        """What privileged commands were asked."""
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def console(self) -> str:
        """What the EC2 console would show."""
        return (self.root / "console").read_text()

    def command(self, name: str, body: str) -> None:
        """Put a stand-in on the path."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\nset -e\n{body}\n")
        path.chmod(0o755)

    def has(self, *, neuron: int, driver: str) -> None:
        """Give the host chips and a loaded driver."""
        for old in (self.root / "dev").glob("neuron*"):
            old.unlink()
        for index in range(neuron):
            (self.root / "dev" / f"neuron{index}").touch()
        (self.root / "sys/module/neuron/version").write_text(driver + "\n")

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
            timeout=60,
            check=False,
        )

    def agent_may_start(self) -> bool:
        """Ask as the agent's unit does before every start."""
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
        """Everything that setup wrote."""
        top = self.root / "root"
        return {
            str(path.relative_to(top)): path.read_text()
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def host(tmp_path: Path, signer: Signer) -> Host:
    setup = HostSetup(instance_type=TRN1, release=RELEASE, efa_key_fingerprint=signer.fingerprint)
    made = Host(root=tmp_path / "host", setup=setup, num_efa=TRN1.num_efa_interfaces)
    made.has(neuron=16, driver="2.28.0.0")
    signer.publish(made.root / "downloads")
    return made


def test_a_sound_host_lets_the_agent_start(host: Host) -> None:
    done = host.run()

    assert done.returncode == 0, done.stderr
    assert host.agent_may_start()


def test_a_ready_host_says_what_it_has(host: Host) -> None:
    host.run()

    assert "ready: 16 Neuron devices, 8 EFA interfaces, driver 2.28.0.0" in host.console


def test_a_fitting_driver_is_left_alone(host: Host) -> None:
    host.run()

    assert [line for line in host.log if line.startswith("dnf")] == []


def test_setup_may_run_twice(host: Host) -> None:
    host.run()
    once = host.files()
    host.run()

    assert host.files() == once


def test_efa_is_installed_once(host: Host) -> None:
    host.run()
    host.run()

    assert host.log.count("efa_installer --yes --minimal") == 1


def test_the_agent_keeps_what_batch_wrote_into_its_configuration(host: Host) -> None:
    config = host.root / "root/etc/ecs/ecs.config"
    config.parent.mkdir(parents=True)
    config.write_text("ECS_CLUSTER=batch\nECS_CONTAINER_STOP_TIMEOUT=30s\n")

    host.run()

    assert config.read_text() == "ECS_CLUSTER=batch\nECS_CONTAINER_STOP_TIMEOUT=120s\n"


def test_ports_are_reserved_by_the_kernel(host: Host) -> None:
    host.run()

    assert host.file("etc/sysctl.d/95-trainium.conf") == (
        "net.ipv4.ip_local_reserved_ports = 41000,41001,48620,62182\n"
    )


def test_a_missing_chip_keeps_the_agent_stopped(host: Host) -> None:
    host.has(neuron=15, driver="2.28.0.0")

    done = host.run()

    assert done.returncode == 1
    assert "the ECS agent stays stopped: 15 of 16 Neuron devices" in host.console
    assert not host.agent_may_start()


def test_a_missing_efa_interface_keeps_the_agent_stopped(host: Host) -> None:
    host.num_efa = 7

    assert host.run().returncode == 1
    assert "the ECS agent stays stopped: 7 of 8 EFA interfaces" in host.console
    assert not host.agent_may_start()


def test_a_chip_lost_later_keeps_the_agent_from_starting_again(host: Host) -> None:
    host.run()
    host.has(neuron=15, driver="2.28.0.0")

    assert not host.agent_may_start()


def test_a_setup_that_stops_half_way_keeps_the_agent_stopped(host: Host) -> None:
    host.command("sysctl", "exit 1")

    assert host.run().returncode != 0
    assert "of setup failed" in host.console
    assert not host.agent_may_start()


def test_a_setup_that_fails_after_a_good_one_keeps_the_agent_stopped(host: Host) -> None:
    host.run()
    host.command("sysctl", "exit 1")
    host.run()

    assert not host.agent_may_start()


def test_a_driver_out_of_range_is_replaced_by_the_pinned_one(host: Host) -> None:
    host.has(neuron=16, driver="2.31.7.0")
    version = host.root / "sys/module/neuron/version"
    host.command("modprobe", f"[[ $1 != neuron ]] || echo 2.28.0.0 >{version}")

    done = host.run()

    assert done.returncode == 0, done.stderr
    assert "dnf install --assumeyes aws-neuronx-dkms-2.28.0.0" in host.log
    assert host.agent_may_start()


def test_a_driver_that_will_not_change_keeps_the_agent_stopped(host: Host) -> None:
    host.has(neuron=16, driver="2.31.7.0")

    assert host.run().returncode == 1
    assert (
        "driver 2.31.7.0 does not fit Neuron 2.28.0, which takes 2.26.5 or newer, below 2.29"
        in (host.console)
    )
    assert not host.agent_may_start()


def test_no_driver_at_all_keeps_the_agent_stopped(host: Host) -> None:
    (host.root / "sys/module/neuron/version").unlink()

    assert host.run().returncode == 1
    assert "the Neuron driver is not loaded" in host.console


def test_a_changed_archive_is_not_run(host: Host) -> None:
    with (host.root / "downloads" / ARCHIVE).open("ab") as archive:
        archive.write(b"!")

    assert host.run().returncode == 1
    assert f"{ARCHIVE} is not signed by key" in host.console
    assert not [line for line in host.log if line.startswith("efa_installer")]


def test_an_archive_with_another_key_is_not_run(host: Host, signer: Signer) -> None:
    expected = "0" * 40
    host.script.write_text(host.script.read_text().replace(signer.fingerprint, expected))

    assert host.run().returncode == 1
    assert f"is not signed by key {expected}" in host.console
    assert not [line for line in host.log if line.startswith("efa_installer")]


def test_an_archive_that_cannot_be_fetched_keeps_the_agent_stopped(host: Host) -> None:
    (host.root / "downloads" / ARCHIVE).unlink()

    assert host.run().returncode == 1
    assert f"cannot fetch {ARCHIVE}" in host.console
    assert not host.agent_may_start()


def test_a_type_without_efa_installs_none(tmp_path: Path) -> None:
    host = Host(
        root=tmp_path / "host",
        setup=HostSetup(instance_type=WITHOUT_EFA, release=RELEASE),
        num_efa=0,
    )
    host.has(neuron=1, driver="2.28.0.0")

    done = host.run()

    assert done.returncode == 0, done.stderr
    assert not [line for line in host.log if line.startswith("efa_installer")]


version_numbers = st.lists(st.integers(0, 99), min_size=2, max_size=4).map(
    lambda parts: ".".join(str(part) for part in parts)
)


@settings(max_examples=30, deadline=None)
@given(
    release=st.sampled_from(list(NEURON_RELEASES.values())),
    versions=st.lists(
        st.one_of(
            version_numbers,
            st.tuples(st.just("2"), st.integers(20, 35).map(str), st.integers(0, 9).map(str)).map(
                ".".join
            ),
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_the_script_accepts_the_drivers_that_the_catalogue_accepts(
    release: NeuronRelease, versions: list[str]
) -> None:
    script = HostSetup(instance_type=TRN1, release=release).script()
    ask = (
        'for version in "$@"; do if driver_fits "${version}"; then echo yes; else echo no; fi; done'
    )

    done = subprocess.run(
        ["bash", "-c", f"source /dev/stdin\n{ask}", "host", *versions],
        input=script,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == [
        "yes" if release.accepts_driver(version) else "no" for version in versions
    ]


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_every_type_counts_its_own_devices(
    instance: InstanceType, tmp_path: Path, signer: Signer
) -> None:
    setup = HostSetup(
        instance_type=instance, release=RELEASE, efa_key_fingerprint=signer.fingerprint
    )
    host = Host(root=tmp_path / "host", setup=setup, num_efa=instance.num_efa_interfaces)
    host.has(neuron=instance.num_neuron_devices, driver="2.28.0.0")
    signer.publish(host.root / "downloads")

    done = host.run()

    assert done.returncode == 0, done.stderr
