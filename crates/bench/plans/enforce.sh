#!/bin/sh
# Runs a command under a policy with N rules of each kind that one enforcer carries:
#
#   enforce.sh TOLLGATE ENFORCER N COMMAND [ARGUMENT]...
#
# ENFORCER is Seccomp, Landlock, AppArmor or BPF, N at most 8. None of the rules is about what the
# benchmarks do. Nothing is reported, so nothing stays beside the command.
set -eu
tollgate=$1 enforcer=$2 count=$3
shift 3

# first N WORD...: the first N words.
first() {
    left=$1
    shift
    for word; do
        [ "$left" -gt 0 ] || break
        left=$((left - 1))
        printf '%s\n' "$word"
    done
}

files='/etc/shadow /etc/gshadow /root/.ssh/** /etc/sudoers /etc/ssl/private/** /var/spool/cron/** /boot/** /etc/ssh/**'
programs='/**/wget /**/curl /**/su /**/sudo /**/chroot /**/insmod /**/mkfs /**/fdisk'
domains='ax25 ipx appletalk netrom x25 rose packet vsock'
addresses='169.254.169.254 100.96.0.96 100.100.100.200 192.0.0.192 192.0.2.1 198.51.100.1 203.0.113.1 fd00:ec2::254'
capabilities='sys-module sys-rawio sys-boot sys-time audit-control mac-admin syslog wake-alarm'
calls='disallow-create-user-ns disallow-load-all-bpf-prog disallow-userfaultfd-creation disallow-insmod
    disallow-load-bpf-via-setsockopt disallow-mount disallow-umount dirty-pipe-mitigation'

case $enforcer in
Seccomp) kinds='calls domains' ;;
Landlock) kinds='files programs' ;;
AppArmor) kinds='files programs domains capabilities' ;;
BPF) kinds='files programs domains addresses capabilities' ;;
*) echo "enforce.sh: there is no enforcer $enforcer" >&2 && exit 2 ;;
esac

# rules KIND TEXT: one line for each of the first rules of a kind, with the word at the place of %.
rules() {
    case " $kinds " in *" $1 "*) ;; *) return 0 ;; esac
    eval "words=\$$1"
    # shellcheck disable=SC2086 # a list of words
    set -f && set -- "$2" $words && set +f
    text=$1
    shift
    first "$count" "$@" | sed "s|.*|$text|"
}

policy() {
    printf 'policy:\n  enforcer: %s\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n' "$enforcer"
    case $enforcer in
    Seccomp)
        echo '    hardeningRules:' && rules calls '    - &' | grep -v mitigation
        [ "$count" -lt 8 ] || echo '    vulMitigationRules: [dirty-pipe-mitigation]'
        ;;
    AppArmor | BPF) echo '    hardeningRules:' && rules capabilities '    - disable-cap-&' ;;
    esac
    echo '    bpfRawRules:'
    case $enforcer in
    Seccomp) ;;
    *)
        echo '      files:' && rules files '      - {qualifiers: [deny], pattern: "&", permissions: [read, write]}'
        echo '      processes:' && rules programs '      - {qualifiers: [deny], pattern: "&", permissions: [exec]}'
        ;;
    esac
    case $enforcer in
    Landlock) ;;
    *) echo '      network:' && echo '        sockets:' && rules domains '        - {qualifiers: [deny], domains: [&]}' ;;
    esac
    case $enforcer in
    BPF)
        echo '        egress:' && echo '          toDestinations:'
        rules addresses '          - {qualifiers: [deny], ip: "&"}'
        ;;
    esac
}

# Programs are carried in part, and some calls and capabilities: a copy of a program still runs.
partial=
case $enforcer in
Seccomp) partial=$(rules calls '--accept-partial &') ;;
*)
    index=0
    while [ $index -lt "$count" ]; do
        partial="$partial --accept-partial bpfRawRules.processes[$index]"
        index=$((index + 1))
    done
    ;;
esac
file=$(mktemp)
policy >"$file"
# The file is read before the command starts, which takes this process's place.
exec 3<"$file"
rm "$file"
set -f
# shellcheck disable=SC2086 # a list of words
exec "$tollgate" enforce -q $partial --policy /dev/fd/3 -- "$@" 3<&3
