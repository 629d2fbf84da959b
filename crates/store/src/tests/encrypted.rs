//! TLS to a real PostgreSQL server that takes nothing else, and to servers that lie.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, DnType, SanType, date_time_ymd};
use testing::postgres::Encryption;
use testing::{Authority, Issued};

use super::*;

/// Password of the user `by_password`.
const PASSWORD: &str = "a-password";

/// A server with TLS, and the files of its clients.
struct Encrypted {
    server: Server,
    folder: tempfile::TempDir,
}

/// Writes a file that its owner alone can read.
fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("our folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our file");
    path
}

/// Issues a certificate of a server for `db.example` and 127.0.0.1.
fn for_server(authority: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Issued {
    authority.issue(1, &[], |params| {
        let name = "db.example".try_into().expect("a name");
        let address = [127, 0, 0, 1].into();
        params.subject_alt_names = vec![SanType::DnsName(name), SanType::IpAddress(address)];
        change(params);
    })
}

/// Issues a certificate of a client that is this user.
fn for_client(authority: &Authority, user: &str) -> Issued {
    authority.issue(2, &[], |params| {
        params.distinguished_name.push(DnType::CommonName, user);
    })
}

impl Encrypted {
    fn start(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let (authority, clients) = (Authority::new(), Authority::new());
        let issued = for_server(&authority, change);
        let server = Server::encrypted(&Encryption {
            certificate: &issued.certificate.pem(),
            key: &issued.key.serialize_pem(),
            clients: &clients.pem,
            access: "hostssl all by_password 127.0.0.1/32 scram-sha-256\n\
                     hostssl all by_certificate 127.0.0.1/32 cert",
        });
        server.sql(&format!(
            "CREATE ROLE by_password SUPERUSER LOGIN PASSWORD '{PASSWORD}'"
        ));
        server.sql("CREATE ROLE by_certificate SUPERUSER LOGIN");
        write(&folder, "ca.pem", &authority.pem);
        write(&folder, "other.pem", &Authority::new().pem);
        for (name, issuer, user) in [
            ("right", &clients, "by_certificate"),
            ("nobody", &clients, "by_nobody"),
            ("foreign", &Authority::new(), "by_certificate"),
        ] {
            let issued = for_client(issuer, user);
            write(&folder, &format!("{name}.pem"), &issued.certificate.pem());
            write(&folder, &format!("{name}.key"), &issued.key.serialize_pem());
        }
        Self { server, folder }
    }

    /// Returns the server that the tests of this file share.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Encrypted>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start(|_| ()));
        *shared = Arc::downgrade(&server);
        server
    }

    /// Returns the URL of a new database, with these parameters, in which `{}` is the folder of the clients' files.
    fn url(&self, user: &str, host: &str, query: &str) -> String {
        let local = self.server.database();
        let name = local.rsplit('/').next().expect("a name");
        let query = query.replace("{}", &self.folder.path().display().to_string());
        format!(
            "postgres://{user}@{host}:{}/{name}?{query}",
            self.server.port()
        )
    }

    /// Opens the store over a connection to `db.example` or another host, which is the loopback.
    fn open(&self, host: &str, query: &str) -> Result<PostgresStore, StoreError> {
        let user = format!("by_password:{PASSWORD}");
        let query = format!("hostaddr=127.0.0.1&{query}");
        PostgresStore::open(&self.url(&user, host, &query))
    }

    fn open_by_certificate(&self, client: &str) -> Result<PostgresStore, StoreError> {
        let query = format!("sslrootcert={{}}/ca.pem{client}");
        PostgresStore::open(&self.url("by_certificate", "127.0.0.1", &query))
    }

    /// Returns how many connections of stores there are to a database, encrypted and not.
    fn connections(&self, store: &PostgresStore) -> String {
        store.tokens().expect("readable");
        self.server.sql(
            "SELECT DISTINCT ssl, version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
             WHERE application_name = 'tollgate'",
        )
    }
}

/// Returns the error and its causes, as the program prints them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        text = format!("{text}: {found}");
        cause = found.source();
    }
    text
}

fn refused(opened: Result<PostgresStore, StoreError>, why: &str) {
    let error = chain(&opened.expect_err("it is refused"));
    assert!(error.contains(why), "{error}");
    assert!(!error.contains(PASSWORD), "{error}");
}

#[test]
fn a_server_that_takes_tls_alone_is_reached_by_each_mode_that_has_it() {
    let server = Encrypted::shared();
    for (host, query) in [
        ("localhost", ""),
        ("127.0.0.1", "sslmode=prefer"),
        ("db.example", "sslmode=prefer&sslrootcert={}/ca.pem"),
        ("wrong.example", "sslmode=require"),
        ("wrong.example", "sslmode=require&sslrootcert={}/ca.pem"),
        ("wrong.example", "sslmode=verify-ca&sslrootcert={}/ca.pem"),
        ("db.example", "sslmode=verify-full&sslrootcert={}/ca.pem"),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={}/ca.pem"),
        ("db.example", "sslrootcert={}/ca.pem"),
    ] {
        let store = server.open(host, query).expect(query);
        assert_eq!(server.connections(&store), "t|TLSv1.3", "{host} {query}");
    }
    refused(server.open("localhost", "sslmode=disable"), "no encryption");
}

