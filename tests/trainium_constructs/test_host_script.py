"""The boot script, run by bash: a host that is not ready never gets jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainium_constructs.fake_host import ARCHIVE, Host, Signer
from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType
from trainium_catalogue.releases import NEURON_RELEASES, NeuronRelease
from trainium_constructs import HostSetup, LustreMount

TRN1 = INSTANCE_TYPES["trn1.32xlarge"]
WITHOUT_EFA = INSTANCE_TYPES["trn1.2xlarge"]
RELEASE = NEURON_RELEASES["2.28.0"]

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("bash", "gpg", "curl")),
    reason="needs bash, gpg and curl",
)


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    # The path of gpg-agent's socket would be too long in a deep temporary folder.
    home = Path("/tmp") / f"trainium-gpg-{os.getpid()}"
    try:
        yield Signer.create(home)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def host(tmp_path: Path, signer: Signer) -> Host:
    setup = HostSetup(instance_type=TRN1, release=RELEASE, efa_key_fingerprint=signer.fingerprint)
    made = Host(root=tmp_path / "host", setup=setup, num_efa=TRN1.num_efa_interfaces)
    made.add_devices(neuron=16, driver="2.28.0.0")
    signer.publish(made.root / "downloads")
    return made


def test_healthy_host_starts_agent(host: Host) -> None:
    done = host.run()

    assert done.returncode == 0, done.stderr
    assert host.agent_may_start()


def test_compatible_driver_is_kept(host: Host) -> None:
    host.run()

    assert [line for line in host.log if line.startswith("dnf")] == []


def test_efa_is_installed_once(host: Host) -> None:
    host.run()
    host.run()

    assert host.log.count("efa_installer --yes --minimal") == 1


def test_agent_configuration_keeps_batch_settings(host: Host) -> None:
    config = host.root / "root/etc/ecs/ecs.config"
    config.parent.mkdir(parents=True)
    config.write_text("ECS_CLUSTER=batch\nECS_CONTAINER_STOP_TIMEOUT=30s\n")

    host.run()

    assert config.read_text() == (
        "ECS_CLUSTER=batch\nECS_CONTAINER_STOP_TIMEOUT=120s\nECS_AWSVPC_BLOCK_IMDS=true\n"
    )


def test_ports_are_reserved_by_the_kernel(host: Host) -> None:
    host.run()

    assert host.file("etc/sysctl.d/95-trainium.conf") == (
        "net.ipv4.ip_local_reserved_ports = 41000,41001,48620,62182\n"
    )


def test_agent_does_not_start_with_missing_chip(host: Host) -> None:
    host.add_devices(neuron=15, driver="2.28.0.0")

    done = host.run()

    assert done.returncode == 1
    assert "the ECS agent stays stopped: 15 of 16 Neuron devices" in host.console
    assert not host.agent_may_start()


def test_agent_does_not_start_with_missing_efa_interface(host: Host) -> None:
    host.num_efa = 7

    assert host.run().returncode == 1
    assert "the ECS agent stays stopped: 7 of 8 EFA interfaces" in host.console
    assert not host.agent_may_start()


def test_agent_does_not_restart_after_losing_chip(host: Host) -> None:
    host.run()
    host.add_devices(neuron=15, driver="2.28.0.0")

    assert not host.agent_may_start()


def test_agent_does_not_start_after_interrupted_setup(host: Host) -> None:
    host.command("sysctl", "exit 1")

    assert host.run().returncode != 0
    assert "of setup failed" in host.console
    assert not host.agent_may_start()


def test_agent_does_not_start_if_second_setup_fails(host: Host) -> None:
    host.run()
    host.command("sysctl", "exit 1")
    host.run()

    assert not host.agent_may_start()


def test_driver_out_of_range_is_replaced_by_the_pinned_one(host: Host) -> None:
    host.add_devices(neuron=16, driver="2.31.7.0")
    version = host.root / "sys/module/neuron/version"
    host.command("modprobe", f"[[ $1 != neuron ]] || echo 2.28.0.0 >{version}")

    done = host.run()

    assert done.returncode == 0, done.stderr
    assert "dnf install --assumeyes aws-neuronx-dkms-2.28.0.0" in host.log
    assert host.agent_may_start()


def test_agent_does_not_start_if_driver_replacement_fails(host: Host) -> None:
    host.add_devices(neuron=16, driver="2.31.7.0")

    assert host.run().returncode == 1
    assert (
        "driver 2.31.7.0 does not fit Neuron 2.28.0, which takes 2.26.5 or newer, below 2.29"
        in (host.console)
    )
    assert not host.agent_may_start()


def test_agent_does_not_start_without_driver(host: Host) -> None:
    (host.root / "sys/module/neuron/version").unlink()

    assert host.run().returncode == 1
    assert "the Neuron driver is not loaded" in host.console


def test_modified_archive_is_not_executed(host: Host) -> None:
    with (host.root / "downloads" / ARCHIVE).open("ab") as archive:
        archive.write(b"!")

    assert host.run().returncode == 1
    assert f"{ARCHIVE} is not signed by key" in host.console
    assert not [line for line in host.log if line.startswith("efa_installer")]


def test_archive_with_wrong_key_is_not_executed(host: Host, signer: Signer) -> None:
    expected = "0" * 40
    host.script.write_text(host.script.read_text().replace(signer.fingerprint, expected))

    assert host.run().returncode == 1
    assert f"is not signed by key {expected}" in host.console
    assert not [line for line in host.log if line.startswith("efa_installer")]


def test_agent_does_not_start_if_archive_download_fails(host: Host) -> None:
    (host.root / "downloads" / ARCHIVE).unlink()

    assert host.run().returncode == 1
    assert f"cannot fetch {ARCHIVE}" in host.console
    assert not host.agent_may_start()


def test_type_without_efa_installs_none(tmp_path: Path) -> None:
    host = Host(
        root=tmp_path / "host",
        setup=HostSetup(instance_type=WITHOUT_EFA, release=RELEASE),
        num_efa=0,
    )
    host.add_devices(neuron=1, driver="2.28.0.0")

    done = host.run()

    assert done.returncode == 0, done.stderr
    assert not [line for line in host.log if line.startswith("efa_installer")]


version_numbers = st.lists(st.integers(0, 99), min_size=2, max_size=4).map(
    lambda parts: ".".join(str(part) for part in parts)
)


@settings(max_examples=30)
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
def test_script_accepts_the_drivers_that_the_catalogue_accepts(
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
    host.add_devices(neuron=instance.num_neuron_devices, driver="2.28.0.0")
    signer.publish(host.root / "downloads")

    done = host.run()

    assert done.returncode == 0, done.stderr


def with_lustre(tmp_path: Path, signer: Signer, *, custom_ami: bool = False) -> Host:
    made = Host(
        root=tmp_path / "lustre",
        setup=HostSetup(
            instance_type=INSTANCE_TYPES["trn1.32xlarge"],
            release=NEURON_RELEASES["2.28.0"],
            lustre=LustreMount(
                file_system_id="fs-0", dns_name="fs-0.fsx.example", mount_name="fqgwbbmv"
            ),
            efa_key_fingerprint=signer.fingerprint,
            custom_ami=custom_ami,
        ),
        num_efa=8,
    )
    signer.publish(made.root / "downloads")
    made.add_devices(neuron=16, driver="2.28.0.0")
    return made


def test_file_system_is_mounted_once(tmp_path: Path, signer: Signer) -> None:
    host = with_lustre(tmp_path, signer)

    assert host.run().returncode == 0
    assert host.run().returncode == 0

    mounts = [line for line in host.log if line.startswith("mount ")]
    folder = host.root / "root/fsx"
    assert mounts == [f"mount -t lustre -o relatime,flock fs-0.fsx.example@tcp:/fqgwbbmv {folder}"]
    assert "dnf install --assumeyes lustre-client" in host.log


def test_agent_does_not_start_if_mount_fails(tmp_path: Path, signer: Signer) -> None:
    host = with_lustre(tmp_path, signer)
    host.command("mount", "exit 1")

    assert host.run().returncode == 1
    assert "cannot mount fs-0.fsx.example: its security group must admit TCP 988" in host.console
    assert not host.agent_may_start()


@pytest.mark.parametrize("failing", ["sysctl", "dnf"])
def test_unready_host_terminates_itself(host: Host, failing: str) -> None:
    host.add_devices(neuron=16, driver="2.31.0.0")
    host.command(failing, "exit 1")

    host.run()

    assert "systemd-run --quiet --on-active=5min systemctl poweroff" in host.log


@pytest.fixture
def own(tmp_path: Path, signer: Signer) -> Host:
    """A host with a custom image and a file system."""
    return with_lustre(tmp_path, signer, custom_ami=True)


def test_complete_image_needs_no_internet(own: Host) -> None:
    own.add_efa_to_image(8)
    own.command("mount.lustre", "exit 0")
    own.block_downloads()

    done = own.run()

    assert done.returncode == 0, done.stderr
    assert own.agent_may_start()
    assert not [line for line in own.log if line.startswith(("dnf", "efa_installer"))]


def test_setup_waits_for_late_interfaces(own: Host) -> None:
    own.add_efa_to_image(7)
    own.command("mount.lustre", "exit 0")
    own.block_downloads()
    own.command("sleep", f"touch {own.root}/dev/infiniband/uverbs7")
    own.environment["TRAINIUM_DEVICE_WAIT_S"] = "2"

    assert own.run().returncode == 0


def test_only_missing_packages_are_downloaded(own: Host) -> None:
    own.add_efa_to_image(7)
    own.command("mount.lustre", "exit 0")

    assert own.run().returncode == 0
    assert "efa_installer --yes --minimal" in own.log
    assert not [line for line in own.log if line.startswith("dnf")]


def test_image_without_efa_or_internet_is_told_requirements(own: Host) -> None:
    own.block_downloads()

    assert own.run().returncode == 1
    assert "without a route to the internet, the image must include EFA" in own.console
    assert not own.agent_may_start()


def test_efa_module_of_default_image_does_not_replace_installer(host: Host) -> None:
    host.add_efa_to_image(8)

    assert host.run().returncode == 0
    assert "efa_installer --yes --minimal" in host.log


@pytest.mark.parametrize(("codes", "ends"), [(("0", "70", "71", "0"), True), (("0", "170"), False)])
def test_host_found_unfit_by_launcher_terminates_itself(
    host: Host, codes: tuple[str, ...], ends: bool
) -> None:
    """Docker's command continues after the event, so the host must not wait for its end."""
    printing = f'printf "%s\\n" {" ".join(codes)}; sleep 2; echo "docker ends" >>"${{FAKE_LOG}}"'
    host.command("docker", f'echo "docker $*" >>"${{FAKE_LOG}}"; {printing}')
    host.environment["TRAINIUM_REPORT_S"] = "0"

    done = host.run("watch")

    (asked, first, *_) = host.log
    assert asked.startswith("docker events --filter type=container --filter event=die")
    assert first == ("systemctl poweroff" if ends else "docker ends")
    assert ("HOST NOT READY, a job found it unfit" in host.console) is ends
    assert (done.returncode == 0) is ends  # otherwise systemd starts it again


def test_watch_runs_as_restarted_systemd_service(host: Host) -> None:
    host.run()
    unit = host.file("etc/systemd/system/trainium-watch.service")

    assert "trainium-host watch" in unit and "Restart=always" in unit
    assert "systemctl enable --now --no-block trainium-watch.service" in host.log
