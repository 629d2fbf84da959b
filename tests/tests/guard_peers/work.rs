//! Ways out of a box, and ordinary work in it.

/// Ways out: class, name in `ways.py`, what a report has to name (`~` is the home).
pub(crate) const WAYS: [(&str, &str, &str); 30] = [
    ("read", "read", "~/.ssh/id"),
    ("read", "read_link", "~/.ssh/id"),
    ("read", "read_root", "~/.ssh/id"),
    ("read", "read_relative", "~/.ssh/id"),
    ("read", "read_dirfd", "~/.ssh/id"),
    ("read", "read_openat2", "~/.ssh/id"),
    ("read", "read_hard_link", "~/.ssh/id"),
    ("write", "write", "~/.bashrc"),
    ("write", "write_link", "~/.bashrc"),
    ("write", "truncate", "~/.bashrc"),
    ("write", "create", "~/new"),
    ("write", "remove", "~/.bashrc"),
    ("write", "rename_over", "mine"),
    ("write", "make_folder", "~/folder"),
    ("exec", "exec", "~/.ssh/tool"),
    ("exec", "exec_link", "~/.ssh/tool"),
    ("exec", "exec_dirfd", "~/.ssh/tool"),
    ("exec", "exec_written", "project/copy"),
    ("exec", "exec_memory", "memfd_create"),
    ("connect", "connect", "192.0.2.1:80"),
    ("connect", "connect_ipv6", "[2001:db8::1]:80"),
    ("connect", "connect_client", "192.0.2.1:80"),
    ("connect", "fast_open", "sendto"),
    ("connect", "udp_send", "AF_INET"),
    ("connect", "udp_connect", "AF_INET"),
    ("unix", "unix", "~/out.sock"),
    ("unix", "unix_link", "~/out.sock"),
    ("unix", "unix_root", "~/out.sock"),
    ("unix", "unix_datagram", "AF_UNIX"),
    ("unix", "abstract", "tollgate-peers-"),
];

/// Ways that the kernel's interfaces under some boxes do not cover.
pub(crate) const UNCOVERED: [(&str, &str); 6] = [
    ("stat", "size of a denied file"),
    ("mode", "mode of a file of the user outside"),
    ("times", "times of a file of the user outside"),
    ("signal", "signal to another process of the user"),
    ("environment", "environment of another process of the user"),
    ("list", "list another process in /proc"),
];

