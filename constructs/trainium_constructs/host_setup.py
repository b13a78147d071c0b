"""User data of hosts: a MIME message with a shell script, rendered from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from shlex import quote

from trainium_catalogue.contract import LUSTRE_MOUNT, RESERVED_PORTS
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.releases import NeuronRelease
from trainium_catalogue.workloads import LAUNCH_PARAMETERS
from trainium_constructs.lustre import LustreMount

# The installer named by the EC2 User Guide (Get started with EFA and MPI, step 3).
EFA_VERSION = "1.47.0"
# From the EC2 User Guide (same page, "Verify the GPG key's fingerprint"). It proves that the
# downloaded key is Amazon's.
EFA_KEY_FINGERPRINT = "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"

NOFILE = 1_048_576
"""Linux's default ``fs.nr_open``: the maximum number of open files of a process."""

# Seconds from the end of the launcher's own grace period to SIGKILL.
_STOP_MARGIN_S = 30

# EC2's limit on user data before base64; Batch adds its own part.
MAX_USER_DATA_BYTES = 16 * 1024


def stop_timeout_s() -> int:
    """Return the seconds from SIGTERM to SIGKILL: longer than the workers' grace period."""
    grace = next(p.default for p in LAUNCH_PARAMETERS if p.name == "stop-grace-s")
    return round(float(grace)) + _STOP_MARGIN_S


_SETTINGS = "# (settings)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetup:
    """The boot-time setup of a host, without which its ECS agent does not start."""

    instance_type: InstanceType
    release: NeuronRelease
    lustre: LustreMount | None = None
    custom_ami: bool = False
    """True for a custom AMI, which may include the EFA software."""
    efa_version: str = EFA_VERSION
    efa_key_fingerprint: str = EFA_KEY_FINGERPRINT
    """Required fingerprint of the downloaded key: forty hexadecimal digits."""

    def script(self) -> str:
        """Render the shell script with its settings."""
        instance, release = self.instance_type, self.release
        settings = {
            "LUSTRE_DNS_NAME": self.lustre.dns_name if self.lustre else "",
            "LUSTRE_MOUNT_NAME": self.lustre.mount_name if self.lustre else "",
            "LUSTRE_PATH": LUSTRE_MOUNT,
            "NEURON_RELEASE": release.name,
            "NEURON_DEVICES": str(instance.num_neuron_devices),
            "EFA_INTERFACES": str(instance.num_efa_interfaces),
            "OWN_IMAGE": "yes" if self.custom_ami else "",
            "DRIVER_MIN": release.driver_min,
            "DRIVER_BELOW": release.driver_below or "",
            "DRIVER_VERSION": release.driver_version,
            "EFA_VERSION": self.efa_version,
            "EFA_KEY_FINGERPRINT": self.efa_key_fingerprint,
            "RESERVED_PORTS": ",".join(str(port) for port in RESERVED_PORTS),
            "NOFILE": str(NOFILE),
            "STOP_TIMEOUT_S": str(stop_timeout_s()),
            "UNFIT_HOST_CODE": str(ExitCode.UNFIT_HOST.value),
        }
        lines = [f"readonly {name}={quote(value)}" for name, value in settings.items()]
        body = _read("host_setup.sh")
        assert body.count(_SETTINGS) == 1, "host_setup.sh must contain the placeholder once"
        return body.replace(_SETTINGS, "\n".join(lines))

    def user_data(self) -> str:
        """Wrap the script as the MIME message that Batch merges with its own."""
        return mime_message(self.script(), filename="trainium-host.sh")


def cpu_host_script() -> str:
    """Return the boot script of a CPU host."""
    return _read("cpu_host_setup.sh")


def cpu_host_user_data() -> str:
    """Wrap ``cpu_host_script`` as the MIME message that Batch merges with its own."""
    return mime_message(cpu_host_script(), filename="trainium-cpu-host.sh")


def _read(name: str) -> str:
    return files("trainium_constructs").joinpath(name).read_text()


def mime_message(script: str, *, filename: str, boundary: str = "==TRAINIUM-HOST==") -> str:
    """Wrap ``script`` as user data that Batch and EKS merge with their own.

    Raises ``ValueError`` if it is larger than EC2 accepts.

    Formatted by hand because the ``email`` modules take longer to import than the catalogue.
    """
    text = f"""\
Content-Type: multipart/mixed; boundary="{boundary}"
MIME-Version: 1.0

--{boundary}
Content-Type: text/x-shellscript; charset="us-ascii"
MIME-Version: 1.0
Content-Transfer-Encoding: 7bit
Content-Disposition: attachment; filename="{filename}"

{script}
--{boundary}--
"""
    if (size := len(text.encode("ascii"))) > MAX_USER_DATA_BYTES:
        raise ValueError(
            f"user data is {size:,} bytes long, but EC2 accepts at most {MAX_USER_DATA_BYTES:,}"
        )
    return text
