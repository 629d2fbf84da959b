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

# fail MESSAGE HELP: ends with an error.
fail() {
    printf 'packaging/%s: %s\nhelp: %s\n' "${0##*/}" "$1" "$2" >&2
    exit 1
}

# said PROGRAM KEY: prints a text that a program says of itself, and nothing if it does not know it.
said() {
    "$(absolute "$1")" version --json | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

# tree_commit: prints the commit of the tree at hand as the Makefile hands it to a build; nothing outside a clone.
tree_commit() {
    git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || :
}

# check_origin PROGRAM: fails unless a program was built from the tree at hand, without changes, because bills and
# licences are made from the tree. COMMIT names the commit of another program, and is `unknown` for one that says none.
# Sets `commit` to what the program says.
check_origin() {
    commit=$(said "$1" commit)
    found=${commit:-unknown}
    tree=$(tree_commit)
    other="or set COMMIT=$found to pack this program; bills and licences are then those of the tree"
    if [ -n "${COMMIT:-}" ]; then
        [ "$COMMIT" = "$found" ] ||
            fail "cannot pack $1: its commit is $found, not $COMMIT" "set COMMIT=$found, or unset it to pack what the tree builds"
    elif [ -z "$tree" ]; then
        fail "cannot pack $1: the commit of the tree is not known" "pack in a clone, $other"
    elif [ "$tree" != "${tree%-dirty}" ]; then
        fail "cannot pack $1: the tree has changes that no commit has" "commit them and build again, $other"
    elif [ "$found" != "$tree" ]; then
        fail "cannot pack $1: its commit is $found, and the tree has $tree" "run make static, $other"
    fi
    found=$(said "$1" version)
    [ -n "${VERSION:-}" ] || [ "${found:-$version}" = "$version" ] ||
        fail "cannot pack $1: its version is $found, not $version" "set VERSION=$found"
}

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

# companion PROGRAM NAME PATH SETTING: prints the path of another program that is packed with a program: PATH, by default
# NAME beside the program. SETTING tells how to name another one.
companion() {
    found=${3:-$(dirname "$1")/$2}
    [ -x "$found" ] || fail "cannot find $found" "run make build, or set $4"
    absolute "$found"
}

# plugin_host PROGRAM: prints the path of the program that loads plugins.
plugin_host() {
    companion "$1" tollgate-plugin-host "${PLUGIN_HOST:-}" 'PLUGIN_HOST to the program that loads plugins'
}

# operator PROGRAM: prints the path of the operator for Kubernetes.
operator() {
    companion "$1" tollgate-operator "${OPERATOR:-}" 'OPERATOR to the operator for Kubernetes'
}

# absolute PATH: prints a path that stays right in another folder.
absolute() {
    case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}
