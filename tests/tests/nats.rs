//! Alerts arrive at a NATS server, which is Debian's `nats-server`, whatever becomes of it meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use e2e::marks::{self, THRICE, marking, marks, run_loudly, work};
use e2e::{Watch, WatchResult, wait_for};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

fn set(watch: Watch, settings: &[&str]) -> Watch {
    marks::set(marks::set(watch, &["nats_output.enabled=true"]), settings)
}

fn counters(watched: &WatchResult) -> Value {
    let text = fs::read_to_string(watched.scratch.path().join("stats")).expect("a stats file");
    let last = text.lines().last().expect("it has a line");
    let line: Value = serde_json::from_str(last).expect("it is JSON");
    line["alerts"]["channels"]["nats"].clone()
}

/// Delivered, lost by writing, lost because they were refused.
fn outcome(watched: &WatchResult) -> [u64; 3] {
    let counters = counters(watched);
    ["delivered", "lost_write_failed", "lost_rejected"]
        .map(|name| counters[name].as_u64().expect("a number"))
}

/// A server of this test, which ends with it.
struct Server {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(config: &str) -> Self {
        Self::with_files(config, &[])
    }

    /// With files in its folder, which is `%F` in the configuration.
    fn with_files(config: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("it can be written");
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("loopback has a free port").port();
        let text = format!("listen: \"127.0.0.1:{port}\"\n{config}");
        let text = text.replace("%F", &folder.path().display().to_string());
        fs::write(folder.path().join("nats.conf"), text).expect("it can be written");
        let process = serve(folder.path(), port);
        Self {
            process,
            port,
            folder,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self) -> String {
        format!("nats_output.url=nats://localhost:{}", self.port)
    }

    fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is a child");
    }

    fn restart(&mut self) {
        self.process = serve(self.folder.path(), self.port);
    }

