//! Clients of a measured server. The client starts the server's command line, whatever wraps it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::background_command::{FAREWELL, start, wait};
use crate::execute::signal_group;
use crate::host::is_installed;
use crate::{Error, Stop};

/// A server that has a client here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// redis-server, asked by redis-benchmark.
    Redis,
    /// nginx, asked by ab.
    Nginx,
    /// apache2, asked by ab.
    Apache,
}

/// Requests to a server.
#[derive(Clone, Debug)]
pub struct Requests {
    /// The server.
    pub server: Server,
    /// Command of Redis, or path of a page.
    pub ask: String,
    /// Number of clients at the same time.
    pub clients: u32,
    /// Number of requests of all clients.
    pub requests: u32,
}

/// Time limit for the server's first answer; some subjects are slow to start.
const PATIENCE: Duration = Duration::from_secs(30);

impl Server {
    /// Returns the name, as `bench client` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Nginx => "nginx",
            Self::Apache => "apache",
        }
    }

    /// Returns the programs that have to be installed.
    pub(crate) fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Redis => &["redis-server", "redis-benchmark"],
            Self::Nginx => &["nginx", "ab"],
            Self::Apache => &["apache2", "ab"],
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        self.needs().iter().all(|program| is_installed(program))
    }

    /// Returns the command line of the server in the foreground. [`run`] sets PORT and FOLDER, and writes the
    /// configuration there.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Redis => {
                r#"sh -c 'exec redis-server --port $PORT --bind 127.0.0.1 --save "" --dir "$FOLDER" --daemonize no --maxclients 2000'"#
            }
            Self::Nginx => r#"sh -c 'exec nginx -p "$FOLDER" -c "$FOLDER/nginx.conf"'"#,
            Self::Apache => {
                r#"sh -c 'exec apache2 -d "$FOLDER" -f "$FOLDER/apache.conf" -DFOREGROUND'"#
            }
        }
    }

    fn configuration(self, folder: &Path, port: u16) -> Option<(&'static str, String)> {
        let folder = folder.display();
        match self {
            Self::Redis => None,
            Self::Nginx => Some((
                "nginx.conf",
                format!(
                    "daemon off;\nworker_processes 2;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
                     events {{ worker_connections 2048; }}\nhttp {{\n  access_log off;\n  \
                     client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n  \
                     fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n  \
                     scgi_temp_path {folder}/scgi;\n  \
                     server {{ listen 127.0.0.1:{port} backlog=2048; root {folder}/www; }}\n}}\n"
                ),
            )),
            Self::Apache => Some((
                "apache.conf",
                format!(
                    "ServerName localhost\nListen 127.0.0.1:{port}\nPidFile {folder}/pid\nErrorLog {folder}/error.log\n\
                     User www-data\nGroup www-data\nMutex file:{folder}\n\
                     LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
                     LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
                     LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so\n\
                     MaxRequestWorkers 1000\nServerLimit 40\nThreadsPerChild 25\nListenBacklog 2048\n\
                     DocumentRoot {folder}/www\n<Directory {folder}/www>\n  Require all granted\n</Directory>\n"
                ),
            )),
        }
    }
}

impl Requests {
    /// Returns the arguments of `bench client`.
    pub(crate) fn arguments(&self) -> String {
        format!(
            "{} --ask {} --clients {} --requests {}",
            self.server.name(),
            self.ask,
            self.clients,
            self.requests
        )
    }
}

/// Starts the server's command line, sends requests, and ends the server. Returns the line of JSON that the
/// runner reads.
///
/// # Errors
///
/// If the server does not answer, a request fails, or the client's output cannot be parsed.
pub(crate) fn run(requests: &Requests, server: &[String]) -> Result<String, Error> {
    let stop = Stop::on_signals()?;
    let folder = crate::scratch()?;
    let port = free_port()?;
    prepare(requests.server, folder.path(), port)?;
    let said = folder.path().join("said");
    let output = fs::File::create(&said).map_err(Error::file("create", &said))?;
    let again = output.try_clone().map_err(Error::file("create", &said))?;
    let mut process = start(
        Command::new(&server[0])
            .args(&server[1..])
            .env("PORT", port.to_string())
            .env("FOLDER", folder.path())
            .stdout(output)
            .stderr(again)
            .process_group(0),
        &server[0],
    )?;
    let asked = wait_for_answer(port, &stop, &said).and_then(|()| ask(requests, port));
    let ended = process
        .try_wait()
        .map_err(Error::supervise("wait for", &server[0]))?;
    // The server may have ended already, which the check above reports.
    let _ = signal_group(&process, Signal::TERM);
    wait(&Stop::new()?, &mut process, FAREWELL)?;
    if let Some(status) = ended {
        let said = fs::read_to_string(&said).map_err(Error::file("read", &said))?;
        let reason = format!("the server exited early: {status}: {}", said.trim());
        return Err(Error::Stage { reason });
    }
    asked
}

