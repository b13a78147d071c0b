#!/bin/bash
# shellcheck disable=SC2154 # host_setup.py inserts the settings at the placeholder below
#
# Prepares a Batch host for Neuron jobs over EFA, and blocks the ECS agent until it is ready.
#
#   trainium-host setup   once, from user data: install missing parts, configure, verify
#   trainium-host check   before every start of the ECS agent: refuse a host that is not ready
#   trainium-host watch   while jobs run: shut down a host that a job found unfit
#
# Every step is idempotent. Tests run this script with other paths and timeouts.

set -Eeuo pipefail

# (settings)

readonly ROOT="${TRAINIUM_ROOT:-}"
readonly DEV="${TRAINIUM_DEV:-/dev}"
readonly SYS="${TRAINIUM_SYS:-/sys}"
readonly CONSOLE="${TRAINIUM_CONSOLE:-/dev/console}"
readonly EFA_URL="${TRAINIUM_EFA_URL:-https://efa-installer.amazonaws.com}"
readonly DEVICE_WAIT_S="${TRAINIUM_DEVICE_WAIT_S:-60}"
readonly FETCH_RETRIES="${TRAINIUM_FETCH_RETRIES:-5}"
readonly GIVE_UP_AFTER="5min"
readonly REPORT_S="${TRAINIUM_REPORT_S:-5}"

readonly PROGRAM="${ROOT}/usr/local/sbin/trainium-host"
readonly STATE="${ROOT}/var/lib/trainium"
readonly ECS_CONFIG="${ROOT}/etc/ecs/ecs.config"

# Log to the journal or cloud-init log, and to the EC2 console output.
say() {
  echo "trainium: $*" >&2
  { echo "trainium: $*" >"${CONSOLE}"; } 2>/dev/null || true
}

# A host that never joins is still billed: shut it down, with a delay to read the reason.
give_up() {
  say "HOST NOT READY, the ECS agent stays stopped: $*; the host ends in ${GIVE_UP_AFTER}"
  systemd-run --quiet --on-active="${GIVE_UP_AFTER}" systemctl poweroff || true
}

die() {
  trap - ERR
  give_up "$*"
  exit 1
}

# --- pure functions ------------------------------------------------------------------------------

