#!/bin/sh
# Packs a release: packaging/dist.sh STATIC_PROGRAM FOLDER
#
# FOLDER gets the Debian package, the rpm, an archive that installs itself on any Linux, and an OCI image, each with a bill
# of materials; the symbols of the programs, for debuggers; the built-in rules as an artefact of a registry; the licences of what the program contains; and SHA256SUMS of all, in place of those of an earlier packing.
# Two packings of the same program are equal byte for byte. Environment: as deb.sh, and COMMIT, the commit of a program that
# is not built from the tree at hand (default: that of the tree, which must have no changes; `unknown` if it says none).
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh

program=$1 out=$2
level=$(by_compression 9 1)
name=tollgate-$version-$(uname -m)-linux

# A tag names the release that is packed, unless VERSION does.
tag=$(git describe --exact-match --tags --match 'v[0-9]*' 2>/dev/null || :)
if [ -z "${VERSION:-}" ] && [ -n "$tag" ] && [ "$tag" != "v$version" ]; then
    fail "cannot pack version $version: the commit has the tag $tag" \
        'set the version of the tag in Cargo.toml and commit it, or remove the tag'
fi
check_origin "$program"

# packed NAME: packs a folder into an archive.
packed() {
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$1" |
        gzip -${level}n >"$out/$1.tar.gz"
}

mkdir -p "$out" "$work/$name/packaging"
rm -f "$out"/tollgate_*.deb "$out"/tollgate-*.rpm "$out"/tollgate-*-linux.tar.gz "$out"/tollgate-*-debug.tar.gz "$out"/tollgate-*-image.tar "$out"/tollgate-*-rules.tar \
    "$out"/tollgate[-_]*.cdx.json "$out/THIRD-PARTY-NOTICES" "$out/SHA256SUMS" "$out/SHA256SUMS.minisig"
# Once: what is not stripped can be ten times as large. Symbols are an archive of their own.
PLUGIN_HOST=$(plugin_host "$program")
OPERATOR=$(operator "$program")
mkdir "$work/$name-debug" "$work/operator"
objcopy --only-keep-debug "$program" "$work/$name-debug/tollgate.debug"
objcopy --only-keep-debug "$PLUGIN_HOST" "$work/$name-debug/tollgate-plugin-host.debug"
objcopy --only-keep-debug "$OPERATOR" "$work/$name-debug/tollgate-operator.debug"
packed "$name-debug"
strip -o "$work/operator/tollgate-operator" "$OPERATOR"
OPERATOR=$work/operator/tollgate-operator
strip -o "$work/$name/tollgate-plugin-host" "$PLUGIN_HOST"
PLUGIN_HOST=$work/$name/tollgate-plugin-host
export PLUGIN_HOST OPERATOR
strip -o "$work/$name/tollgate" "$program"
program=$work/$name/tollgate
NOTICES=$(third_party_notices "$program")
export NOTICES
packaging/deb.sh "$program" "$out"
packaging/rpm.sh "$program" "$out"
packaging/image.sh "$program" "$out"

# The built-in rules as an artefact of a registry, in an image layout: tools copy it to where `tollgate artifact` finds it.
rules_tag=$(echo "$version" | tr + _)
(
    cd rules
    cat default.yaml command_and_control.yaml credential_access.yaml defense_evasion.yaml execution.yaml exfiltration.yaml \
        impact.yaml persistence.yaml counted.yaml more.yaml
) >"$work/tollgate_rules.yaml"
"$(absolute "$program")" artifact push "localhost/tollgate-rules:$rules_tag" "$work/tollgate_rules.yaml" \
    --artifact-version "$version" --layout "$work/rules" >/dev/null
tar -C "$work/rules" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - . \
    >"$work/rules.tar"
install -m 644 "$work/rules.tar" "$out/tollgate-$version-rules.tar"

install -m 644 LICENSE CHANGELOG.md README.md "$work/$name"
install -m 644 "$NOTICES" "$work/$name/THIRD-PARTY-NOTICES"
install -m 644 packaging/config.yaml packaging/logrotate packaging/sysusers.conf packaging/tollgate-watch.service \
    packaging/tollgate-serve.service packaging/hand-over.sh "$work/$name/packaging"
install -m 755 packaging/install.sh "$work/$name/packaging"
packed "$name"

out=$(absolute "$out")
xtask sbom "$(absolute "$program")" "$out"/tollgate_*.deb "$out"/tollgate-*.rpm "$out/$name.tar.gz" "$out/$name-debug.tar.gz" "$out"/tollgate-*-image.tar
install -m 644 "$NOTICES" "$out/THIRD-PARTY-NOTICES"
chmod 644 "$out"/tollgate[-_]*.cdx.json
cd "$out"
sha256sum -- THIRD-PARTY-NOTICES tollgate_*.deb tollgate-*.rpm "$name.tar.gz" "$name-debug.tar.gz" tollgate-*-image.tar tollgate-*-rules.tar tollgate[-_]*.cdx.json >"$work/SHA256SUMS"
install -m 644 "$work/SHA256SUMS" SHA256SUMS
