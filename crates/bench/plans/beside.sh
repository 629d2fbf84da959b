#!/bin/sh
# Runs a command while something watches the whole machine:
#
#   beside.sh WATCHER [ARGUMENT]... -- COMMAND [ARGUMENT]...
#
# The watcher is told to end by SIGINT. It is ready when it has written to the file that stands for
# %READY among its arguments, or else to its standard output. The exit status is the command's.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ready=$folder/output
watcher=
for word; do
    shift
    [ "$word" != -- ] || break
    case $word in *%READY*) word=${word%%%READY*}$folder/ready${word#*%READY} ready=$folder/ready ;; esac
    # Quoted, so that words stay words.
    watcher="$watcher '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
done
# A shell that runs in the background ignores SIGINT, and what it starts does, too.
(eval "exec setsid env --default-signal=INT $watcher") >"$folder/output" 2>&1 &
pid=$!
trap 'kill -INT $pid 2>/dev/null || :; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP
tries=0
until [ -s "$ready" ]; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ] || ! kill -0 $pid 2>/dev/null; then
        cat "$folder/output" >&2
        exit 70
    fi
    sleep 0.05
done
sleep 0.2
status=0
"$@" || status=$?
kill -INT $pid
wait $pid || :
exit $status
