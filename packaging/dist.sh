#!/bin/sh
# Packs a release: packaging/dist.sh STATIC_PROGRAM FOLDER
#
# FOLDER gets the Debian package, an archive that installs itself on any Linux, and SHA256SUMS, in place of those of
# an earlier packing. Two packings of the same program are equal byte for byte. Environment: as deb.sh.
set -eu
umask 022
export LC_ALL=C
cd "$(dirname "$0")/.."

program=$1 out=$2
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
level=9
[ "${COMPRESSION:-best}" = best ] || level=1
name=tollgate-$version-$(uname -m)-linux

mkdir -p "$out" "$work/$name/packaging"
rm -f "$out"/tollgate_*.deb "$out"/tollgate-*-linux.tar.gz "$out/SHA256SUMS"
packaging/deb.sh "$program" "$out"

strip -o "$work/$name/tollgate" "$program"
install -m 644 LICENSE CHANGELOG.md README.md "$work/$name"
install -m 644 packaging/config.yaml packaging/logrotate packaging/tollgate-watch.service packaging/hand-over.sh \
    "$work/$name/packaging"
install -m 755 packaging/install.sh "$work/$name/packaging"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
    gzip -${level}n >"$out/$name.tar.gz"

cd "$out"
sha256sum -- tollgate_*.deb "$name.tar.gz" >"$work/SHA256SUMS"
install -m 644 "$work/SHA256SUMS" SHA256SUMS