#[test]
fn a_certificate_of_another_authority_or_for_another_name_is_refused() {
    let server = Encrypted::shared();
    let unknown = "no authority that is trusted";
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert={{}}/other.pem");
        refused(server.open("db.example", &query), unknown);
    }
    // What the system trusts has not issued it. This is the default of a host elsewhere, and never plain text.
    refused(server.open("db.example", ""), unknown);
    refused(server.open("db.example", "sslrootcert=system"), unknown);
    let query = "sslmode=verify-full&sslrootcert={}/ca.pem";
    refused(server.open("localhost", query), "not valid for name");
    refused(server.open("wrong.example", query), "not valid for name");
}

#[test]
fn an_expired_certificate_and_one_of_an_authority_are_refused() {
    let expired = Encrypted::start(|params| params.not_after = date_time_ymd(2020, 1, 1));
    for query in [
        "sslmode=verify-ca&sslrootcert={}/ca.pem",
        "sslmode=verify-full&sslrootcert={}/ca.pem",
    ] {
        refused(expired.open("db.example", query), "expired");
    }
    let authority = Encrypted::start(|params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    let query = "sslmode=verify-full&sslrootcert={}/ca.pem";
    refused(authority.open("db.example", query), "CA:TRUE");
}

#[test]
fn a_client_certificate_logs_in_its_user_and_nobody_else() {
    let server = Encrypted::shared();
    let store = server.open_by_certificate("&sslcert={}/right.pem&sslkey={}/right.key");
    let store = store.expect("it is let in");
    assert_eq!(server.connections(&store), "t|TLSv1.3");
    refused(
        server.open_by_certificate(""),
        "requires a valid client certificate",
    );
    refused(
        server.open_by_certificate("&sslcert={}/nobody.pem&sslkey={}/nobody.key"),
        "certificate authentication failed",
    );
    refused(
        server.open_by_certificate("&sslcert={}/foreign.pem&sslkey={}/foreign.key"),
        "by TLS",
    );
    refused(
        server.open_by_certificate("&sslcert={}/right.pem&sslkey={}/foreign.key"),
        "foreign.key",
    );
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let server = Encrypted::shared();
    write(&server.folder, "open.key", "x");
    let open = server.folder.path().join("open.key");
    fs::set_permissions(open, fs::Permissions::from_mode(0o644)).expect("our file");
    write(&server.folder, "empty.pem", "");
    for (query, why) in [
        (
            "&sslcert={}/right.pem&sslkey={}/open.key",
            "others can use the key",
        ),
        (
            "&sslcert={}/empty.pem&sslkey={}/right.key",
            "no PEM certificate",
        ),
        (
            "&sslcert={}/right.pem&sslkey={}/empty.pem",
            "no PEM private key",
        ),
        ("&sslcert={}/missing.pem&sslkey={}/right.key", "cannot read"),
    ] {
        refused(server.open_by_certificate(query), why);
    }
    refused(
        server.open("db.example", "sslrootcert={}/missing.pem"),
        "missing.pem",
    );
}

#[test]
fn a_password_is_bound_to_the_connection() {
    let server = Encrypted::shared();
    let query = "sslmode=require&channel_binding=require";
    let store = server.open("db.example", query).expect("it is let in");
    assert_eq!(server.connections(&store), "t|TLSv1.3");
}

#[test]
fn a_store_goes_on_by_tls_after_the_server_was_killed() {
    let server = Encrypted::start(|_| ());
    let query = "sslmode=verify-full&sslrootcert={}/ca.pem";
    let store = server.open("db.example", query).expect("it is let in");
    token(&store, Scope::Agents("web".to_owned()), 1, None);
    server.server.crash();
    // The first request may find that its connection has ended.
    let began = std::time::Instant::now();
    while store.create_token(second()).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "it stays away");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(store.tokens().expect("readable").len(), 2);
    assert_eq!(server.connections(&store), "t|TLSv1.3");
}

fn second() -> NewToken {
    NewToken {
        scope: Scope::Viewer,
        hash: [2; 32],
        expires_ns: None,
        actor: "root".to_owned(),
    }
}

/// Answers a client's question for TLS with `answer`, and returns everything that it sends after that.
fn lying(answer: &'static [u8]) -> (u16, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).expect("a socket");
        let mut question = [0; 8];
        stream.read_exact(&mut question).expect("a question");
        assert_eq!(question, [0, 0, 0, 8, 4, 210, 22, 47], "it asks for TLS");
        stream.write_all(answer).expect("it listens");
        let mut said = Vec::new();
        // A client that gives up may reset the connection.
        let _ = stream.read_to_end(&mut said);
        said
    });
    (port, served)
}

#[test]
fn whoever_says_that_there_is_no_tls_learns_neither_name_nor_password() {
    for query in ["", "&sslmode=verify-full", "&sslmode=require"] {
        let (port, served) = lying(b"N");
        let url = format!("postgres://u:{PASSWORD}@db.example:{port}/d?hostaddr=127.0.0.1{query}");
        refused(PostgresStore::open(&url), "does not offer it");
        assert_eq!(served.join().expect("no panic"), b"", "{query}");
    }
    // What is sent behind the answer, before the handshake, is not taken for the server's.
    let (port, served) = lying(b"SR\0\0\0\x08\0\0\0\0");
    let url = format!("postgres://u:{PASSWORD}@db.example:{port}/d?hostaddr=127.0.0.1");
    let error = chain(&PostgresStore::open(&url).expect_err("it is no TLS"));
    let said = served.join().expect("no panic");
    let has = |text: &str| said.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(!has(PASSWORD) && !has("user"), "{error}");
}
