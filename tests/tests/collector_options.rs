//! Options of `tollgate serve` about servers elsewhere: a database by TLS, and an identity provider.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use e2e::collector::{Collector, request, token_on};
use e2e::{Scratch, program};
use testing::Authority;
use testing::postgres::{Encryption, Server};

/// Runs a verb about a store.
fn list(url: &str) -> Output {
    let words = ["serve", "token", "list", "--store", url];
    Command::new(program())
        .args(words)
        .output()
        .expect("it starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_wrong_url_of_a_database_is_refused_and_no_message_has_its_password() {
    for (query, why) in [
        ("sslmode=on", "`sslmode` has to be disable, prefer"),
        ("sslcert=c", "`sslcert` needs `sslkey`"),
        ("sslcrl=c", "sslcrl"),
        ("sslrootcert=/missing.pem", "cannot read /missing.pem"),
    ] {
        // Nothing listens there.
        let url = format!("postgres://u:secret@db.example:1/db?hostaddr=127.0.0.1&{query}");
        let refused = list(&url);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(
            said.contains("help: ") && !said.contains("secret"),
            "{said}"
        );
    }
}

#[test]
fn a_database_elsewhere_is_verified_and_less_is_warned_about() {
    let scratch = Scratch::new();
    let authority = Authority::new();
    let issued = authority.issue(1, &[], |params| {
        let name = "db.example".try_into().expect("a name");
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
    });
    let server = Server::encrypted(&Encryption {
        certificate: &issued.certificate.pem(),
        key: &issued.key.serialize_pem(),
        clients: &authority.pem,
        access: "hostssl all postgres 127.0.0.1/32 trust",
    });
    let file = scratch.path().join("ca.pem");
    std::fs::write(&file, &authority.pem).expect("our folder");
    let database = server.database();
    let database = database.rsplit('/').next().expect("a name");
    let url = |query: &str| {
        let port = server.port();
        format!("postgres://postgres@db.example:{port}/{database}?hostaddr=127.0.0.1{query}")
    };
    let verified = url(&format!("&sslrootcert={}", file.display()));
    let reader = token_on(&verified, &["--role", "viewer"]);
    let listed = list(&verified);
    assert!(
        listed.status.success() && listed.stderr.is_empty(),
        "{listed:?}"
    );
    let unverified = list(&url("&sslmode=require"));
    assert!(unverified.status.success(), "{unverified:?}");
    let warning = "warning: sslmode=require verifies no certificate";
    assert!(stderr(&unverified).contains(warning), "{unverified:?}");
    // The authorities of the system have not issued it.
    let refused = list(&url(""));
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no authority that is trusted issued the server's certificate")
            && said.contains("help: sslrootcert=FILE"),
        "{said}"
    );
    let collector = Collector::start_on(&verified, "127.0.0.1:0", &["--insecure"]);
    let answer = request(
        collector.address(),
        "GET /api/v1/groups HTTP/1.1",
        &reader,
        "",
    );
    assert_eq!(answer.expect("it answers").0, 200);
}

/// Options of a provider that is not there.
fn provider(secret: &Path) -> Vec<String> {
    let secret = secret.display().to_string();
    [
        ["--oidc-issuer", "http://127.0.0.1:1/realm"],
        ["--oidc-client-id", "tollgate"],
        ["--oidc-client-secret-file", &secret],
        ["--public-url", "https://fleet.example/"],
        ["--oidc-role", "ops=operator"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_provider_that_is_away_is_warned_about_and_the_page_has_its_link() {
    let scratch = Scratch::new();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "s3cret\n").expect("our folder");
    let words = provider(&secret);
    let words: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .chain(["--insecure"])
        .collect();
    let store = format!("sqlite:{}", scratch.path().join("c.db").display());
    let mut command = Command::new(program());
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store]);
    let mut collector = Running(
        command
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts"),
    );
    let mut stderr = BufReader::new(collector.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    // Whichever comes first: the provider is asked on a thread of its own.
    let warning = "cannot ask the identity provider at http://127.0.0.1:1/realm/";
    while !said.contains("collecting at ") || !said.contains(warning) {
        let read = stderr.read_line(&mut said).expect("it is text");
        assert!(read > 0, "{said}");
    }
    assert!(!said.contains("s3cret"), "{said}");
    let (_, address) = said
        .split_once("collecting at http://")
        .expect("an address");
    let address = address.split(';').next().expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let asked = "GET /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(asked.as_bytes()).expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("text");
    assert!(page.contains("Log in with 127.0.0.1:1"), "{page}");
}

#[test]
fn a_provider_without_a_role_a_secret_or_tls_is_refused() {
    let scratch = Scratch::new();
    let store = format!("sqlite:{}", scratch.path().join("c.db").display());
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "s3cret\n").expect("our folder");
    let refused = |change: &dyn Fn(&mut Vec<String>), why: &str| {
        let mut words = provider(&secret);
        change(&mut words);
        let mut command = Command::new(program());
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--insecure",
            "--store",
            &store,
        ]);
        let output = command.args(words).output().expect("it starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{why}: {said}");
        assert!(
            said.contains(why) && !said.contains("s3cret"),
            "{why}: {said}"
        );
    };
    refused(&|words| words.truncate(8), "--oidc-role");
    refused(&|words| words[9] = "ops=root".to_owned(), "TEXT=viewer");
    refused(
        &|words| words[1] = "http://id.example".to_owned(),
        "the issuer",
    );
    refused(
        &|words| words[7] = "fleet.example".to_owned(),
        "the public URL",
    );
    let missing = scratch.path().join("missing").display().to_string();
    refused(
        &|words| words[5].clone_from(&missing),
        "cannot use the client secret in ",
    );
}

#[test]
fn a_user_of_a_provider_is_listed_as_one_and_gets_no_password() {
    let server = Server::start();
    let url = server.database();
    // The database that the server's administrator is in.
    let (host, _) = url.rsplit_once('/').expect("a name");
    let url = format!("{host}/postgres");
    let user = |words: &[&str]| {
        let mut command = Command::new(program());
        command.args(["serve", "user"]).args(words);
        let output = command.args(["--store", &url]).output();
        output.expect("it starts")
    };
    let added = user(&["add", "ann", "--role", "viewer"]);
    assert!(added.status.success(), "{added:?}");
    server.sql(
        "INSERT INTO tollgate.users (name, role, password, created_ns, created_by)
         VALUES ('bob', 'viewer', 'oidc:x', 1, 'OpenID Connect')",
    );
    let refused = user(&["passwd", "bob"]);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let why = "the user logs in by an identity provider; remove the user first";
    assert!(said.contains(why) && refused.stdout.is_empty(), "{said}");
    assert!(user(&["passwd", "ann"]).status.success());
    let listed = user(&["list"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let login = |name: &str| {
        let mut lines = listed.lines().map(str::split_whitespace);
        let mut found = lines.find(|line| line.clone().next() == Some(name));
        found.as_mut().and_then(|line| line.nth(2))
    };
    assert_eq!(login("ann"), Some("password"), "{listed}");
    assert_eq!(login("bob"), Some("provider"), "{listed}");
    let json = user(&["list", "--json"]);
    let json = String::from_utf8_lossy(&json.stdout).into_owned();
    assert_eq!(json.matches("\"login\":\"provider\"").count(), 1, "{json}");
}
