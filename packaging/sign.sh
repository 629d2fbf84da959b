#!/bin/sh
# Signs a release with a key of minisign: packaging/sign.sh KEY FOLDER
#
# FOLDER gets SHA256SUMS.minisig, after all its files were compared with SHA256SUMS. The key's password is asked for.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

# fail MESSAGE HELP: ends with an error.
fail() {
    printf 'packaging/sign.sh: %s\nhelp: %s\n' "$1" "$2" >&2
    exit 1
}

[ $# = 2 ] || fail 'cannot sign: two arguments are needed' 'packaging/sign.sh KEY FOLDER'
key=$(absolute "$1")
[ -f "$key" ] || fail "cannot find the key $1" 'make one with minisign -G -s KEY -p PUBLIC_KEY'
[ -f "$2/SHA256SUMS" ] || fail "cannot find $2/SHA256SUMS" 'run make dist'
cd "$2"
sha256sum --check --strict --quiet SHA256SUMS ||
    fail "cannot sign: files of $2 are not those of SHA256SUMS" 'run make dist'
minisign -S -s "$key" -t "tollgate $version" -m SHA256SUMS
