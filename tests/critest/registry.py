#!/usr/bin/python3
"""An image registry on the loopback interface: every name that is asked for is an image made of one folder.

registry.py PORT FOLDER READY. Creates the file READY when it listens. A name decides the user and the command of its
image. Names that differ give images that differ, except tags of `test-image-tags`, which are names of one image.
"""

import gzip
import hashlib
import http.server
import io
import json
import os
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
USERS = {
    "test-image-user-uid": "1002",
    "test-image-user-username": "www-data",
    "test-image-user-uid-group": "1003:1004",
    "test-image-user-username-group": "www-data:1004",
    "test-image-predefined-group": "1000",
}
COMMANDS = {
    "nginx": ["/bin/nginx", "80", "nginx", "master process"],
    "httpd": ["/bin/nginx", "80", "httpd"],
    "hostnet-nginx-amd64": ["/bin/nginx", "12003"],
    "hostnet-nginx-arm64": ["/bin/nginx", "12003"],
    "nonewprivs": ["/bin/nonewprivs"],
    "pause": ["/bin/tail", "-f", "/dev/null"],
}

blobs = {}
layer = None


def add(data, kind):
    """Keeps a blob. Returns its descriptor."""
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    blobs[digest] = (data, kind)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def read_layer(folder):
    """Packs a folder, owned by root. Returns the descriptor and the digest of the unpacked archive."""

    def owned(member):
        member.uid = member.gid = 0
        return member

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in sorted(os.listdir(folder)):
            tar.add(os.path.join(folder, name), name, filter=owned)
    plain = archive.getvalue()
    return add(gzip.compress(plain, 1, mtime=0), LAYER), "sha256:" + hashlib.sha256(plain).hexdigest()


def manifest(name, tag):
    """Makes the image of a name. Returns the digest of its manifest."""
    base = name.rsplit("/", 1)[-1]
    same = base in ("test-image-tags", "pause")
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {
            "Env": ["PATH=/bin"],
            "User": USERS.get(base, ""),
            "Cmd": COMMANDS.get(base, ["/bin/sh"]),
            "Labels": {"name": base if same else f"{name}:{tag}"},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer[1]]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add(json.dumps(config).encode(), CONFIG),
        "layers": [layer[0]],
    }
    return add(json.dumps(document).encode(), MANIFEST)["digest"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.split("?")[0]
        digest = None
        if path == "/v2/":
            return self.answer(200, b"{}", "application/json")
        for part in ("/manifests/", "/blobs/"):
            if part in path:
                name, digest = path.removeprefix("/v2/").split(part)
                if not digest.startswith("sha256:"):
                    digest = manifest(name, digest)
        if digest not in blobs:
            return self.answer(404, b"{}", "application/json")
        data, kind = blobs[digest]
        self.answer(200, data, kind, digest)

    do_HEAD = do_GET

    def answer(self, status, data, kind, digest=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


layer = read_layer(sys.argv[2])
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
# From here on connections are accepted.
open(sys.argv[3], "w").close()
server.serve_forever()
