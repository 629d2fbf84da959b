#!/bin/sh
# Makes an OCI image without a daemon and without the network: packaging/image.sh PROGRAM FOLDER [PROGRAM]...
#
# FOLDER gets tollgate-VERSION-image.tar: an image layout of the OCI image specification with one index, and in it one
# image for each program. The architecture of an image is the one that the program is built for. An image has the
# program, its licences, an empty folder for certificate authorities, and on this machine's architecture the operator
# for Kubernetes and the program that loads plugins, with its libraries; those of a program that is not static are
# added, too, so that a build for debugging can be tried. Manifests for Kubernetes find the programs in PATH. Two
# makings of the same programs are equal byte for byte. Environment: as dist.sh.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

[ $# -ge 2 ] || fail 'cannot make an image: two arguments are needed' 'packaging/image.sh PROGRAM FOLDER [PROGRAM]...'
first=$1 out=$2
shift 2
level=$(by_compression 9 1)
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
# A tag has no plus sign.
name=localhost/tollgate:$(echo "$version" | tr + _)
blobs=$work/layout/blobs/sha256
mkdir -p "$blobs" "$out"
notices=

# architecture FILE: prints the name by which images call the machine that an ELF file is built for.
architecture() {
    case $(od -An -tx1 -N 20 "$1" | tr -d ' \n') in
    7f454c46*3e00) echo amd64 ;;
    7f454c46*b700) echo arm64 ;;
    *) fail "cannot make an image of $1: it is no program for x86-64 or arm64" 'name the program that make static builds' ;;
    esac
}

# add FILE: moves a file to the blobs, and sets `digest` and `size`.
add() {
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    size=$(stat -c %s "$1")
    mv "$1" "$blobs/$digest"
}

# pack FOLDER: prints an archive in which nothing but names and content depends on the folder.
pack() {
    tar -C "$1" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - .
}

# check PROGRAM MACHINE: checks where a program is from, and sets `commit` for its label.
check() {
    if [ "$2" = "$(architecture /bin/sh)" ]; then
        check_origin "$1"
        return
    fi
    # A program for another machine cannot be asked. If it says its commit, its file has the text.
    commit=${COMMIT:-$(tree_commit)}
    [ "$commit" != unknown ] || commit=
    [ -z "$commit" ] || { grep -qaF "$commit" "$1" && ! grep -qaF "$commit-dirty" "$1"; } ||
        fail "cannot make an image of $1: its file does not have the commit $commit" 'build it from the same commit as the others'
}

# libraries PROGRAM: prints the paths of the libraries of a program; none for a static one.
libraries() {
    objdump -p "$1" | grep -q NEEDED || return 0
    ldd "$1" | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p'
}

# fill FOLDER PROGRAM MACHINE: lays out the files of an image.
fill() {
    install -d -m 755 "$1/etc/ssl/certs" "$1/usr/bin"
    install -D -m 755 "$2" "$1/tollgate"
    ln -s ../../tollgate "$1/usr/bin/tollgate"
    install -D -m 644 -t "$1/usr/share/doc/tollgate" LICENSE
    install -m 644 "$notices" "$1/usr/share/doc/tollgate/THIRD-PARTY-NOTICES"
    # Only a program of this machine can be asked for its libraries, and stripped.
    [ "$3" = "$(architecture /bin/sh)" ] || return 0
    strip "$1/tollgate"
    install -m 755 "$host" "$1/tollgate-plugin-host"
    install -m 755 "$operator" "$1/usr/bin/tollgate-operator"
    strip "$1/tollgate-plugin-host" "$1/usr/bin/tollgate-operator"
    for library in $(libraries "$2") $(libraries "$host") $(libraries "$operator"); do
        install -D -m 755 "$(readlink -f "$library")" "$1$library"
    done
}

# labels: prints the labels of an image, which its manifest repeats as annotations.
labels() {
    printf '{"org.opencontainers.image.created":"%s","org.opencontainers.image.description":"%s"' \
        "$created" 'Watch, confine and measure Linux programs'
    printf ',"org.opencontainers.image.licenses":"Apache-2.0","org.opencontainers.image.title":"tollgate"'
    printf ',"org.opencontainers.image.version":"%s"' "$version"
    [ -z "$commit" ] || printf ',"org.opencontainers.image.revision":"%s"' "$commit"
    printf '}'
}

# image PROGRAM MACHINE: adds an image, and sets `descriptor` to what the index says of it.
image() {
    fill "$work/$2" "$1" "$2"
    pack "$work/$2" >"$work/layer"
    difference=$(sha256sum "$work/layer" | cut -d ' ' -f 1)
    gzip -${level}n "$work/layer"
    add "$work/layer.gz"
    layer=$(printf '{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":%s}' "$digest" "$size")
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Entrypoint":["/tollgate"],"Cmd":["help"],"WorkingDir":"/","Labels":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s","created_by":"packaging/image.sh"}]}' \
        "$created" "$2" "$(labels)" "$difference" "$created" >"$work/config"
    add "$work/config"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[%s],"annotations":%s}' \
        "$digest" "$size" "$layer" "$(labels)" >"$work/manifest"
    add "$work/manifest"
    descriptor=$(printf '{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"platform":{"architecture":"%s","os":"linux"}}' \
        "$digest" "$size" "$2")
}

# An index in the index: tools give a name to one entry, and choose the machine's image below it.
list= machines=' '
for program in "$first" "$@"; do
    machine=$(architecture "$program")
    case $machines in *" $machine "*)
        fail "cannot make an image of $program: another program is for $machine, too" 'name one program for each architecture' ;;
    esac
    machines="$machines$machine "
    check "$program" "$machine"
    if [ "$machine" = "$(architecture /bin/sh)" ]; then
        host=$(plugin_host "$program")
        operator=$(operator "$program")
    fi
    notices=${notices:-$(third_party_notices "$first")}
    image "$program" "$machine"
    list=${list:+$list,}$descriptor
done
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$list" >"$work/index"
add "$work/index"
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"%s","io.containerd.image.name":"%s"}}]}' \
    "$digest" "$size" "$name" "$name" >"$work/layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/layout/oci-layout"
chmod 644 "$blobs"/*
pack "$work/layout" >"$work/image.tar"
install -m 644 "$work/image.tar" "$out/tollgate-$version-image.tar"