/// Ordinary work: name, programs and Python modules that it needs, and a script.
pub(crate) const JOBS: [(&str, &str, &str); 20] = [
    (
        "git commit",
        "git",
        "git init -q r; cd r; git config user.email a@b; git config user.name n; echo x > x; git add x; git commit -qm x; git log --oneline; git status",
    ),
    (
        "git clone and push",
        "git",
        "git init -q --bare b; git clone -q b r 2>&1; cd r; echo x > x; git add x; git -c user.name=n -c user.email=a@b commit -qm x; git push -q origin HEAD",
    ),
    (
        "make",
        "make",
        "printf 'all: x\\n\\techo made\\nx:\\n\\techo a > x\\n' > Makefile; make; make",
    ),
    (
        "gcc",
        "gcc",
        "echo 'int main(){return 0;}' > a.c; gcc -O2 a.c -o a; ./a",
    ),
    (
        "cmake",
        "cmake gcc",
        "echo 'int main(){return 0;}' > a.c; printf 'cmake_minimum_required(VERSION 3.10)\\nproject(a C)\\nadd_executable(a a.c)\\n' > CMakeLists.txt; cmake -B b . > /dev/null; cmake --build b; b/a",
    ),
    (
        "cargo build",
        "",
        "cargo init -q --vcs none --name a .; cargo build -q --offline; target/debug/a",
    ),
    (
        "cargo test",
        "",
        "cargo init -q --vcs none --lib --name a .; cargo test -q --offline",
    ),
    (
        "npm run",
        "npm",
        "echo '{\"name\":\"a\",\"version\":\"1.0.0\",\"scripts\":{\"build\":\"node -p 1\"}}' > package.json; npm run build",
    ),
    (
        "npm install of a folder",
        "npm",
        "mkdir d; echo '{\"name\":\"d\",\"version\":\"1.0.0\"}' > d/package.json; echo '{\"name\":\"a\",\"version\":\"1.0.0\"}' > package.json; npm install --offline --no-audit --no-fund ./d; ls node_modules/d/package.json",
    ),
    (
        "npm install from a registry",
        "npm",
        "echo '{\"name\":\"a\",\"version\":\"1.0.0\"}' > package.json; npm install --registry http://registry.test:8000 --no-audit --no-fund tiny; node -e 'require(\"assert\")(require(\"tiny\") == 42)'",
    ),
    (
        "pip install of a folder",
        "python:pip python:setuptools",
        "mkdir d; echo 'from setuptools import setup; setup(name=\"d\", version=\"1\", py_modules=[\"d\"])' > d/setup.py; echo > d/d.py; /usr/bin/python3 -m pip install -q --no-index --no-build-isolation --no-deps --target t ./d; ls t/d.py",
    ),
    (
        "pip install from an index",
        "python:pip",
        "/usr/bin/python3 -m pip install -q --index-url http://registry.test:8000/simple --trusted-host registry.test --disable-pip-version-check --target t tiny; PYTHONPATH=t /usr/bin/python3 -c 'import tiny; assert tiny.VALUE == 42'",
    ),
    (
        "venv",
        "python:venv",
        "/usr/bin/python3 -m venv --without-pip v; v/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'",
    ),
    (
        "pytest",
        "python:pytest",
        "printf 'import tempfile, pytest\\ndef test_a(tmp_path):\\n    (tmp_path / \"x\").write_text(\"x\")\\n    tempfile.TemporaryFile()\\n' > test_a.py; /usr/bin/python3 -m pytest -q test_a.py",
    ),
    (
        "go build",
        "go",
        "printf 'module a\\ngo 1.19\\n' > go.mod; printf 'package main\\nfunc main() { println(1) }\\n' > a.go; go build -o a .; ./a",
    ),
    (
        "go test",
        "go",
        "printf 'module a\\ngo 1.19\\n' > go.mod; printf 'package a\\nimport \"testing\"\\nfunc TestA(t *testing.T) { t.TempDir() }\\n' > a_test.go; go test ./...",
    ),
    (
        "name lookup by datagrams",
        "node",
        "node -e 'new (require(\"dns\").Resolver)().resolve4(\"registry.test\", (e, a) => { if (e) throw e; if (a[0] != \"192.0.2.10\") process.exit(1) })'",
    ),
    (
        "server and client",
        "node",
        "node -e 'const h=require(\"http\"); const s=h.createServer((q,r)=>r.end(\"ok\")).listen(0,\"127.0.0.1\",()=>h.get({port:s.address().port,host:\"127.0.0.1\"},r=>{r.resume();r.on(\"end\",()=>s.close())}))'",
    ),
    (
        "processes and sockets",
        "",
        "/usr/bin/python3 -c 'import multiprocessing as m, socket; q=m.get_context(\"forkserver\").Pool(2); print(q.map(abs, [-1, 2])); q.close(); q.join(); socket.socketpair()'",
    ),
    (
        "shell and files",
        "tar perl",
        "mkdir t; echo x > t/x; tar czf t.tgz t; tar xzf t.tgz; perl -ne print t/x; ls / > /dev/null; find . -name x | sort; mktemp | xargs rm; echo x | tee out; cat /etc/hostname; mv t u; ln -s u v; rm -r u",
    ),
];

/// Builds whose time is measured: name, what is made once, what is removed before each run, and the build.
pub(crate) const BUILDS: [(&str, &str, &str); 2] = [
    (
        "make -j2",
        "for i in $(seq 8); do { echo '#include <stdio.h>'; echo '#include <stdlib.h>'; echo '#include <string.h>'; for j in $(seq 20); do echo \"int f${i}_$j(int x) { char b[64]; snprintf(b, sizeof b, \\\"%d\\\", x * $j); return (int)strlen(b) + atoi(b); }\"; done; } > f$i.c; done; echo 'int main(void) { return 0; }' > main.c; printf 'SRC=$(wildcard *.c)\\nOBJ=$(SRC:.c=.o)\\nall: app\\napp: $(OBJ)\\n\\t$(CC) -o $@ $^\\n%%.o: %%.c\\n\\t$(CC) -O2 -c -o $@ $<\\n' > Makefile",
        "rm -f *.o app; exec make -s -j2",
    ),
    (
        "cargo build",
        "cargo init -q --vcs none --lib --name a .; mkdir -p src; for i in $(seq 8); do echo \"pub mod m$i;\"; done > src/lib.rs; for i in $(seq 8); do for j in $(seq 20); do echo \"pub fn f$j(x: &[u64]) -> Vec<String> { let mut v: Vec<_> = x.iter().map(|y| format!(\\\"{}-{}\\\", y * $j, $i)).collect(); v.sort(); v.dedup(); v }\"; done > src/m$i.rs; done",
        "rm -rf target; exec cargo build -q --offline",
    ),
];