    fn client(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("a limit of seconds");
        let mut client = Client(BufReader::new(stream));
        let info = client.line();
        assert!(info.starts_with("INFO "), "{info}");
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `nats-server` and waits until it listens.
fn serve(folder: &Path, port: u16) -> Child {
    // Debian has it in a folder that not every user's path names.
    let known = Path::new("/usr/sbin/nats-server");
    let program = if known.exists() {
        known
    } else {
        Path::new("nats-server")
    };
    let log = fs::File::create(folder.join("log")).expect("it can be made");
    let process = Command::new(program)
        .arg("-c")
        .arg(folder.join("nats.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("nats-server is installed: ./x test does that");
    let deadline = Instant::now() + LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(
            Instant::now() < deadline,
            "the server does not listen: {log}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    process
}

/// The protocol, as far as a subscriber needs it.
struct Client<S: Read + Write>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn say(&mut self, text: &str) {
        let stream = self.0.get_mut();
        let said = stream
            .write_all(text.as_bytes())
            .and_then(|()| stream.flush());
        said.expect("the server reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    fn log_in(&mut self, who: &Value) {
        let mut options = json!({"verbose": false, "headers": true});
        let members = who.as_object().expect("an object").clone();
        options.as_object_mut().expect("an object").extend(members);
        self.say(&format!("CONNECT {options}\r\nPING\r\n"));
        self.pong();
    }

    fn subscribe(&mut self, subject: &str) {
        self.say(&format!("SUB {subject} 9\r\nPING\r\n"));
        self.pong();
    }

    fn pong(&mut self) {
        loop {
            match self.line().as_str() {
                "PONG" => return,
                "PING" => self.say("PONG\r\n"),
                line => panic!("the server says {line}"),
            }
        }
    }

    /// The next message: its subject and what it says.
    fn message(&mut self) -> (String, String) {
        loop {
            let line = self.line();
            let words: Vec<_> = line.split(' ').collect();
            if words[0] != "MSG" {
                assert!(["PING", "PONG"].contains(&words[0]), "{line}");
                continue;
            }
            let size = words.last().and_then(|size| size.parse().ok());
            let mut body: Vec<u8> = vec![0; size.expect("a size")];
            self.0.read_exact(&mut body).expect("the message");
            self.line();
            let text = String::from_utf8(body).expect("text");
            return (words[1].to_owned(), text);
        }
    }

    /// Asks the server's JetStream.
    fn ask(&mut self, what: &str, question: &Value) -> Value {
        self.subscribe("answers");
        let text = question.to_string();
        self.say(&format!(
            "PUB $JS.API.{what} answers {}\r\n{text}\r\n",
            text.len()
        ));
        let (_, answer) = self.message();
        self.say("UNSUB 9\r\n");
        let answer: Value = serde_json::from_str(&answer).expect("it is JSON");
        assert!(answer["error"].is_null(), "{what}: {answer}");
        answer
    }
}

#[test]
fn alerts_arrive_as_on_standard_output_under_the_subject_of_their_rule() {
    let server = Server::start("");
    let mut subscriber = server.client();
    subscriber.log_in(&json!({}));
    subscriber.subscribe("falco.>");
    for json in [true, false] {
        let watch = marking(THRICE);
        let watch = if json { watch } else { watch.text() };
        let watched = set(watch, &[&server.url()]).run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let expected = marks(&watched.log);
        assert_eq!(expected.len(), 3, "{}", watched.story());
        for line in &expected {
            let got = subscriber.message();
            assert_eq!(got, ("falco.warning.mark".to_owned(), line.clone()));
        }
        assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    }
}

#[test]
fn alerts_wait_for_a_server_that_is_killed_and_comes_back() {
    let mut server = Server::start("");
    let watch = marking(
        ": < %W/mark; : > %W/first; while [ ! -e %W/down ]; do sleep 0.01; done; \
         : < %W/mark; : > %W/second; while [ ! -e %W/up ]; do sleep 0.01; done; : < %W/mark; sleep 1",
    );
    let folder = work(&watch);
    let watch = set(watch, &[&server.url(), "nats_output.subject=a.<source>"]);
    let running = watch.start();
    wait_for(&folder.join("first"));
    // The first alert may be on its way still; then it is published again later.
    server.kill();
    fs::write(folder.join("down"), "").expect("it can be written");
    wait_for(&folder.join("second"));
    thread::sleep(Duration::from_millis(300));
    server.restart();
    let mut subscriber = server.client();
    subscriber.log_in(&json!({}));
    subscriber.subscribe("a.*");
    fs::write(folder.join("up"), "").expect("it can be written");
    let finished = running.finish(b"");
    let watched = watch.watched(finished);
    let expected = marks(&watched.log);
    assert_eq!(expected.len(), 3, "{}", watched.story());
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    let last = loop {
        let (subject, text) = subscriber.message();
        assert_eq!(subject, "a.syscall");
        if text == expected[2] {
            break text;
        }
    };
    assert_eq!(last, expected[2]);
}

const JETSTREAM: &str = "jetstream { store_dir: \"%F/jetstream\" }\n";

#[test]
fn a_stream_keeps_each_alert_once_though_its_server_is_killed_twice() {
    let mut server = Server::start(JETSTREAM);
    let mut client = server.client();
    client.log_in(&json!({}));
    let stream = json!({"name": "ALERTS", "subjects": ["falco.>"], "storage": "file"});
    client.ask("STREAM.CREATE.ALERTS", &stream);
    let watch = marking(
        "n=0; while [ $n -lt 200 ]; do : < %W/mark; n=$((n + 1)); \
         [ $n != 50 ] || : > %W/began; sleep 0.01; done; \
         while [ ! -e %W/up ]; do sleep 0.01; done; sleep 1",
    );
    let folder = work(&watch);
    let settings = [
        &server.url(),
        "nats_output.jetstream.enabled=true",
        "nats_output.jetstream.stream=ALERTS",
    ];
    let watch = set(watch, &settings);
    let running = watch.start();
    wait_for(&folder.join("began"));
    for _ in 0..2 {
        server.kill();
        thread::sleep(Duration::from_millis(300));
        server.restart();
        thread::sleep(Duration::from_millis(500));
    }
    fs::write(folder.join("up"), "").expect("it can be written");
    let finished = running.finish(b"");
    let watched = watch.watched(finished);
    let expected = marks(&watched.log);
    assert_eq!(expected.len(), 200, "{}", watched.story());
    assert_eq!(outcome(&watched), [200, 0, 0], "{}", watched.story());

    let mut client = server.client();
    client.log_in(&json!({}));
    let info = client.ask("STREAM.INFO.ALERTS", &json!({}));
    assert_eq!(info["state"]["messages"], 200, "{info}");
    for (at, line) in expected.iter().enumerate() {
        let kept = client.ask("STREAM.MSG.GET.ALERTS", &json!({"seq": at + 1}));
        let kept = &kept["message"];
        assert_eq!(kept["subject"], "falco.warning.mark");
        let data = kept["data"].as_str().expect("it has data");
        assert_eq!(from_base64(data), line.as_bytes(), "{at}");
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for digit in text.bytes().filter(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit);
        let value = u32::try_from(value.expect("a digit")).expect("it is small");
        held = (held << 6 | value) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).expect("eight bits"));
        }
    }
    bytes
}

#[test]
fn an_alert_that_no_stream_takes_waits_and_is_named_at_the_end() {
    let server = Server::start(JETSTREAM);
    let watch = marking(": < %W/mark; exit 3");
    let watch = set(
        watch,
        &[&server.url(), "nats_output.jetstream.enabled=true"],
    );
    let finished = run_loudly(&watch, LIMIT);
    assert_eq!(finished.code(), 3);
    let said = "tollgate: nats: 0 alerts lost, 1 not delivered: no stream takes the subject";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    // With an expectation that the stream does not meet, the answer is final.
    let mut client = server.client();
    client.log_in(&json!({}));
    let stream = json!({"name": "OTHER", "subjects": ["falco.>"], "storage": "memory"});
    client.ask("STREAM.CREATE.OTHER", &stream);
    let settings = [
        &server.url(),
        "nats_output.jetstream.enabled=true",
        "nats_output.jetstream.stream=ALERTS",
    ];
    let watched = set(marking(THRICE), &settings).run();
    assert_eq!(outcome(&watched), [0, 0, 3], "{}", watched.story());
    let info = client.ask("STREAM.INFO.OTHER", &json!({}));
    assert_eq!(info["state"]["messages"], 0, "{info}");
}

#[test]
fn only_the_right_secret_opens_the_server_and_others_are_counted() {
    let server = Server::start(
        "authorization {\n users: [\n  {user: observer, password: o}\n  \
         {user: agent, password: right, permissions: {publish: [\"allowed.>\"]}}\n ]\n}\n",
    );
    let mut subscriber = server.client();
    subscriber.log_in(&json!({"user": "observer", "pass": "o"}));
    subscriber.subscribe("allowed.>");
    let file = server.file("password");
    let setting = format!("nats_output.password_file={}", file.display());
    let common = [&server.url(), "nats_output.user=agent", &setting];

    fs::write(&file, "wrong\n").expect("it can be written");
    let watch = set(marking(": < %W/mark; exit 3"), &common);
    let finished = run_loudly(&watch, LIMIT);
    assert_eq!(finished.code(), 3);
    let said =
        "cannot write alerts to nats: the server refuses this client: Authorization Violation";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    let said = "tollgate: nats: 1 alert lost, 0 not delivered";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);

    fs::write(&file, "right\n").expect("it can be written");
    let watched = set(marking(THRICE), &common).run();
    assert_eq!(
        outcome(&watched),
        [0, 0, 3],
        "not its subject: {}",
        watched.story()
    );
    let subject = "nats_output.subject=allowed.<rule>";
    let watched = set(marking(THRICE), &[&common[..], &[subject]].concat()).run();
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    for line in marks(&watched.log) {
        assert_eq!(subscriber.message(), ("allowed.mark".to_owned(), line));
    }
}

/// An operator, an account and a user as NATS' own tools write them down, made for this test alone: nobody's.
mod identity {
    pub(super) const OPERATOR: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJOQlJQT05FV1pEN05CUUpHVVhSSTdSM1hYRlc3NlVOQ0NOWUxUSzJaMkpVT0M1SkRaMk5BIiwiaWF0IjoxNzAwMDAwMDAwLCJpc3MiOiJPQjNISlZCUlZXNVNCUlRKT0NDVlFRR01XWjNOTEtYREpTQkhONzU3VkY3SE9XQUVEWVNRSVBWWiIsIm5hbWUiOiJvcCIsInN1YiI6Ik9CM0hKVkJSVlc1U0JSVEpPQ0NWUVFHTVdaM05MS1hESlNCSE43NTdWRjdIT1dBRURZU1FJUFZaIiwibmF0cyI6eyJ0eXBlIjoib3BlcmF0b3IiLCJ2ZXJzaW9uIjoyfX0.Y0GmcBv-9f9G7qVMDntawpTPhtJ_SLbZbjCfHHVz4uMzGDbIAfeDuNssXU3yUiNWgXh9ALLNSKyMFnCYhQ3UBw";
    pub(super) const ACCOUNT: &str = "ACS4GIAA3TVDZAOF2ZWZBH4FMFVAQB4O2QYSAVRHWYQMJJ3W7EF3W3Q5";
    pub(super) const ACCOUNT_TOKEN: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJJTU1aR01KNENTR0ZOS043QVQzSFJLWjRVNUlPTFpFMlpXNkxZMkRTM0JEQ0lNQ0tWVkVRIiwiaWF0IjoxNzAwMDAwMDAwLCJpc3MiOiJPQjNISlZCUlZXNVNCUlRKT0NDVlFRR01XWjNOTEtYREpTQkhONzU3VkY3SE9XQUVEWVNRSVBWWiIsIm5hbWUiOiJhY2MiLCJzdWIiOiJBQ1M0R0lBQTNUVkRaQU9GMlpXWkJINEZNRlZBUUI0TzJRWVNBVlJIV1lRTUpKM1c3RUYzVzNRNSIsIm5hdHMiOnsidHlwZSI6ImFjY291bnQiLCJsaW1pdHMiOnsic3VicyI6LTEsImRhdGEiOi0xLCJwYXlsb2FkIjotMSwiaW1wb3J0cyI6LTEsImV4cG9ydHMiOi0xLCJ3aWxkY2FyZHMiOnRydWUsImNvbm4iOi0xLCJsZWFmIjotMX0sInZlcnNpb24iOjJ9fQ.lsvDhYzLQLIT4w13L7Aee6yBcLYpd2-dMwS7LtlwXomEhq3HSFtZhiv1HwiYgKWG2nHI_6dXscFGvk70NbdjDg";
    pub(super) const USER: &str = "UB74YLMFAVW6UKI2IEVFANRQ63XAQJAH2VXCVWL5MPYKPKTCQFEVBOU5";
    pub(super) const USER_TOKEN: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJSVE1PRDU1WUZLWDZURUhMU1RaRlozSDJDUldDUFU2RFhMTFVLN0hGWUZXREJNN05IN1lBIiwiaWF0IjoxNzAwMDAwMDAwLCJpc3MiOiJBQ1M0R0lBQTNUVkRaQU9GMlpXWkJINEZNRlZBUUI0TzJRWVNBVlJIV1lRTUpKM1c3RUYzVzNRNSIsIm5hbWUiOiJ1c3IiLCJzdWIiOiJVQjc0WUxNRkFWVzZVS0kySUVWRkFOUlE2M1hBUUpBSDJWWENWV0w1TVBZS1BLVENRRkVWQk9VNSIsIm5hdHMiOnsidHlwZSI6InVzZXIiLCJzdWJzIjotMSwiZGF0YSI6LTEsInBheWxvYWQiOi0xLCJ2ZXJzaW9uIjoyfX0.8TELA2K8ppx_Xv8ayAqL5Bv72c0Ao1vIV1gmRfXx6ns-UcpgE6BCSKOZZBrMbfjWsqLpVv8XZY4BHWaMhi4VDA";
    pub(super) const SEED: &str = "SUAH5ZGD5QFU5Y5Z7V3HKXQD7RYFZFUGNSE2MEGM6EAIBI3YTF2EUW4D5Q";
    /// Another user's.
    pub(super) const OTHER_SEED: &str =
        "SUANSKMKCDI3A42YG7OEXWC5VRSBWDZ454T2I7S5KOSU6LZ7LMX476VCWY";

