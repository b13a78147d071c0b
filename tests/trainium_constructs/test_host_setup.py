"""User data: a message that cloud-init can read, and a valid script."""

from __future__ import annotations

import subprocess
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType
from trainium_catalogue.releases import NEURON_RELEASES, NeuronRelease
from trainium_catalogue.workloads import LAUNCH_PARAMETERS
from trainium_constructs import HostSetup
from trainium_constructs.host_setup import MAX_USER_DATA_BYTES, stop_timeout_s

instances = st.sampled_from(list(INSTANCE_TYPES.values()))
releases = st.sampled_from(list(NEURON_RELEASES.values()))


def parts_of(text: str) -> list[Message]:
    message = message_from_string(text)
    assert message.is_multipart()
    assert [part.defects for part in message.walk()] == [[], []]
    return list(message.walk())[1:]


@given(instance=instances, release=releases)
def test_user_data_is_mime_with_one_shell_script(
    instance: InstanceType, release: NeuronRelease
) -> None:
    host = HostSetup(instance_type=instance, release=release)

    (part,) = parts_of(host.user_data())

    assert part.get_content_type() == "text/x-shellscript"
    assert part.get_payload() == host.script()


@given(instance=instances, release=releases)
def test_user_data_leaves_room_for_batch_additions(
    instance: InstanceType, release: NeuronRelease
) -> None:
    text = HostSetup(instance_type=instance, release=release).user_data()

    assert len(text.encode("ascii")) < MAX_USER_DATA_BYTES * 3 // 4


def test_user_data_that_ec2_would_refuse_is_refused_here() -> None:
    host = HostSetup(
        instance_type=INSTANCE_TYPES["trn1.32xlarge"],
        release=NEURON_RELEASES["2.28.0"],
        efa_version="1" * MAX_USER_DATA_BYTES,
    )

    with pytest.raises(ValueError, match="EC2 accepts at most 16,384"):
        host.user_data()


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_script_passes_shellcheck(instance: InstanceType, tmp_path: Path) -> None:
    script = tmp_path / "host.sh"
    script.write_text(HostSetup(instance_type=instance, release=NEURON_RELEASES["2.33.1"]).script())

    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)

    assert done.stdout == ""


def test_container_stop_timeout_exceeds_launcher_stop_time() -> None:
    (grace,) = (p.default for p in LAUNCH_PARAMETERS if p.name == "stop-grace-s")

    assert stop_timeout_s() > float(grace)
