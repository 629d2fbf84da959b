#!/bin/sh
# Makes the Debian package of a program: packaging/deb.sh PROGRAM FOLDER
#
# The files are those of install.sh. Two packings of the same program are equal byte for byte.
# Environment: SOURCE_DATE_EPOCH (default: the time of the last commit), VERSION (default: that of Cargo.toml), COMPRESSION
# (best, the default, or fast), PLUGIN_HOST (the program that loads plugins; default: tollgate-plugin-host beside PROGRAM), NOTICES
# (licences of what is linked into the programs; default: they are collected).
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

program=$1 out=$2
architecture=$(dpkg --print-architecture)
compression=$(by_compression -Zxz '-Zzstd -z1')
stage=$work/stage

# depends FILE: prints the packages with the libraries of a program; none for a static one.
depends() {
    found=
    for library in $(objdump -p "$1" | sed -n 's/^ *NEEDED *//p'); do
        case $library in
        libc.so.* | libm.so.* | ld-linux*)
            # The newest version of a symbol that the program uses.
            newest=$(objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
            package="libc6 (>= $newest)"
            ;;
        libgcc_s.so.1) package=libgcc-s1 ;;
        libseccomp.so.2) package=libseccomp2 ;;
        *)
            echo "packaging/deb.sh: cannot tell what the package depends on: no package is known for $library" >&2
            echo 'help: add the library to packaging/deb.sh' >&2
            return 1
            ;;
        esac
        case ", $found," in *", $package,"*) ;; *) found="${found:+$found, }$package" ;; esac
    done
    echo "$found"
}

# An assignment of its own, so that a failure ends this script.
depends=$(depends "$program")
PLUGIN_HOST=$(plugin_host "$program")
export PLUGIN_HOST
# A static program runs where these are missing or too old; only plugins do not.
recommends=$(depends "$PLUGIN_HOST")
NOTICES=$(third_party_notices "$program")
export NOTICES
DESTDIR=$stage PREFIX=/usr ZSHDIR=/usr/share/zsh/vendor-completions packaging/install.sh install "$program"
doc=$stage/usr/share/doc/tollgate
# dpkg keeps what it needs to know about files of /etc itself.
rm -r "$doc/LICENSE" "$stage/usr/share/tollgate"
install -m 644 packaging/debian/copyright "$doc/copyright"
{
    printf 'tollgate (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n' "$version"
    sed -n "s|^Maintainer: \(.*\)| -- \1  $(date -u -R -d "@$SOURCE_DATE_EPOCH")|p" packaging/debian/control
} >"$doc/changelog"
gzip -9n "$doc/changelog" "$doc/CHANGELOG.md" "$doc/THIRD-PARTY-NOTICES"

mkdir "$stage/DEBIAN"
for script in postinst prerm postrm; do install -m 755 packaging/debian/$script "$stage/DEBIAN/$script"; done
(cd "$stage" && find etc -type f | sort | sed 's|^|/|') >"$stage/DEBIAN/conffiles"
(cd "$stage" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
# By sizes of files, not of blocks, which file systems count in different ways.
size=$(find "$stage/usr" "$stage/etc" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
sed -e "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@SIZE@|$size|" \
    -e "s|@DEPENDS@|$depends|; /^Depends: \$/d" -e "s|@RECOMMENDS@|$recommends|" \
    packaging/debian/control >"$stage/DEBIAN/control"
chmod 644 "$stage"/DEBIAN/control "$stage"/DEBIAN/conffiles "$stage"/DEBIAN/md5sums

mkdir -p "$out"
# One thread: the result of several depends on their number.
# shellcheck disable=SC2086 # options are words
dpkg-deb --root-owner-group --threads-max=1 $compression --build "$stage" "$out/tollgate_${version}_$architecture.deb"
