//! Servers as Debian packages them: nginx, redis, PostgreSQL, sshd.

use std::path::Path;

use crate::lab::{Client, END_FILE, Server, check};

const NGINX: &str = r"
daemon off; pid %W/made/nginx.pid; error_log %W/made/error.log; user www-data;
events { worker_connections 64; }
http {
  access_log %W/made/access.log; client_body_temp_path %W/made/body; proxy_temp_path %W/made/p; fastcgi_temp_path %W/made/f;
  uwsgi_temp_path %W/made/u; scgi_temp_path %W/made/s;
  server { listen 127.0.0.1:%P; root %W/data; location /all/ { alias /; } }
}
";

#[test]
fn nginx_starts_again_and_serves_other_files_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/sbin/nginx").exists() {
        e2e::skip!("needs nginx", || Ok("there is none".to_owned()));
    }
    let server = Server {
        build: &[],
        command: &["/bin/sh", "%W/run.sh"],
        files: &[
            ("nginx.conf", NGINX),
            (
                "run.sh",
                "/usr/sbin/nginx -c %W/nginx.conf & \
                        while [ ! -e %W/made/end ]; do sleep 0.1; done; kill -QUIT $!; wait $!; rm %W/made/end\n",
            ),
            ("data/a.html", "done a"),
            ("data/b.html", "done b"),
            ("data/c.html", "done c"),
        ],
        learnt: &[
            "GET /a.html HTTP/1.0\r\n\r\n",
            "GET /b.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        ],
        other: &[
            "GET /c.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "GET /a.html?done=%57 HTTP/1.0\r\nUser-Agent: another-done\r\n\r\n",
        ],
        attacks: &[
            "GET /all/etc/shadow HTTP/1.0\r\n\r\n",
            "GET /all/etc/hostname HTTP/1.0\r\n\r\n",
        ],
        end: END_FILE,
        won: "200 OK",
        reads: &["/etc/passwd"],
        done: "done",
        refused: "403",
        client: Client::Connection,
    };
    check(&server);
}

#[test]
fn redis_keeps_other_data_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/bin/redis-server").exists() {
        e2e::skip!("needs redis", || Ok("there is none".to_owned()));
    }
    check(&Server {
        build: &[],
        command: &[
            "/usr/bin/redis-server",
            "--port",
            "%P",
            "--bind",
            "127.0.0.1",
            "--dir",
            "%W/made",
            "--enable-protected-configs",
            "yes",
            "--appendonly",
            "yes",
        ],
        files: &[],
        learnt: &[
            "SET a 1\r\nSAVE\r\nQUIT\r\n",
            "GET a\r\nBGSAVE\r\nINFO\r\nQUIT\r\n",
        ],
        other: &[
            "SET b 2\r\nAPPEND b 3\r\nSAVE\r\nQUIT\r\n",
            "LPUSH l 1 2 3\r\nBGREWRITEAOF\r\nQUIT\r\n",
        ],
        attacks: &[
            "CONFIG SET dir /etc\r\nSAVE\r\nQUIT\r\n",
            "CONFIG SET dir /usr\r\nSAVE\r\nQUIT\r\n",
        ],
        end: "SHUTDOWN NOSAVE\r\n",
        won: "+OK\r\n+OK\r\n+OK",
        reads: &[],
        done: "+OK",
        refused: "-ERR",
        client: Client::Connection,
    });
}

/// Run by the user postgres, who makes the database first; `run.sh` ends it as nginx is ended.
const POSTGRES: &str = "\
bin=$(echo /usr/lib/postgresql/*/bin)
/usr/bin/setpriv --reuid postgres --regid postgres --init-groups $bin/postgres -D %W/made/base -k %W/made -c listen_addresses=127.0.0.1 -p %P -c fsync=off &
while [ ! -e %W/made/end ]; do sleep 0.1; done
kill -INT $!; wait $!; rm %W/made/end
";

