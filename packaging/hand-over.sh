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

# complain TEXT: prints a message.
complain() {
    printf 'tollgate: %s\n' "$1" >&2
}

# A second watch covers the time in which the first one restarts. What happens while both watch is reported twice. It
# is the trial of the new program, too: the old one ends only if that works here.
hand_over_watch() {
    [ -d /run/systemd/system ] || return 0
    # An earlier upgrade may have left the second watch alone.
    if ! systemctl --quiet is-active $bridge; then
        systemctl --quiet is-active $unit || return 0
        start_bridge || return 1
    fi
    if ! systemctl restart $unit; then
        complain "cannot restart $unit; $bridge watches the host in its place"
        return 1
    fi
    end_bridge
}

start_bridge() {
    if ! "$program" config check >/dev/null; then
        complain "cannot upgrade $unit: the new program refuses the configuration; the old one goes on"
        return 1
    fi
    systemctl cat $unit >/run/systemd/system/$bridge
    systemctl daemon-reload
    if ! systemctl start $bridge; then
        complain "cannot upgrade $unit: the new program does not start; the old one goes on"
        end_bridge
        return 1
    fi
}

end_bridge() {
    systemctl stop $bridge || :
    rm -f /run/systemd/system/$bridge
    systemctl daemon-reload
}

# Units are read again before the first one restarts: it may be the new program with the old unit otherwise.
reload_units() {
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Agents keep what they have to say until the collector is back.
hand_over_collector() {
    [ ! -d /run/systemd/system ] || systemctl try-restart tollgate-serve.service ||
        complain 'cannot restart tollgate-serve.service: see systemctl status tollgate-serve'
}

hand_over_runs
reload_units
hand_over_collector
hand_over_watch
