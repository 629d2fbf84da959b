#!/bin/sh
# Makes the rpm of a program: packaging/rpm.sh PROGRAM FOLDER
#
# The files are those of install.sh. Two packings of the same program are equal byte for byte.
# Environment: as deb.sh.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

program=$1 out=$2
stage=$work/stage
payload=$(by_compression w19.zstdio w1.zstdio)
NOTICES=$(third_party_notices "$program")
export NOTICES
DESTDIR=$stage PREFIX=/usr packaging/install.sh install "$program"
# rpm keeps what it needs to know about files of /etc itself.
rm -r "$stage/usr/share/tollgate"

# list: prints each file and each folder of ours with its role.
list() {
    echo '%dir /etc/tollgate'
    echo '%dir /etc/tollgate/rules.d'
    echo '%dir /usr/lib/tollgate'
    echo '%dir /usr/share/doc/tollgate'
    (cd "$stage" && find etc usr ! -type d | sort) | while read -r path; do
        case $path in
        etc/*) echo "%config(noreplace) /$path" ;;
        usr/share/doc/tollgate/LICENSE | usr/share/doc/tollgate/THIRD-PARTY-NOTICES) echo "%license /$path" ;;
        usr/share/doc/* | usr/share/man/*) echo "%doc /$path" ;;
        *) echo "/$path" ;;
        esac
    done
}
list >"$work/files"
# A version of rpm has no hyphen; the tilde sorts what is before a release, such as 1.0.0-rc1, before it.
sed "s|@VERSION@|$(echo "$version" | tr - '~')|" packaging/rpm/tollgate.spec >"$work/tollgate.spec"

mkdir -p "$out"
# Nothing is changed in the files, and nothing of this machine gets into the package.
rpmbuild -bb --quiet --target "$(uname -m)-linux" \
    --define "_topdir $work/rpmbuild" --define "_rpmdir $work/rpms" --define "_tmppath $work" \
    --define "_dbpath $work/db" --define "stage $stage" --define "list $work/files" \
    --define '__os_install_post %{nil}' --define 'debug_package %{nil}' --define '_build_id_links none' \
    --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' \
    --define 'clamp_mtime_to_source_date_epoch 1' --define "_binary_payload $payload" \
    "$work/tollgate.spec"
find "$work/rpms" -name '*.rpm' -exec install -m 644 -t "$out" {} +
