#!/bin/sh
# Installs tollgate, or removes it: the one list of files of `make install`, `make deb` and `make dist`.
#
#   packaging/install.sh install|uninstall PROGRAM
#
# Environment: PREFIX (default /usr/local), DESTDIR (default: none), ZSHDIR (folder of zsh's completions), PLUGIN_HOST (the
# program that loads plugins; default: tollgate-plugin-host beside PROGRAM), NOTICES (file with the licences of what is
# linked into the programs; default: THIRD-PARTY-NOTICES in the archive of a release).
# Files of /etc are never overwritten, and never removed if they were changed.
set -eu
umask 022
export LC_ALL=C

# fail MESSAGE HELP: ends with an error.
fail() {
    printf 'packaging/install.sh: %s\nhelp: %s\n' "$1" "$2" >&2
    exit 1
}

[ $# = 2 ] || fail 'cannot install: two arguments are needed' 'packaging/install.sh install|uninstall PROGRAM'
verb=$1 program=$2
case $program in /*) ;; *) program=$PWD/$program ;; esac
plugin_host=${PLUGIN_HOST:-${program%/*}/tollgate-plugin-host}
case $plugin_host in /*) ;; *) plugin_host=$PWD/$plugin_host ;; esac
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
defaults=$prefix/share/tollgate
notices=${NOTICES:-THIRD-PARTY-NOTICES}
zsh=${ZSHDIR:-$prefix/share/zsh/site-functions}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# make_files: makes in the folder $made what is not in the repository.
make_files() {
    mkdir "$made/man"
    # What `make dist` packs is stripped already; a machine without binutils takes it as it is.
    if command -v strip >/dev/null; then
        strip -o "$made/tollgate" "$program"
        strip -o "$made/tollgate-plugin-host" "$plugin_host"
    else
        cp "$program" "$made/tollgate"
        cp "$plugin_host" "$made/tollgate-plugin-host"
    fi
    "$program" man -o "$made/man"
    gzip -9n "$made"/man/*
    for shell in bash zsh fish; do "$program" completions $shell >"$made/$shell"; done
    for file in hand-over.sh tollgate-watch.service tollgate-serve.service; do
        sed "s|@BINDIR@|$prefix/bin|g" packaging/$file >"$made/$file"
    done
}

# files: prints MODE, SOURCE and TARGET of each file.
files() {
    echo "755 $made/tollgate $prefix/bin/tollgate"
    # The program looks for it in its own folder.
    echo "755 $made/tollgate-plugin-host $prefix/bin/tollgate-plugin-host"
    echo "755 $made/hand-over.sh $prefix/lib/tollgate/hand-over"
    echo "644 $made/tollgate-watch.service $prefix/lib/systemd/system/tollgate-watch.service"
    echo "644 $made/tollgate-serve.service $prefix/lib/systemd/system/tollgate-serve.service"
    echo "644 packaging/sysusers.conf $prefix/lib/sysusers.d/tollgate.conf"
    echo "644 $made/bash $prefix/share/bash-completion/completions/tollgate"
    echo "644 $made/zsh $zsh/_tollgate"
    echo "644 $made/fish $prefix/share/fish/vendor_completions.d/tollgate.fish"
    echo "644 LICENSE $prefix/share/doc/tollgate/LICENSE"
    echo "644 CHANGELOG.md $prefix/share/doc/tollgate/CHANGELOG.md"
    # `make install` has none: it does not give the program to others.
    [ ! -e "$notices" ] || echo "644 $notices $prefix/share/doc/tollgate/THIRD-PARTY-NOTICES"
    for page in "$made"/man/*; do
        [ -e "$page" ] || continue
        echo "644 $page $prefix/share/man/man1/${page##*/}"
    done
}

# settings: prints SOURCE and TARGET of each file that belongs to the administrator once it is there. A copy of what
# was installed stays in $defaults, by which `uninstall` knows whether the file was changed since.
settings() {
    echo "packaging/config.yaml /etc/tollgate/config.yaml"
    echo "packaging/logrotate /etc/logrotate.d/tollgate"
}

install_all() {
    [ -x "$program" ] || fail "cannot find $program" 'run make build'
    [ -x "$plugin_host" ] || fail "cannot find $plugin_host" 'run make build, or set PLUGIN_HOST to the program that loads plugins'
    make_files
    files | while read -r mode source target; do
        install -D -m "$mode" "$source" "$root$target"
    done
    [ -d "$root/etc/tollgate/rules.d" ] || install -d -m 755 "$root/etc/tollgate/rules.d"
    # Packages do it in their own scripts: what is made for them is not this machine.
    if has_systemd; then systemd-sysusers "$prefix/lib/sysusers.d/tollgate.conf"; fi
    settings | while read -r source target; do
        if [ ! -e "$root$target" ]; then
            install -D -m 644 "$source" "$root$target"
            install -D -m 644 "$source" "$root$defaults$target"
        fi
    done
}

# has_systemd: whether systemd runs the machine that is changed.
has_systemd() {
    [ -z "$root" ] && [ -d /run/systemd/system ]
}

uninstall_all() {
    if has_systemd; then
        systemctl disable --quiet --now tollgate-watch.service tollgate-serve.service || :
        # It is there if an upgrade failed.
        systemctl --quiet stop tollgate-watch-bridge.service || :
        rm -f /run/systemd/system/tollgate-watch-bridge.service
    fi
    files | while read -r _ _ target; do rm -f "$root$target"; done
    rm -f "$root$prefix/share/doc/tollgate/THIRD-PARTY-NOTICES"
    # A later version may have other verbs.
    rm -f "$root$prefix"/share/man/man1/tollgate.1.gz "$root$prefix"/share/man/man1/tollgate-*.1.gz
    settings | while read -r source target; do
        # Builds before kept no copy.
        [ -e "$root$defaults$target" ] || cp "$source" "$made/setting"
        [ ! -e "$root$defaults$target" ] || mv "$root$defaults$target" "$made/setting"
        if cmp -s "$made/setting" "$root$target"; then rm "$root$target"; fi
    done
    for folder in "$defaults/etc/tollgate" "$defaults/etc/logrotate.d" "$defaults/etc" "$defaults" "$prefix/lib/tollgate" "$prefix/share/doc/tollgate" /etc/tollgate/rules.d /etc/tollgate; do
        [ ! -d "$root$folder" ] || rmdir --ignore-fail-on-non-empty "$root$folder"
    done
    if has_systemd; then systemctl daemon-reload; fi
    [ ! -d "$root/etc/tollgate" ] || echo "kept your files in $root/etc/tollgate"
}

case $verb in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "unknown verb $verb" 'packaging/install.sh install|uninstall PROGRAM' ;;
esac
