#!/bin/sh
# Runs a command under N of the rules that one enforcer carries: enforce.sh TOLLGATE Seccomp|Landlock N CMD...
# (7 of seccomp, 8 of Landlock at most). Nothing is reported, so nothing stays beside the command.
tollgate=$1 enforcer=$2 count=$3
shift 3
case $enforcer in
Seccomp) set_of="disallow-create-user-ns disallow-load-all-bpf-prog disallow-userfaultfd-creation disallow-insmod
    disallow-load-bpf-via-setsockopt disallow-mount disallow-umount" ;;
*) set_of="/etc/shadow /etc/gshadow /root/.ssh/** /etc/sudoers /etc/ssl/private/** /var/spool/cron/** /boot/** /etc/ssh/**" ;;
esac
policy=$(mktemp)
{
    printf 'policy:\n  enforcer: %s\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n' "$enforcer"
    case $enforcer in
    Seccomp) echo "    hardeningRules:" ;;
    *) printf '    bpfRawRules:\n      files:\n' ;;
    esac
    for rule in $set_of; do
        [ "$count" -gt 0 ] || break
        count=$((count - 1))
        case $enforcer in
        Seccomp) echo "    - $rule" ;;
        *) echo "      - {qualifiers: [deny], pattern: \"$rule\", permissions: [read, write]}" ;;
        esac
    done
} > "$policy"
exec "$tollgate" enforce -q --policy "$policy" -- "$@"
