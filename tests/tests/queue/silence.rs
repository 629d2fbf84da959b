//! A way to PostgreSQL on which everything can fall silent: connections are taken, and nothing is said.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// A socket that leads to the one of a server.
pub(crate) struct Way {
    is_silent: Arc<AtomicBool>,
    url: String,
}

impl Way {
    /// Makes a way to the database with this URL, whose host is the folder of a socket.
    pub(crate) fn to(url: &str, folder: &Path) -> Self {
        let (begin, rest) = url.split_once('@').expect("a user");
        let (host, rest) = rest.split_once(':').expect("a port");
        let (port, name) = rest.split_once('/').expect("a database");
        let socket = format!(".s.PGSQL.{port}");
        let server = PathBuf::from(host.replace("%2F", "/")).join(&socket);
        let listener = UnixListener::bind(folder.join(&socket)).expect("our folder");
        let is_silent = Arc::new(AtomicBool::new(false));
        let silence = Arc::clone(&is_silent);
        spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, silence) = (server.clone(), Arc::clone(&silence));
                spawn(move || lead(client, &server, &silence));
            }
        });
        let folder = folder.display().to_string().replace('/', "%2F");
        let url = format!("{begin}@{folder}:{port}/{name}");
        Self { is_silent, url }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn fall_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::SeqCst);
    }
}

fn wait(silence: &AtomicBool) {
    while silence.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(10));
    }
}

fn lead(client: UnixStream, server: &Path, silence: &Arc<AtomicBool>) {
    wait(silence);
    let Ok(server) = UnixStream::connect(server) else {
        return;
    };
    let both = (client.try_clone(), server.try_clone());
    let (Ok(from), Ok(to)) = both else { return };
    let back = Arc::clone(silence);
    spawn(move || copy(from, to, &back));
    copy(server, client, silence);
}

/// Copies until one of both ends.
fn copy(mut from: UnixStream, mut to: UnixStream, silence: &AtomicBool) {
    let mut bytes = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        wait(silence);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // The other direction ends with it.
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
