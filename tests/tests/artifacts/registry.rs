//! A real registry for one test, and what its tests do with it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{KeyPair, PKCS_ED25519, SignatureAlgorithm};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A rule about a file, in a test that can fail.
pub(crate) fn rule(file: &str) -> String {
    format!(
        "- rule: Opens {file}\n  desc: d\n  condition: evt.type in (open, openat, openat2) and fd.name endswith /{file}\n  \
         output: opened %fd.name\n  priority: WARNING\n"
    )
}

pub(crate) fn test_of(file: &str, opened: &str) -> String {
    format!(
        "tests:\n- name: it is opened\n  event: {{evt.type: openat, fd.name: /x/{opened}}}\n  \
         alerts: [Opens {file}]\n"
    )
}

/// A registry of this test, and a folder for its keys, files and rules.
pub(crate) struct Registry {
    process: Child,
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// The command is refused, with these words.
    #[track_caller]
    pub(crate) fn refused(self, words: &str) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.err);
        assert!(self.err.contains(words), "no `{words}`: {}", self.err);
        assert!(self.err.contains("help: "), "{}", self.err);
    }
}

impl Registry {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("loopback has a free port").port();
        let store = folder.path().join("store");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n",
            store.display()
        );
        fs::write(folder.path().join("registry.yml"), config).expect("it can be written");
        let log = fs::File::create(folder.path().join("log")).expect("it can be made");
        let process = Command::new(e2e::which("docker-registry"))
            .arg("serve")
            .arg(folder.path().join("registry.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("docker-registry is installed: ./x test does that");
        let registry = Self {
            process,
            port,
            folder,
        };
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(registry.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "it does not listen: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        registry.make_key("key", &PKCS_ED25519);
        registry.file("marked.yaml", &rule("marked"));
        registry.file("marked_test.yaml", &test_of("marked", "marked"));
        registry
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("it can be written");
        self.path(name)
    }

    pub(crate) fn make_key(&self, name: &str, algorithm: &'static SignatureAlgorithm) {
        let pair = KeyPair::generate_for(algorithm).expect("there are random numbers");
        self.file(&format!("{name}.key"), &pair.serialize_pem());
        self.file(&format!("{name}.pub"), &pair.public_key_pem());
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let words = words
            .replace("%R", &format!("localhost:{}", self.port))
            .replace("%F", &self.folder.path().display().to_string());
        let mut command = Command::new(e2e::program());
        command
            .arg("artifact")
            .args(words.split_whitespace())
            .env("TOLLGATE_CONFIG_DIR", self.path("config"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `tollgate artifact`; `%R` is the registry, `%F` the folder.
    pub(crate) fn run(&self, words: &str) -> Said {
        let output = self.command(words).output().expect("it can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Publishes the rules of a file, signed.
    pub(crate) fn push(&self, place: &str, file: &str) -> String {
        let words = format!("push %R/{place} %F/{file} --plain-http --sign-key %F/key.key --json");
        let answer: Value = serde_json::from_str(&self.run(&words).ok()).expect("it is JSON");
        answer["digest"].as_str().expect("a digest").to_owned()
    }

    pub(crate) fn install(&self, words: &str) -> Said {
        self.run(&format!("install {words} --plain-http --key %F/key.pub"))
    }

    pub(crate) fn rules(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("config/rules.d"));
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".yaml")).collect();
        names.sort();
        names
    }

    pub(crate) fn installed(&self, name: &str) -> Value {
        let text = fs::read(self.path("config/rules.d/.artifacts/state.json")).expect("a state");
        let state: Value = serde_json::from_slice(&text).expect("it is JSON");
        state["artifacts"][name].clone()
    }

    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.path("store/docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }

    pub(crate) fn repository(&self, name: &str) -> PathBuf {
        self.path("store/docker/registry/v2/repositories")
            .join(name)
    }

    /// Sends one request, and returns status, `Location` and body.
    pub(crate) fn http(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let host = format!("http://localhost:{}", self.port);
        let path = path.trim_start_matches(&host);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        let location = answer
            .lines()
            .find_map(|line| line.strip_prefix("Location: "));
        (status.expect("a status"), location.unwrap_or("").to_owned())
    }

    pub(crate) fn put_blob(&self, repository: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        let (_, place) = self.http(
            "POST",
            &format!("/v2/{repository}/blobs/uploads/"),
            "x/x",
            b"",
        );
        let place = format!("{}&digest={digest}", place.trim());
        let (status, _) = self.http("PUT", &place, "application/octet-stream", bytes);
        assert_eq!(status, 201);
        json!({"digest": digest, "size": bytes.len()})
    }

    /// Publishes without this program: what falcoctl would write, or what nobody should.
    pub(crate) fn put(&self, place: &str, kind: &str, config: &Value, layer: &[u8]) {
        let (repository, tag) = place.split_once(':').expect("a tag");
        let mut config = self.put_blob(repository, config.to_string().as_bytes());
        config["mediaType"] = format!("application/vnd.cncf.falco.{kind}.config.v1+json").into();
        let mut layer = self.put_blob(repository, layer);
        layer["mediaType"] = format!("application/vnd.cncf.falco.{kind}.layer.v1+tar.gz").into();
        layer["annotations"] = json!({"org.opencontainers.image.title": "rules.tar.gz"});
        // Without a media type of its own, as older builds of falcoctl wrote it.
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        let path = format!("/v2/{repository}/manifests/{tag}");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let (status, _) = self.http("PUT", &path, kind, manifest.to_string().as_bytes());
        assert_eq!(status, 201);
    }

    /// Packs files of the folder by tar itself.
    pub(crate) fn tar(&self, options: &[&str], files: &[&str]) -> Vec<u8> {
        let output = Command::new("tar")
            .current_dir(self.folder.path())
            .args(["-cz", "-P"])
            .args(options)
            .args(files)
            .output()
            .expect("tar is there");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it is there");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(bytes).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("it is text");
    format!("sha256:{}", text.split(' ').next().expect("a digest"))
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(status.expect("cp is there").success());
}
