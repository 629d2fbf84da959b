#!/bin/sh
# Has the installed program take over from an older one that still runs, without an unwatched interval.
# Packages call this after an upgrade; after `make install`, call it yourself.
set -eu

program=@BINDIR@/tollgate
unit=tollgate-watch.service
bridge=tollgate-watch-bridge.service

# has_our_root PID: whether the process has the same root folder; a container has its own program.
has_our_root() {
    [ "$(stat -L -c %d:%i "/proc/$1/root" 2>/dev/null)" = "$(stat -L -c %d:%i /)" ]
}

# Each keeper of `tollgate run` that is a replaced file starts the new one on SIGUSR2.
hand_over_runs() {
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$(readlink "$process/exe" 2>/dev/null)" = "$program (deleted)" ] || continue
        [ "$(cat "$process/comm" 2>/dev/null)" = tollgate-keeper ] || continue
        has_our_root "$pid" || continue
        kill -USR2 "$pid" || printf 'tollgate: cannot upgrade the watch of process %s\n' "$pid" >&2
    done
}

# A second watch covers the time in which the first one restarts. What happens while both watch is reported twice.
hand_over_watch() {
    [ -d /run/systemd/system ] || return 0
    systemctl daemon-reload
    systemctl --quiet is-active $unit || return 0
    systemctl cat $unit >/run/systemd/system/$bridge
    systemctl daemon-reload
    systemctl start $bridge ||
        echo "tollgate: cannot start a second watch; the host is unwatched while $unit restarts" >&2
    status=0
    systemctl restart $unit || status=$?
    # If the new program does not start, the second watch is all that there is.
    if [ $status = 0 ]; then
        systemctl stop $bridge
        rm -f /run/systemd/system/$bridge
        systemctl daemon-reload
    fi
    return $status
}

hand_over_runs
hand_over_watch