    /// The file that a user gets.
    pub(super) fn credentials(seed: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\n{USER_TOKEN}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }
}

#[test]
fn tokens_keys_and_credentials_open_the_server() {
    use identity::{ACCOUNT, ACCOUNT_TOKEN, OPERATOR, OTHER_SEED, SEED, USER, credentials};
    for (config, key, right, wrong) in [
        (
            "authorization { token: \"t0ken\" }\n".to_owned(),
            "token_file",
            "t0ken".to_owned(),
            "t0ken2".to_owned(),
        ),
        (
            format!("authorization {{ users: [{{nkey: {USER}}}] }}\n"),
            "credentials_file",
            SEED.to_owned(),
            OTHER_SEED.to_owned(),
        ),
        (
            format!(
                "operator: {OPERATOR}\nresolver: MEMORY\n\
                 resolver_preload: {{ {ACCOUNT}: {ACCOUNT_TOKEN} }}\n"
            ),
            "credentials_file",
            credentials(SEED),
            credentials(OTHER_SEED),
        ),
    ] {
        let server = Server::start(&config);
        let file = server.file("secret");
        let setting = format!("nats_output.{key}={}", file.display());
        for (text, expected) in [(right, [3, 0, 0]), (wrong, [0, 0, 3])] {
            fs::write(&file, text).expect("it can be written");
            let watched = set(marking(THRICE), &[&server.url(), &setting]).run();
            assert_eq!(outcome(&watched), expected, "{config}: {}", watched.story());
        }
    }
}

/// A certificate authority, and certificates by it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    fn sign(&self, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("a name");
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

#[test]
fn an_encrypted_server_and_client_know_one_another_by_their_certificates() {
    let authority = Authority::new();
    let (server_pem, server_key) = authority.sign(ExtendedKeyUsagePurpose::ServerAuth);
    let (client_pem, client_key) = authority.sign(ExtendedKeyUsagePurpose::ClientAuth);
    let server = Server::with_files(
        "tls { cert_file: \"%F/server.pem\", key_file: \"%F/server.key\", \
         ca_file: \"%F/ca.pem\", verify: true }\n",
        &[
            ("ca.pem", &authority.pem),
            ("server.pem", &server_pem),
            ("server.key", &server_key),
            ("client.pem", &client_pem),
            ("client.key", &client_key),
            ("other.pem", &Authority::new().pem),
        ],
    );
    let key =
        |name: &str, file: &str| format!("nats_output.tls.{name}={}", server.file(file).display());
    let tls = "nats_output.tls.enabled=true";
    let own = [
        key("cert_file", "client.pem"),
        key("key_file", "client.key"),
    ];

    let mut subscriber = encrypted(&server, &authority.pem, &client_pem, &client_key);
    subscriber.log_in(&json!({}));
    subscriber.subscribe("falco.>");
    let known = key("ca_file", "ca.pem");
    let watched = set(
        marking(THRICE),
        &[&server.url(), tls, &known, &own[0], &own[1]],
    )
    .run();
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    for line in marks(&watched.log) {
        assert_eq!(subscriber.message().1, line);
    }
    // A server that the authority does not vouch for, and one that asks for TLS of a client without.
    let foreign = key("ca_file", "other.pem");
    let settings = [&server.url(), tls, &foreign, &own[0], &own[1]];
    let watched = set(marking(THRICE), &settings).run();
    assert_eq!(outcome(&watched), [0, 0, 3], "{}", watched.story());
    let watched = set(marking(THRICE), &[&server.url()]).run();
    assert_eq!(outcome(&watched), [0, 0, 3], "{}", watched.story());
    // The same server under a name that is not in its certificate.
    let elsewhere = format!("nats_output.url=nats://127.0.0.1:{}", server.port);
    let settings = [&elsewhere, tls, &known, &own[0], &own[1]];
    let watched = set(marking(THRICE), &settings).run();
    assert_eq!(outcome(&watched), [0, 0, 3], "{}", watched.story());
}

#[test]
fn an_account_that_may_not_subscribe_is_told_so_and_its_alerts_are_counted() {
    let server = Server::start(
        "authorization {\n users: [\n  \
         {user: agent, password: right, permissions: {subscribe: {deny: [\">\"]}}}\n ]\n}\n",
    );
    let file = server.file("password");
    fs::write(&file, "right\n").expect("it can be written");
    let setting = format!("nats_output.password_file={}", file.display());
    let settings = [&server.url(), "nats_output.user=agent", &setting];
    let finished = run_loudly(&set(marking(": < %W/mark; exit 3"), &settings), LIMIT);
    assert_eq!(finished.code(), 3);
    for said in [
        "nats_output needs to subscribe to `_INBOX.>`",
        "tollgate: nats: 1 alert lost, 0 not delivered",
    ] {
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}

fn encrypted(
    server: &Server,
    authority: &str,
    certificate: &str,
    key: &str,
) -> Client<StreamOwned<ClientConnection, TcpStream>> {
    let parsed = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a PEM file");
    let mut roots = RootCertStore::empty();
    roots.add(parsed(authority)).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![parsed(certificate)], key)
        .expect("they belong together");
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a configuration");
    let plain = server.client().0.into_inner();
    Client(BufReader::new(StreamOwned::new(tls, plain)))
}

#[test]
fn settings_that_cannot_be_used_stop_the_start() {
    for (settings, problem) in [
        (&[][..], "`nats_output` is enabled and has no `url`"),
        (
            &["nats_output.url=http://localhost"],
            "it has to start with nats:// or tls://",
        ),
        (
            &[
                "nats_output.url[]=nats://a",
                "nats_output.url[]=nats://u:p@b",
            ],
            "it has a user: set nats_output.user",
        ),
        (
            &["nats_output.url=nats://a", "nats_output.subject=a b"],
            "cannot use the subject `a b`",
        ),
        (
            &["nats_output.url=nats://a", "nats_output.token_file=/none"],
            "cannot read /none: No such file",
        ),
        (
            &["nats_output.url=tls://a"],
            "an address with tls:// needs tls.enabled",
        ),
    ] {
        let watch = set(marking("exit 3"), settings);
        let finished = run_loudly(&watch, LIMIT);
        assert_eq!(finished.code(), 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(problem), "{}", finished.stderr);
        assert!(finished.stderr.contains("help: "), "{}", finished.stderr);
    }
}
