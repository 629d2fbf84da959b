set -eu

# make_image NAME FOLDER CONFIG: makes the archive of an image of one layer, as `docker save` does.
make_image() {
    mkdir "$2.archive"
    tar -C "$2" -cf "$2.archive/layer.tar" .
    digest=$(sha256sum "$2.archive/layer.tar" | cut -d' ' -f1)
    cat > "$2.archive/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": $3,
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
    cat > "$2.archive/manifest.json" <<END
[{"Config": "config.json", "RepoTags": ["$1"], "Layers": ["layer.tar"]}]
END
    tar -C "$2.archive" -cf "$2.tar" layer.tar config.json manifest.json
    rm -r "$2.archive"
}

# Makes `pod.tar`, an image of nothing but busybox, which sleeps: of sandboxes, too.
busybox_image() {
    mkdir -p pod/bin pod/tmp pod/proc
    cp "$(command -v busybox)" pod/bin/busybox
    make_image localhost/pod:1 pod '{"Cmd": ["/bin/busybox", "sleep", "1000"]}'
}

# Makes `tollgate.tar`, an image of the programs under test with the libraries that they load.
tollgate_image() {
    mkdir -p tollgate/usr/bin tollgate/tmp
    for program in "$TOLLGATE_PROGRAM" "$(dirname "$TOLLGATE_PROGRAM")/tollgate-operator"; do
        strip -o "tollgate/usr/bin/$(basename "$program")" "$program"
        for library in $(ldd "$program" | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p'); do
            install -D -m 755 "$(readlink -f "$library")" "tollgate$library"
        done
    done
    make_image registry.example/tollgate:1 tollgate '{"Env": ["PATH=/usr/bin"]}'
}

# import NAME.tar...: imports images, when containerd answers.
import() {
    for try in $(seq 300); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
    for archive; do ctr -n k8s.io images import --local "$archive" >> import.out; done
}
