#!/bin/sh
# Runs a command under a policy that denies three things, and that tells of it or does not:
#
#   denied.sh TOLLGATE ENFORCERS told|untold COMMAND [ARGUMENT]...
#
# Of SeccompLandlockCaps one enforcer carries each: the filter sockets (load attempt_socket), Landlock the file
# (attempt_open), and the capability (attempt_chroot) is not there. AppArmor and BPF carry all three. What is told is
# written to /dev/null.
set -eu
tollgate=$1 enforcers=$2 how=$3
shift 3
case $how in
told) told=true ;;
untold) told=false ;;
*) echo "denied.sh: $how is neither told nor untold" >&2 && exit 2 ;;
esac

policy() {
    cat <<END
policy:
  enforcer: $enforcers
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    auditViolations: $told
    hardeningRules: [disable-cap-sys-chroot]
    attackProtectionRules: [{rules: [disable-udp, disable-access-shadow]}]
END
}

file=$(mktemp)
trap 'rm -f "$file"' EXIT
policy >"$file"
"$tollgate" enforce -q --policy "$file" -o stdout_output.enabled=false -o file_output.enabled=true \
    -o file_output.filename=/dev/null --accept-partial disable-udp --accept-partial disable-access-shadow \
    --accept-partial disable-cap-sys-chroot -- "$@"
