# What every script that packs needs; sourced in the root of the repository.
umask 022
export LC_ALL=C
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)}
# Two packings of the same program are equal byte for byte: times are this one, by default that of the last commit, or of
# CHANGELOG.md outside a clone.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# by_compression BEST FAST: prints the one that the variable COMPRESSION (best, the default, or fast) asks for.
by_compression() {
    case ${COMPRESSION:-best} in
    best) echo "$1" ;;
    fast) echo "$2" ;;
    *) echo "${0#"$PWD/"}: unknown COMPRESSION $COMPRESSION; use best or fast" >&2 && return 2 ;;
    esac
}

# xtask WORD...: runs the tools of the repository.
xtask() {
    ${XTASK:-cargo run --quiet --locked --package xtask --} "$@"
}

# third_party_notices PROGRAM: prints the name of a file with the licences of what is linked into a program. The archive
# of a release has one, which serves every packing.
third_party_notices() {
    if [ -n "${NOTICES:-}" ]; then
        echo "$NOTICES"
        return
    fi
    xtask notices "$(absolute "$1")" "$work/THIRD-PARTY-NOTICES"
    echo "$work/THIRD-PARTY-NOTICES"
}

# absolute PATH: prints a path that stays right in another folder.
absolute() {
    case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}
