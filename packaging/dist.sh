#!/bin/sh
# Packs a release: packaging/dist.sh STATIC_PROGRAM FOLDER
#
# FOLDER gets the Debian package, the rpm, an archive that installs itself on any Linux, and SHA256SUMS, in place of those
# of an earlier packing. Two packings of the same program are equal byte for byte. Environment: as deb.sh.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

program=$1 out=$2
level=$(by_compression 9 1)
name=tollgate-$version-$(uname -m)-linux

mkdir -p "$out" "$work/$name/packaging"
rm -f "$out"/tollgate_*.deb "$out"/tollgate-*.rpm "$out"/tollgate-*-linux.tar.gz "$out/SHA256SUMS"
packaging/deb.sh "$program" "$out"
packaging/rpm.sh "$program" "$out"

strip -o "$work/$name/tollgate" "$program"
install -m 644 LICENSE CHANGELOG.md README.md "$work/$name"
install -m 644 packaging/config.yaml packaging/logrotate packaging/tollgate-watch.service packaging/hand-over.sh \
    "$work/$name/packaging"
install -m 755 packaging/install.sh "$work/$name/packaging"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
    gzip -${level}n >"$out/$name.tar.gz"

cd "$out"
sha256sum -- tollgate_*.deb tollgate-*.rpm "$name.tar.gz" >"$work/SHA256SUMS"
install -m 644 "$work/SHA256SUMS" SHA256SUMS
