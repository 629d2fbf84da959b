//! Servers as Debian packages them: nginx, redis.

use std::path::Path;

use crate::lab::{END_FILE, Server, check};

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
    });
}
