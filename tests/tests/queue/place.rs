//! Stores of a collector with a queue, and what is asked of it.

use std::path::Path;
use std::process::Command;

use e2e::collector::{Collector, output, request, token_on};
use e2e::until;
use serde_json::Value;
use testing::postgres::Server;

use super::agent::Fleet;

/// A store, and the words with which servers of it start.
pub(crate) struct Place {
    pub(crate) store: String,
    pub(crate) words: Vec<String>,
}

impl Place {
    pub(crate) fn new(store: String, queue: &str, more: &[&str]) -> Self {
        let words = ["--insecure", "--queue", queue];
        let words = words.iter().chain(more).map(|&word| word.to_owned());
        Self {
            store,
            words: words.collect(),
        }
    }

    pub(crate) fn file(folder: &Path, queue: &str, more: &[&str]) -> Self {
        let store = format!("sqlite:{}", folder.join("c.db").display());
        Self::new(store, queue, more)
    }

    pub(crate) fn serve(&self) -> Collector {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        Collector::start_on(&self.store, "127.0.0.1:0", &words)
    }

    /// Waits until the server takes batches, and enrols agents with these hosts.
    pub(crate) fn fleet(&self, collector: &Collector, hosts: &[&str]) -> Fleet {
        let token = token_on(&self.store, &["--agent-class", "web"]);
        let reader = token_on(&self.store, &["--role", "viewer"]);
        until("the server is ready", || is_ready(collector));
        Fleet::new(collector.address(), &token, reader, hosts)
    }
}

pub(crate) fn ask(collector: &Collector, path: &str, secret: &str) -> Option<(u16, Value)> {
    let head = format!("GET {path} HTTP/1.1");
    request(collector.address(), &head, secret, "")
}

pub(crate) fn is_ready(collector: &Collector) -> bool {
    ask(collector, "/readyz", "").is_some_and(|(status, _)| status == 200)
}

/// A PostgreSQL database that can be shut and opened.
pub(crate) struct Shut<'s>(&'s Server, String);

impl<'s> Shut<'s> {
    pub(crate) fn now(server: &'s Server, url: &str) -> Self {
        let name = url.rsplit('/').next().expect("a name").to_owned();
        server.sql(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
        server.sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        ));
        Self(server, name)
    }

    pub(crate) fn open(self) {
        let Self(server, name) = self;
        server.sql(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"));
    }
}

/// Runs SQL in a database.
pub(crate) fn psql(url: &str, sql: &str) {
    let mut psql = Command::new("psql");
    output(psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, url]));
}