#[test]
fn postgresql_answers_other_queries_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/lib/postgresql").exists() {
        e2e::skip!("needs postgresql", || Ok("there is none".to_owned()));
    }
    check(&Server {
        build: &["/bin/sh", "%W/build.sh"],
        command: &["/bin/sh", "%W/run.sh"],
        files: &[
            (
                "build.sh",
                "chmod 755 %W && chown postgres %W/made && exec setpriv --reuid postgres --regid postgres --init-groups \\
                 $(echo /usr/lib/postgresql/*/bin)/initdb -A trust -D %W/made/base\n",
            ),
            ("run.sh", POSTGRES),
        ],
        learnt: &[
            "create table one (a int primary key, b text); insert into one select i, 'text' from generate_series(1, 10000) i; \
             select count(*) from one; checkpoint; select 'done';\n",
            "begin; update one set b = b || a; rollback; vacuum one; analyze; select 'done';\n",
            "set work_mem = '64kB'; select count(*) from (select a from one order by b || b) x; select 'done';\n",
        ],
        other: &[
            "create table two as select a, md5(b) c from one; create index on two (c); \
             select count(*) from two join one using (a) where c like 'a%'; checkpoint; select 'done';\n",
            "set work_mem = '64kB'; select count(*) from (select b from one order by b, a desc) x; drop table two; select 'done';\n",
        ],
        attacks: &[
            "select 'wo' || 'n' from (select pg_read_file('/etc/hostname') x) y where length(x) > 0;\n",
            "create table p (a text); copy p from program '/usr/bin/id'; select 'wo' || 'n' from p;\n",
            "copy (select 1) to '/tmp/tollgate-new'; select 'wo' || 'n' where pg_stat_file('/tmp/tollgate-new') is not null;\n",
            "select 'wo' || 'n' from pg_ls_dir('/root/.ssh') limit 1;\n",
        ],
        end: END_FILE,
        won: "won",
        reads: &["/etc/passwd"],
        done: "done",
        refused: "ERROR",
        client: Client::Program(&[
            "/usr/bin/psql",
            "-h",
            "127.0.0.1",
            "-p",
            "%P",
            "-U",
            "postgres",
            "-At",
            "-d",
            "postgres",
        ]),
    });
}

const SSHD: &str = r"
Port %P
ListenAddress 127.0.0.1
HostKey %W/data/host
AuthorizedKeysFile %W/data/keys
PidFile none
PasswordAuthentication no
StrictModes no
UsePAM yes
";

const SSH: [&str; 15] = [
    "/usr/bin/ssh",
    "-F",
    "none",
    "-i",
    "%W/data/key",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
    "-p",
    "%P",
    "postgres@127.0.0.1",
    "/bin/sh",
];

/// A session is a process of its own, with a shell that reads the request, of a user that has one and no files at home
/// that it reads.
#[test]
fn sshd_runs_other_sessions_and_attacks_in_them_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/sbin/sshd").exists() || !Path::new("/usr/lib/postgresql").exists() {
        e2e::skip!("needs sshd and the user of postgresql", || Ok(
            "one is missing".to_owned()
        ));
    }
    check(&Server {
        build: &["/bin/sh", "%W/build.sh"],
        command: &["/bin/sh", "%W/run.sh"],
        files: &[
            (
                "build.sh",
                "mkdir -p /run/sshd && cd %W/data && ssh-keygen -q -t ed25519 -N '' -f host && \
                 ssh-keygen -q -t ed25519 -N '' -f key && cp key.pub keys && chmod 600 key && \
                 chmod 755 %W && chown postgres %W/made\n",
            ),
            ("sshd_config", SSHD),
            (
                "run.sh",
                "/usr/sbin/sshd -D -e -f %W/sshd_config & \
                        while [ ! -e %W/made/end ]; do sleep 0.1; done; kill $!; wait $!; rm %W/made/end\n",
            ),
            ("data/a.txt", "done a\n"),
            ("data/b.txt", "done b\n"),
            ("data/c.txt", "done c\n"),
        ],
        learnt: &[
            "cat %W/data/a.txt\n",
            "cat %W/data/b.txt; echo text > %W/made/one\n",
        ],
        other: &[
            "cat %W/data/c.txt; echo other > %W/made/two\n",
            "cat %W/data/a.txt %W/data/c.txt\n",
        ],
        attacks: &[
            "/usr/bin/id && echo won\n",
            "cat /proc/1/environ && echo won\n",
            "cat /etc/hostname && echo won\n",
            "echo x > /etc/tollgate-new && echo won\n",
            "echo x > /tmp/tollgate-new && echo won\n",
            "cat /etc/ssh/sshd_config && echo won\n",
        ],
        end: END_FILE,
        won: "won",
        reads: &["/etc/passwd", "/etc/shadow"],
        done: "done",
        refused: "denied",
        client: Client::Program(&SSH),
    });
}
