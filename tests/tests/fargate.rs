//! The task definitions for Fargate in docs: their containers are run as they are written, but for names and paths.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::collector::{Collector, get, token};
use e2e::{Alert, Finished, Limited, Scratch, need_root, program, repository};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const FOLDER: &str = "docs/howto/deployment";

/// A task definition, and the folders that its volumes are here.
struct Task {
    definition: Value,
    scratch: Scratch,
}

impl Task {
    fn read(name: &str) -> Self {
        let text = fs::read_to_string(repository().join(FOLDER).join(name)).expect(name);
        let definition: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(
            definition["requiresCompatibilities"][0], "FARGATE",
            "{name}"
        );
        let scratch = Scratch::new();
        for volume in list(&definition["volumes"]) {
            let volume = volume["name"].as_str().expect("it has a name");
            fs::create_dir(scratch.path().join(volume)).expect("names differ");
        }
        Self {
            definition,
            scratch,
        }
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn containers(&self) -> &[Value] {
        list(&self.definition["containerDefinitions"])
    }

    /// Returns the path here of a path in a container.
    fn here(&self, container: &Value, word: &str) -> String {
        for mount in list(&container["mountPoints"]) {
            let text = |key: &str| mount[key].as_str().expect(key);
            let folder = text("containerPath");
            if let Some(rest) = word.strip_prefix(folder) {
                let volume = self.volume(text("sourceVolume"));
                assert!(volume.is_dir(), "{container}: no volume for {word}");
                return format!("{}{rest}", volume.display());
            }
        }
        word.to_owned()
    }

    /// Runs a container whose image has tollgate, or finds it on a volume. What it starts is `command`.
    fn run(
        &self,
        container: &Value,
        variables: &BTreeMap<&str, String>,
        command: &[&str],
    ) -> Finished {
        let mut words = words(&container["entryPoint"]);
        if words.is_empty() {
            // The entry point of our image.
            words.push("/tollgate");
        }
        words.extend(self::words(&container["command"]));
        let own: Vec<_> = words.iter().take_while(|word| **word != "--").collect();
        let has_command = own.len() < words.len();
        let mut own = own.into_iter().map(|word| self.here(container, word));
        let first = own.next().expect("it has words");
        let first = match first.as_str() {
            "/tollgate" => program(),
            other => PathBuf::from(other),
        };
        let mut run = Command::new(first);
        run.args(own).stdin(Stdio::null());
        for variable in list(&container["environment"]) {
            let text = |key: &str| variable[key].as_str().expect(key);
            let value = variables.get(text("name"));
            run.env(
                text("name"),
                value
                    .cloned()
                    .unwrap_or_else(|| self.here(container, text("value"))),
            );
        }
        if has_command {
            // Alerts of root that nobody takes would stay on this machine.
            let spool = self.scratch.path().join("spool");
            run.arg("-o")
                .arg(format!("collector_output.spool={}", spool.display()));
            run.arg("--").args(command);
        }
        Limited::start(&mut run, LIMIT).finish(b"")
    }
}

fn list(value: &Value) -> &[Value] {
    // What a definition leaves out is empty.
    value.as_array().map_or(&[], Vec::as_slice)
}

fn words(value: &Value) -> Vec<&str> {
    list(value)
        .iter()
        .map(|word| word.as_str().expect("text"))
        .collect()
}

fn rules(finished: &Finished) -> Vec<String> {
    let alerts = finished.stderr.lines().filter_map(Alert::parse);
    alerts.map(|alert| alert.rule).collect()
}

const SECRET: [&str; 3] = ["sh", "-c", "cat /etc/shadow >/dev/null 2>&1; exit 7"];
const RULE: &str = "Read sensitive file untrusted";

#[test]
fn task_definitions_run_what_they_say() {
    need_root!();
    let task = Task::read("fargate-task.json");
    let [app] = task.containers() else {
        panic!("one container expected: {}", task.definition)
    };
    let finished = task.run(app, &BTreeMap::new(), &SECRET);
    assert_eq!(finished.code(), 7, "{finished:?}");
    assert_eq!(rules(&finished), [RULE], "{finished:?}");
    // A name that does not exist is refused: the container above was not started by chance.
    let mut wrong = app.clone();
    wrong["entryPoint"][2] = "--jsno".into();
    assert_eq!(task.run(&wrong, &BTreeMap::new(), &SECRET).code(), 2);
}

#[test]
fn the_init_task_sends_its_alerts_to_a_collector() {
    need_root!();
    let task = Task::read("fargate-init-task.json");
    let [init, app] = task.containers() else {
        panic!("two containers expected: {}", task.definition)
    };
    assert_eq!(app["dependsOn"][0]["containerName"], init["name"]);
    let copied = task.run(init, &BTreeMap::new(), &[]);
    assert_eq!(copied.code(), 0, "{copied:?}");

    // A collector with a certificate that signs itself, and its two files on the volume.
    let beside = Scratch::new();
    let store = beside.path().join("collector.db");
    let secret = token(&store, &["--agent-class", "web"]);
    let reader = token(&store, &["--role", "viewer"]);
    let place = |name: &str| task.volume("collector").join(name);
    write_secret(&place("token"), &secret);
    let collector = Collector::start(&store, "127.0.0.1:0", &["--tls-name", "127.0.0.1"]);
    fs::copy(beside.path().join("collector.crt"), place("collector.crt")).expect("it was made");
    let variables = BTreeMap::from([("TOLLGATE_COLLECTOR", collector.url.clone())]);
    let finished = task.run(app, &variables, &SECRET);
    assert_eq!(finished.code(), 7, "{finished:?}");
    assert_eq!(rules(&finished), [RULE], "{finished:?}");
    assert!(!finished.stderr.contains("not delivered"), "{finished:?}");
    drop(collector);
    let collector = Collector::without_tls(&store, "127.0.0.1:0");
    let groups = get(collector.address(), "/api/v1/groups", &reader);
    assert_eq!(groups["groups"][0]["rule"], RULE, "{groups}");
}

fn write_secret(path: &Path, secret: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, secret).expect("the folder is ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
}
