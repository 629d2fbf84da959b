#!/bin/sh
# What a watcher is while nothing happens: the time until it is ready, its memory, and its share of a processor.
#
#   idle.sh SECONDS WATCHER [ARGUMENT]...
#
# The watcher is told to write its pid to the file that stands for %READY among its arguments when it is ready.
set -eu
seconds=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
watcher=
for word; do
    case $word in *%READY*) word=${word%%%READY*}$folder/ready${word#*%READY} ;; esac
    watcher="$watcher '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
done
started=$(date +%s%N)
(eval "exec env --default-signal=INT $watcher") >"$folder/output" 2>&1 &
pid=$!
trap 'kill -INT $pid 2>/dev/null || :; rm -rf "$folder"' EXIT
until [ -s "$folder/ready" ]; do
    kill -0 $pid 2>/dev/null || { cat "$folder/output" >&2; exit 70; }
    sleep 0.005
done
echo "ready after $((($(date +%s%N) - started) / 1000000)) ms"
watching=$(cat "$folder/ready")
ticks() { sed 's/.*) //' "/proc/$watching/stat" | awk '{ print $12 + $13 }'; }
sleep 2
before=$(ticks)
sleep "$seconds"
awk -v ticks="$(($(ticks) - before))" -v hz="$(getconf CLK_TCK)" -v seconds="$seconds" \
    'BEGIN { printf "%.2f %% of a processor in %d s\n", 100 * ticks / hz / seconds, seconds }'
grep VmRSS "/proc/$watching/status"
kill -INT $pid
wait $pid || :