fn free_port() -> Result<u16, Error> {
    let stage = |error: std::io::Error| Error::Stage {
        reason: format!("no port of the loopback address is free: {error}"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").map_err(stage)?;
    Ok(listener.local_addr().map_err(stage)?.port())
}

fn prepare(server: Server, folder: &Path, port: u16) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let www = folder.join("www");
    fs::create_dir(&www).map_err(Error::file("make the folder", &www))?;
    let page = www.join("index.html");
    fs::write(&page, "tollgate\n".repeat(100)).map_err(Error::file("write", &page))?;
    // The server drops root and reads the page as another user.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(Error::file("open to others", folder))?;
    if let Some((name, text)) = server.configuration(folder, port) {
        let path = folder.join(name);
        fs::write(&path, text).map_err(Error::file("write", &path))?;
    }
    Ok(())
}

fn wait_for_answer(port: u16, stop: &Stop, said: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline || stop.is_requested() {
            let said = fs::read_to_string(said).map_err(Error::file("read", said))?;
            let reason = format!("the server does not answer: {}", said.trim());
            return Err(Error::Stage { reason });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn ask(requests: &Requests, port: u16) -> Result<String, Error> {
    let (clients, count) = (requests.clients.to_string(), requests.requests.to_string());
    let (program, arguments) = match requests.server {
        Server::Redis => (
            "redis-benchmark",
            vec![
                "-h".to_owned(),
                "127.0.0.1".to_owned(),
                "-p".to_owned(),
                port.to_string(),
                "-t".to_owned(),
                requests.ask.clone(),
                "-c".to_owned(),
                clients,
                "-n".to_owned(),
                count,
                "--csv".to_owned(),
            ],
        ),
        Server::Nginx | Server::Apache => (
            "ab",
            vec![
                "-q".to_owned(),
                "-n".to_owned(),
                count,
                "-c".to_owned(),
                clients,
                format!("http://127.0.0.1:{port}{}", requests.ask),
            ],
        ),
    };
    let output = Command::new(program)
        .args(&arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: program.to_owned(),
            line: arguments.join(" "),
            source,
        })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = match requests.server {
        Server::Redis => redis_rate(&said),
        Server::Nginx | Server::Apache => ab_rate(&said, requests.requests),
    };
    let rate = rate
        .filter(|rate| output.status.success() && *rate > 0.0)
        .ok_or_else(|| Error::Stage {
            reason: format!(
                "{program} reported failures or no result: {said}{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        })?;
    let elapsed = f64::from(requests.requests) / rate * 1e9;
    Ok(format!(
        "{{\"operations\":{},\"elapsed_ns\":{elapsed:.0}}}\n",
        requests.requests
    ))
}

/// Parses requests per second: the second cell of the last line.
fn redis_rate(csv: &str) -> Option<f64> {
    let line = csv
        .lines()
        .rfind(|line| line.starts_with('"') && !line.starts_with("\"test\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// Parses requests per second. `None` if not all requests were answered.
fn ab_rate(said: &str, requests: u32) -> Option<f64> {
    let after = |key: &str| -> Option<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let complete = after("Complete requests:")? == f64::from(requests);
    let none = |key| after(key).unwrap_or(0.0) == 0.0;
    (complete && none("Failed requests:") && none("Non-2xx responses:"))
        .then(|| after("Requests per second:"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pasted from redis-benchmark 7.0.
    #[test]
    fn rates_of_redis_benchmark_are_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\"\n\"GET\",\"60606.06\",\"0.412\",\"0.104\"\n";
        assert_eq!(redis_rate(csv), Some(60606.06));
        assert_eq!(redis_rate("Could not connect to Redis"), None);
    }

    /// Pasted from ab 2.3.
    #[test]
    fn rates_of_ab_count_only_without_failures() {
        let said = "Concurrency Level:      4\nTime taken for tests:   0.113 seconds\nComplete requests:      1000\n\
                    Failed requests:        0\nRequests per second:    8849.71 [#/sec] (mean)\n";
        assert_eq!(ab_rate(said, 1000), Some(8849.71));
        assert_eq!(ab_rate(said, 2000), None);
        assert_eq!(
            ab_rate(
                &said.replace("requests:        0", "requests:        3"),
                1000
            ),
            None
        );
        assert_eq!(
            ab_rate(&(said.to_owned() + "Non-2xx responses:      1000\n"), 1000),
            None
        );
    }
}