# Succeed if version $1 is $2 or newer.
version_at_least() {
  [[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" == "$2" ]]
}

# Succeed if the release's runtime library works with driver $1.
driver_fits() {
  [[ -n "$1" ]] || return 1
  version_at_least "$1" "${DRIVER_MIN}" || return 1
  [[ -z "${DRIVER_BELOW}" ]] || ! version_at_least "$1" "${DRIVER_BELOW}"
}

count() {
  local paths=()
  shopt -s nullglob
  # shellcheck disable=SC2206 # the argument is a glob
  paths=($1)
  shopt -u nullglob
  echo "${#paths[@]}"
}

neuron_devices() { count "${DEV}/neuron[0-9]*"; }

efa_devices() { count "${DEV}/infiniband/uverbs[0-9]*"; }

# The loaded driver, which may differ from the installed one.
loaded_driver() { cat "${SYS}/module/neuron/version" 2>/dev/null || true; }

# Atomically replace the file $1 with standard input.
write_file() {
  mkdir -p "$(dirname "$1")"
  cat >"$1.new"
  mv "$1.new" "$1"
}

# Set $1=$2 in the agent's configuration, once. Batch writes to the same file.
set_ecs_config() {
  mkdir -p "$(dirname "${ECS_CONFIG}")"
  touch "${ECS_CONFIG}"
  sed -i "/^$1=/d" "${ECS_CONFIG}"
  echo "$1=$2" >>"${ECS_CONFIG}"
}

# --- steps ---------------------------------------------------------------------------------------

# The agent starts after cloud-init even if user data failed, so its unit has to run the check.
guard_agent() {
  if [[ ! "$0" -ef "${PROGRAM}" ]]; then
    mkdir -p "$(dirname "${PROGRAM}")"
    install -m 0755 "$0" "${PROGRAM}"
  fi
  write_file "${ROOT}/etc/systemd/system/ecs.service.d/10-trainium.conf" <<END
[Service]
ExecStartPre=${PROGRAM} check
END
  write_file "${ROOT}/etc/systemd/system/trainium-watch.service" <<END
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=${PROGRAM} watch
Restart=always
RestartSec=5
[Install]
WantedBy=multi-user.target
END
  systemctl daemon-reload
  systemctl enable --now --no-block trainium-watch.service
}

configure() {
  # Keep these from being used as ephemeral ports before the job listens on them.
  write_file "${ROOT}/etc/sysctl.d/95-trainium.conf" <<END
net.ipv4.ip_local_reserved_ports = ${RESERVED_PORTS}
END
  sysctl --quiet -p "${ROOT}/etc/sysctl.d/95-trainium.conf"
  # For login sessions; a container has the limits of its job definition.
  write_file "${ROOT}/etc/security/limits.d/95-trainium.conf" <<END
* soft nofile ${NOFILE}
* hard nofile ${NOFILE}
* soft memlock unlimited
* hard memlock unlimited
END
  # Time for the launcher to stop its workers before SIGKILL.
  set_ecs_config ECS_CONTAINER_STOP_TIMEOUT "${STOP_TIMEOUT_S}s"
  # A job has its own role, and must not get the host's from the metadata service.
  set_ecs_config ECS_AWSVPC_BLOCK_IMDS true
}

fetch() {
  curl --fail --silent --show-error --location --retry "${FETCH_RETRIES}" --retry-all-errors \
    --connect-timeout 10 --max-time 300 --output "$2" "$1"
}

# Succeed if $2 is a signature of archive $1 by the pinned key, which must be in key file $3.
signature_is_good() {
  local keyring="$4" status
  gpg --homedir "${keyring}" --batch --quiet --no-autostart --import "$3" || return 1
  status="$(gpg --homedir "${keyring}" --batch --no-autostart --status-fd 1 \
    --verify "$2" "$1" 2>/dev/null)" || return 1
  # The last field is the fingerprint of the primary key.
  grep --quiet "^\[GNUPG:\] VALIDSIG .*${EFA_KEY_FINGERPRINT}\$" <<<"${status}"
}

# Succeed if a custom image includes EFA: its module is loaded and serves every interface. Not
# enough for the default image, whose kernel module may be older than the installer's.
image_has_efa() {
  [[ -n "${OWN_IMAGE}" && -d "${SYS}/module/efa" ]] || return 1
  wait_for_devices
  (($(efa_devices) == EFA_INTERFACES))
}

install_efa() {
  if ((EFA_INTERFACES == 0)) || [[ -e "${STATE}/efa-${EFA_VERSION}" ]] || image_has_efa; then
    return
  fi
  local work archive="aws-efa-installer-${EFA_VERSION}.tar.gz"
  work="$(mktemp -d)"
  mkdir -m 0700 "${work}/keyring"
  say "installing EFA ${EFA_VERSION}"
  fetch "${EFA_URL}/${archive}" "${work}/${archive}" ||
    die "cannot fetch ${archive}: without a route to the internet, the image must include EFA"
  fetch "${EFA_URL}/${archive}.sig" "${work}/${archive}.sig" || die "cannot fetch ${archive}.sig"
  fetch "${EFA_URL}/aws-efa-installer.key" "${work}/key" || die "cannot fetch the EFA key"
  signature_is_good "${work}/${archive}" "${work}/${archive}.sig" "${work}/key" \
    "${work}/keyring" || die "${archive} is not signed by key ${EFA_KEY_FINGERPRINT}"
  tar --extract --gzip --file "${work}/${archive}" --directory "${work}"
  # Kernel module and rdma-core: the container has its own libfabric.
  (cd "${work}/aws-efa-installer" && ./efa_installer.sh --yes --minimal) ||
    die "the EFA installer failed"
  rm -rf "${work}"
  touch "${STATE}/efa-${EFA_VERSION}"
}

install_driver() {
  local loaded
  loaded="$(loaded_driver)"
  if driver_fits "${loaded}"; then
    return
  fi
  say "driver '${loaded}' does not fit Neuron ${NEURON_RELEASE}, installing ${DRIVER_VERSION}"
  write_file "${ROOT}/etc/yum.repos.d/neuron.repo" <<END
[neuron]
name=Neuron YUM Repository
baseurl=https://yum.repos.neuron.amazonaws.com
enabled=1
gpgcheck=1
gpgkey=https://yum.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB
metadata_expire=0
END
  # For the running kernel: a newer one would need a reboot.
  dnf install --assumeyes "kernel-devel-$(uname -r)" || die "cannot install the kernel's headers"
  # dnf does not downgrade automatically.
  dnf remove --assumeyes aws-neuronx-dkms || true
  dnf install --assumeyes "aws-neuronx-dkms-${DRIVER_VERSION}" ||
    die "cannot install aws-neuronx-dkms ${DRIVER_VERSION}"
  modprobe --remove neuron || true
  modprobe neuron || die "cannot load the Neuron driver"
}

mount_lustre() {
  local folder="${ROOT}${LUSTRE_PATH}"
  if [[ -z "${LUSTRE_DNS_NAME}" ]] || mountpoint --quiet "${folder}"; then
    return
  fi
  # From Amazon Linux's repository, which has the client for the image's kernel. dnf would contact
  # the repository even for an installed package.
  command -v mount.lustre >/dev/null || dnf install --assumeyes lustre-client ||
    die "cannot install lustre-client"
  mkdir -p "${folder}"
  mount -t lustre -o relatime,flock "${LUSTRE_DNS_NAME}@tcp:/${LUSTRE_MOUNT_NAME}" "${folder}" ||
    die "cannot mount ${LUSTRE_DNS_NAME}: its security group must admit TCP 988 and 1018-1023"
}

wait_for_devices() {
  local waited
  for ((waited = 0; waited < DEVICE_WAIT_S; waited++)); do
    if (($(neuron_devices) == NEURON_DEVICES)) && (($(efa_devices) == EFA_INTERFACES)); then
      return
    fi
    sleep 1
  done
}

verify() {
  local driver found
  driver="$(loaded_driver)"
  [[ -n "${driver}" ]] || die "the Neuron driver is not loaded"
  driver_fits "${driver}" || die "driver ${driver} does not fit Neuron ${NEURON_RELEASE}," \
    "which takes ${DRIVER_MIN} or newer${DRIVER_BELOW:+, below ${DRIVER_BELOW}}"
  found="$(neuron_devices)"
  ((found == NEURON_DEVICES)) || die "${found} of ${NEURON_DEVICES} Neuron devices in ${DEV}"
  found="$(efa_devices)"
  ((found == EFA_INTERFACES)) ||
    die "${found} of ${EFA_INTERFACES} EFA interfaces in ${DEV}/infiniband"
  [[ -z "${LUSTRE_DNS_NAME}" ]] || mountpoint --quiet "${ROOT}${LUSTRE_PATH}" ||
    die "${LUSTRE_PATH} is not mounted"
}

setup() {
  guard_agent
  mkdir -p "${STATE}"
  rm -f "${STATE}/ready"
  trap 'give_up "line ${LINENO} of setup failed"' ERR
  configure
  install_driver
  install_efa
  mount_lustre
  wait_for_devices
  verify
  touch "${STATE}/ready"
  say "ready: ${NEURON_DEVICES} Neuron devices, ${EFA_INTERFACES} EFA interfaces," \
    "driver $(loaded_driver)"
}

check() {
  [[ -e "${STATE}/ready" ]] || die "setup did not finish"
  verify
}

# A launcher's exit code reports that its own host is unfit, which needs no permissions. The host
# powers itself off, which terminates it, and Batch starts another one.
watch() {
  # Not a pipeline, which would block until docker writes another event.
  grep --quiet --line-regexp "${UNFIT_HOST_CODE}" < <(docker events \
    --filter type=container --filter event=die --format '{{.Actor.Attributes.exitCode}}')
  say "HOST NOT READY, a job found it unfit: the host ends"
  sleep "${REPORT_S}" # for the ECS agent's report and Docker's last log lines
  systemctl poweroff
}

main() {
  case "${1:-setup}" in
    setup) setup ;;
    check) check ;;
    watch) watch ;;
    *) die "unknown command $1" ;;
  esac
}

# Sourced by tests, run by cloud-init and systemd.
if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  main "$@"
fi
