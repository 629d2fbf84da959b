#!/bin/sh
# Builds and tests for arm64 on a Debian machine of another architecture, with clang and lld.
#
#   packaging/arm64.sh cargo ARGUMENT...           cargo for the target aarch64-unknown-linux-gnu, linked statically
#   packaging/arm64.sh unit-tests FOLDER CRATE...  build the unit tests of crates, each as FOLDER/CRATE
#   packaging/arm64.sh folder PACKAGE              print where the files of Debian's PACKAGE for arm64 are kept
#   packaging/arm64.sh kernel 6.1|newer            print where the image of Debian's small kernel is kept
#
# gcc-aarch64-linux-gnu conflicts with gcc-multilib, which the tests of 32-bit programs need: so clang compiles and
# links. Packages of arm64 are downloaded by apt with lists of their own, not by those of the machine, and are
# unpacked below TOLLGATE_CACHE (~/.cache/tollgate), not installed.
set -eu

cache=${TOLLGATE_CACHE:-${HOME:?}/.cache/tollgate}/arm64
apt=$cache/apt
triple=aarch64-unknown-linux-gnu

fail() {
    printf 'arm64.sh: %s\n' "$@" >&2
    exit 3
}

# apt COMMAND ARGUMENT...: apt with an empty machine of arm64, which takes packages from where this machine does.
apt() {
    "$@" -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources" \
        -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Languages=none
}

# The machine's sources of Debian, and the backports of its release beside them: Linux 6.1 has no programs on functions
# and LSM hooks for arm64, newer ones do (since 6.4).
prepare_apt() {
    [ ! -e "$apt/ready" ] || return 0
    rm -rf "$apt"
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/sources"
    : >"$apt/status"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        case $list in *.sources) suffix=sources ;; *) suffix=list ;; esac
        grep -qs debian-archive-keyring "$list" || grep -qsE '^deb .*(debian|deb\.)' "$list" || continue
        name=$(basename "$list")
        sed -E -e '/^Architectures:/d' -e '/^(Types: )?deb-src/d' \
            -e 's/^Suites:.* ([a-z]+)-updates.*$/& \1-backports/' \
            -e 's/^(deb .*) ([a-z]+)-updates (.*)$/&\n\1 \2-backports \3/' \
            "$list" >"$apt/sources/${name%.*}.$suffix"
    done
    apt apt-get --quiet --quiet update >&2
    : >"$apt/ready"
}

# unpacked PACKAGE: prints the folder with the files of a package.
unpacked() {
    folder=$cache/packages/$(printf %s "$1" | tr '/:~+=' '_____')
    if [ ! -e "$folder/.ready" ]; then
        prepare_apt
        rm -rf "$folder"
        mkdir -p "$folder"
        (cd "$folder" && apt apt-get --quiet --quiet download "$1" >&2 && dpkg-deb -x ./*.deb . && rm ./*.deb) ||
            fail "cannot download the package $1 for arm64" "remove $apt, then try again"
        : >"$folder/.ready"
    fi
    printf %s "$folder"
}

# kernel 6.1|newer: of the release, or of its backports.
kernel() {
    known=$cache/kernel-$1
    if [ ! -e "$known" ]; then
        prepare_apt
        offered=$(apt apt-cache madison linux-image-cloud-arm64 | sed 's/ *| */|/g' | cut -d'|' -f2)
        case $1 in
        6.1) version=$(printf '%s\n' "$offered" | grep '^6\.1\.' | head -n 1) ;;
        newer) version=$(printf '%s\n' "$offered" | grep -v '^6\.1\.' | head -n 1) ;;
        *) fail "unknown kernel $1: expected 6.1 or newer" ;;
        esac
        [ -n "$version" ] || fail "apt offers no kernel $1 for arm64, only: $(echo "$offered" | tr '\n' ' ')"
        image=$(apt apt-cache depends "linux-image-cloud-arm64=$version" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
        [ -n "$image" ] || fail "linux-image-cloud-arm64 $version names no image"
        mkdir -p "$cache"
        printf %s "$image" >"$known.half"
        mv "$known.half" "$known"
    fi
    image=$(cat "$known")
    folder=$(unpacked "$image")
    printf '%s\n' "$folder/boot/vmlinuz-${image#linux-image-}"
}

# cross_cargo ARGUMENT...
cross_cargo() {
    for program in clang ld.lld; do
        command -v "$program" >/dev/null || fail "$program is missing: ./x arm64 installs it"
    done
    [ -e /usr/aarch64-linux-gnu/lib/libc.a ] || fail 'libc6-dev-arm64-cross is missing: ./x arm64 installs it'
    rustc --print target-libdir --target $triple 2>/dev/null | xargs -r ls >/dev/null 2>&1 ||
        fail "Rust's library for $triple is missing: rustup target add $triple"
    elf=$(unpacked libelf-dev)
    zlib=$(unpacked zlib1g-dev)
    # Headers of libelf and zlib are the same for all architectures, zconf.h but for its place.
    export CC_aarch64_unknown_linux_gnu=clang
    export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
    export CFLAGS_aarch64_unknown_linux_gnu="-idirafter $elf/usr/include -idirafter $zlib/usr/include"
    export LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu="$elf/usr/lib/aarch64-linux-gnu:$zlib/usr/lib/aarch64-linux-gnu"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=clang
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C link-arg=--target=aarch64-linux-gnu \
-C link-arg=-fuse-ld=lld -C target-feature=+crt-static"
    command=$1
    shift
    "${CARGO:-cargo}" "$command" --target $triple "$@"
}

# unit_tests FOLDER CRATE...
unit_tests() {
    folder=$1
    shift
    mkdir -p "$folder"
    for crate; do
        said=$(cross_cargo test --locked --no-run --lib --package "$crate" 2>&1) || fail "$said"
        built=$(printf '%s\n' "$said" | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
        [ -n "$built" ] || fail "cargo names no test program of $crate: $said"
        aarch64-linux-gnu-strip -o "$folder/$crate" "$built"
    done
}

case ${1:-} in
cargo) shift && cross_cargo "$@" ;;
unit-tests) shift && unit_tests "$@" ;;
folder) unpacked "$2" && echo ;;
kernel) kernel "$2" ;;
*)
    echo 'usage: packaging/arm64.sh cargo ARGUMENT... | unit-tests FOLDER CRATE... | folder PACKAGE | kernel 6.1|newer' >&2
    exit 2
    ;;
esac
