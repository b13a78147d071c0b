"""What EKS's image for Neuron leaves to be set on a node."""

from __future__ import annotations

from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

# A container takes over containerd's limit of locked memory. The image leaves that at systemd's
# 8 MiB: what it sets is open files alone (amazon-eks-ami, base-runtime-spec.json). EFA and the
# Neuron runtime lock gigabytes, and a pod cannot ask for a limit (kubernetes/kubernetes#3595).
_SCRIPT = """\
#!/bin/bash
set -euo pipefail
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\\nLimitMEMLOCK=infinity\\n' >/etc/systemd/system/containerd.service.d/memlock.conf
systemctl daemon-reload
"""


def user_data() -> str:
    """The MIME message that EKS merges with its own.

    cloud-init runs the script before nodeadm starts containerd (amazon-eks-ami,
    nodeadm-run.service).
    """
    message = MIMEMultipart("mixed", boundary="==TRAINIUM-NODE==")
    part = MIMEText(_SCRIPT, "x-shellscript", "us-ascii")
    part.add_header("Content-Disposition", "attachment", filename="trainium-node.sh")
    message.attach(part)
    return message.as_string()
