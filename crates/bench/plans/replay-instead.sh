#!/bin/sh
# Reads the capture that a sysdig command line names with another reader, on the same processor:
#
#   replay-instead.sh READER [OPTION]... -- taskset -c CPU sysdig -r FILE [FILTER]
#
# %FILE in an option becomes the capture, %FILTER sysdig's filter. Without %FILE the capture is the
# last argument.
set -eu
reader=
for word; do
    shift
    [ "$word" != -- ] || break
    reader="$reader $(printf %s "$word" | sed "s/'/'\\\\''/g; s/^/'/; s/\$/'/")"
done
[ "${1-} ${2-} ${4-} ${5-}" = "taskset -c sysdig -r" ] || {
    echo "replay-instead.sh: no 'taskset -c CPU sysdig -r FILE' behind --" >&2
    exit 2
}
processor=$3 file=$6 filter=${7-}
case $reader in *%FILE*) ;; *) reader="$reader '%FILE'" ;; esac
eval "set -- $reader"
for word; do
    shift
    case $word in
    %FILE) word=$file ;;
    %FILTER) word=$filter ;;
    esac
    set -- "$@" "$word"
done
exec taskset -c "$processor" "$@"
