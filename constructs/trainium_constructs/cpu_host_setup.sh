#!/bin/bash
#
# Keeps jobs on a CPU host from using the instance's role.
#
# Single-container jobs share the host's network (AWS Batch User Guide, networking-modes-jobs), so
# neither a hop limit of 1 nor ECS_AWSVPC_BLOCK_IMDS, which is for tasks with their own network
# (amazon-ecs-agent, README), blocks their access to the metadata service. They run as nobody, and
# only root needs it: the agent, cloud-init and Systems Manager run as root.

set -Eeuo pipefail

readonly ROOT="${TRAINIUM_ROOT:-}"
readonly DROP_IN="${ROOT}/etc/systemd/system/ecs.service.d/10-trainium.conf"
# iptables is installed: the agent's package requires it (ecs-agent.spec).
readonly RULE="OUTPUT --destination 169.254.169.254/32 --match owner ! --uid-owner 0 --jump REJECT"

# Before every start of the agent, which fails without the rule: such a host gets no jobs.
# Deleted first (the dash: it may not exist), so that there is exactly one, at the top.
mkdir -p "$(dirname "${DROP_IN}")"
cat >"${DROP_IN}.new" <<END
[Service]
ExecStartPre=-/usr/sbin/iptables --wait --delete ${RULE}
ExecStartPre=/usr/sbin/iptables --wait --insert ${RULE}
END
mv "${DROP_IN}.new" "${DROP_IN}"
systemctl daemon-reload
