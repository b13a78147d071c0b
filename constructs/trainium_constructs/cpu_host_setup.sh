#!/bin/bash
#
# Keeps the instance's role from the jobs of a CPU host.
#
# Jobs of one container share the host's network (AWS Batch User Guide, networking-modes-jobs), so
# neither a hop limit of 1 nor ECS_AWSVPC_BLOCK_IMDS, which is about tasks with a network of their
# own (amazon-ecs-agent, README), keeps them off the metadata service. They run as nobody, and
# nobody but root has anything to ask there: the agent, cloud-init and Systems Manager are root.

set -Eeuo pipefail

readonly ROOT="${TRAINIUM_ROOT:-}"
readonly DROP_IN="${ROOT}/etc/systemd/system/ecs.service.d/10-trainium.conf"
# iptables is there: the agent's own package requires it (ecs-agent.spec).
readonly RULE="OUTPUT --destination 169.254.169.254/32 --match owner ! --uid-owner 0 --jump REJECT"

# Before every start of the agent, which does not start without the rule: such a host gets no jobs.
# Deleted first (the dash: it may not be there), so that there is one of it, at the top.
mkdir -p "$(dirname "${DROP_IN}")"
cat >"${DROP_IN}.new" <<END
[Service]
ExecStartPre=-/usr/sbin/iptables --wait --delete ${RULE}
ExecStartPre=/usr/sbin/iptables --wait --insert ${RULE}
END
mv "${DROP_IN}.new" "${DROP_IN}"
systemctl daemon-reload
