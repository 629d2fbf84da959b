//! Configuration and rules that are read without being named: of the machine, of the user, and who may write them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{Finished, Limited, need_root, need_runtime, program};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// The user and group nobody of most systems.
const OTHER: u32 = 65534;

/// A rule that matches each open of a file.
fn opens(rule: &str, file: &str) -> String {
    format!(
        "- rule: {rule}\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /{file}\n  \
         output: opened %fd.name\n  priority: WARNING\n"
    )
}

/// A folder in place of /etc/tollgate, which only its owner can change.
struct Machine(TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().expect("the temporary folder is writable"));
        machine.mode("", 0o755);
        for (name, text) in files {
            machine.write(name, text);
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("it is our folder");
        fs::write(&path, text).expect("it is our folder");
        path
    }

    fn mode(&self, name: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.at(name), mode).expect("it is our file");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(words)
            .env("TOLLGATE_CONFIG_DIR", self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        Limited::start(&mut self.command(words), LIMIT).finish(b"")
    }
}

/// Asserts that the program refuses, and that its message has these parts.
fn refused(finished: &Finished, parts: &[&str]) {
    assert_eq!(finished.code(), 2, "{finished:?}");
    for part in parts {
        let text = format!("{}{}", finished.stderr, finished.stdout);
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

fn json(finished: &Finished) -> Value {
    assert_eq!(finished.code(), 0, "{finished:?}");
    let parsed = serde_json::from_str(&finished.stdout);
    parsed.unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Returns value and origin of a key that `config show --json` prints.
fn shown(show: &Value, key: &str) -> (Value, String) {
    let key = &show["keys"][key];
    let origin = &key["origin"];
    let origin = match origin["kind"].as_str().expect("each key has an origin") {
        "file" => format!(
            "{}:{}",
            origin["file"].as_str().unwrap_or("?"),
            origin["line"]
        ),
        "option" => origin["option"].as_str().unwrap_or("?").to_owned(),
        other => other.to_owned(),
    };
    (key["value"].clone(), origin)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Runs a script with an /etc of its own, whose changes nobody else sees, as root in a private mount namespace.
fn with_own_etc(script: &str) -> Finished {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let prelude = "mount -t tmpfs -o mode=755,suid tmpfs .
        cd $PWD
        mkdir upper work home
        mount -t overlay overlay -o lowerdir=/etc,upperdir=upper,workdir=work /etc
        mkdir -p /etc/tollgate/rules.d
        export HOME=$PWD/home
        unset TOLLGATE_CONFIG_DIR XDG_CONFIG_HOME
        tollgate=$1
        ";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-euc"])
        .arg(format!("{prelude}{script}"))
        .arg("script")
        .arg(program())
        .current_dir(folder.path())
        .stdin(Stdio::null());
    Limited::start(&mut command, LIMIT).finish(b"")
}

#[test]
fn etc_then_the_users_file_then_the_named_one_then_options() {
    need_root!();
    let finished = with_own_etc(
        "printf 'priority: error\noutputs: {rate: 1, max_burst: 2}\njson_output: true\nlog_level: err\n' \
             > /etc/tollgate/config.yaml
         mkdir -p home/.config/tollgate xdg/tollgate
         printf 'priority: notice\nlog_level: debug\n' > home/.config/tollgate/config.yaml
         printf 'outputs:\n  max_burst: 4\n' > named.yaml
         $tollgate config show --json -c named.yaml -o json_output=false
         printf 'priority: alert\n' > xdg/tollgate/config.yaml
         XDG_CONFIG_HOME=$PWD/xdg $tollgate config show --changed",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let (first, second) = finished.stdout.split_once('\n').expect("two outputs");
    let show: Value = serde_json::from_str(first).expect("it is JSON");
    let etc = "/etc/tollgate/config.yaml";
    let (value, origin) = shown(&show, "priority");
    assert_eq!(value, "notice");
    assert!(
        origin.ends_with("home/.config/tollgate/config.yaml:1"),
        "{origin}"
    );
    assert_eq!(shown(&show, "outputs.rate"), (1.into(), format!("{etc}:2")));
    assert_eq!(
        shown(&show, "outputs.max_burst"),
        (4.into(), "named.yaml:2".to_owned())
    );
    let option = "-o json_output=false".to_owned();
    assert_eq!(shown(&show, "json_output"), (false.into(), option));
    assert_eq!(
        shown(&show, "verify"),
        ("sampled".into(), "default".to_owned())
    );
    // The variable names another folder of the user.
    assert!(second.contains("xdg/tollgate/config.yaml:1"), "{second}");
    assert!(second.contains("log_level: err "), "{second}");
    assert!(!second.contains("verify"), "{second}");
}

#[test]
fn rules_of_etc_are_added_to_the_built_in_ones() {
    need_root!();
    let finished = with_own_etc(&format!(
        "cat > /etc/tollgate/rules.d/20-b.yaml <<'END'
{}END
cat > /etc/tollgate/rules.d/10-a.yaml <<'END'
- list: marked
  items: [marked]
{}END
: > marked
$tollgate run -q --json -o rule_matching=all -- sh -c ': < marked; cat /etc/shadow > /dev/null'",
        opens("Second", "marked").replace(
            "endswith /marked",
            "glob /*/marked and fd.filename in (marked)"
        ),
        opens("First", "marked"),
    ));
    assert_eq!(finished.code(), 0, "{finished:?}");
    let text = format!("{}{}", finished.stdout, finished.stderr);
    for rule in ["First", "Second", "Read sensitive file untrusted"] {
        assert!(
            text.contains(&format!("\"rule\":\"{rule}\"")),
            "no {rule}: {text}"
        );
    }
}

#[test]
fn a_setuid_program_takes_no_folder_from_its_caller() {
    need_root!();
    let finished = with_own_etc(
        "cp $tollgate tollgate; chmod 4755 tollgate
         run() { setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\" ./tollgate config show --json; }
         run env HOME=$PWD/home
         run env TOLLGATE_CONFIG_DIR=$PWD",
    );
    refused(
        &finished,
        &[
            "cannot use TOLLGATE_CONFIG_DIR",
            "has privileges that its caller lacks",
        ],
    );
    let first = finished
        .stdout
        .lines()
        .next()
        .expect("the first one is not refused");
    let show: Value = serde_json::from_str(first).expect("it is JSON");
    let files = show["files"].as_array().expect("a list");
    assert_eq!(files.len(), 1, "only that of the machine: {files:?}");
}

#[test]
fn added_rules_see_the_built_in_ones_and_named_rules_replace_all() {
    let machine = Machine::new(&[("rules.d/own.yaml", &opens("Own", "x"))]);
    let change = "- rule: Read sensitive file untrusted\n  priority: NOTICE\n  override:\n    priority: replace\n";
    let added = machine.write("added.yaml", change);
    let alone = machine.write("alone.yaml", &opens("Alone", "x"));
    let list = |words: &[&str]| {
        let words = [&["rules", "list", "--json"], words].concat();
        let rules = json(&machine.run(&words));
        let rules = rules["rules"].as_array().expect("a list").clone();
        let pair = |rule: &Value| {
            let text = |key: &str| rule[key].as_str().expect("text").to_owned();
            (text("name"), text("priority").to_lowercase())
        };
        rules.iter().map(pair).collect::<Vec<_>>()
    };
    let has = |rules: &[(String, String)], name: &str, priority: &str| {
        rules.contains(&(name.to_owned(), priority.to_owned()))
    };
    let rules = list(&[]);
    assert!(
        has(&rules, "Own", "warning") && has(&rules, "Read sensitive file untrusted", "warning")
    );
    let rules = list(&["--add-rules", text(&added)]);
    assert!(
        has(&rules, "Own", "warning") && has(&rules, "Read sensitive file untrusted", "notice")
    );
    assert_eq!(
        list(&[text(&alone)]),
        [("Alone".to_owned(), "warning".to_owned())]
    );
    // A file that changes other rules is right beside them, and wrong alone.
    let check = machine.run(&["rules", "check", "--add-rules", text(&added)]);
    assert_eq!(check.code(), 0, "{check:?}");
    assert!(check.stdout.contains("built-in rules: Ok"), "{check:?}");
    let alone = machine.run(&["rules", "check", text(&added)]);
    assert_eq!(alone.code(), 2, "{alone:?}");
    assert!(
        alone
            .stderr
            .contains("`tollgate rules check --add-rules FILE`"),
        "{alone:?}"
    );
    let explained = machine.run(&["rules", "explain", "--json"]);
    assert!(explained.stdout.contains("Own"), "{explained:?}");
}

#[test]
fn run_and_replay_use_added_rules_and_those_of_the_machine() {
    let machine = Machine::new(&[("rules.d/own.yaml", &opens("Own", "marked"))]);
    let added = machine.write("added.yaml", &opens("Added", "marked"));
    let marked = machine.write("marked", "");
    let capture = machine.at("c.scap");
    let options = [
        "--json",
        "-q",
        "-o",
        "rule_matching=all",
        "--add-rules",
        text(&added),
    ];
    let mut words = vec!["run", "-w", text(&capture)];
    words.extend(options);
    words.extend(["--", "cat", text(&marked)]);
    let ran = machine.run(&words);
    let mut words = vec!["replay", text(&capture)];
    words.extend(options);
    let replayed = machine.run(&words);
    for finished in [&ran, &replayed] {
        assert_eq!(finished.code(), 0, "{finished:?}");
        let all = format!("{}{}", finished.stdout, finished.stderr);
        assert!(all.contains("\"rule\":\"Own\""), "{finished:?}");
        assert!(all.contains("\"rule\":\"Added\""), "{finished:?}");
    }
    let replaced = machine.run(&["replay", text(&capture), "--json", "-r", text(&added)]);
    assert!(
        replaced.stdout.contains("\"rule\":\"Added\""),
        "{replaced:?}"
    );
    assert!(
        !replaced.stdout.contains("\"rule\":\"Own\""),
        "{replaced:?}"
    );
}

#[test]
fn tests_of_rules_use_those_of_the_machine_and_add_their_own() {
    let machine = Machine::new(&[("rules.d/own.yaml", &opens("Own", "marked"))]);
    machine.write("beside.yaml", &opens("Beside", "marked"));
    let tests = "add_rules: [beside.yaml]\ntests:\n- name: t\n  event: {evt.type: openat, fd.name: /x/marked}\n  \
                 alerts: [Own, Beside]\n";
    let tests = machine.write("t.yaml", tests);
    let finished = machine.run(&["rules", "test", text(&tests)]);
    assert_eq!(finished.code(), 0, "{finished:?}");
}

#[test]
fn root_refuses_files_that_another_user_can_change() {
    need_root!();
    let machine = Machine::new(&[
        ("config.yaml", "priority: notice\n"),
        ("rules.d/a.yaml", ""),
    ]);
    let run = || machine.run(&["run", "-q", "--", "true"]);
    assert_eq!(run().code(), 0);
    let (config, rule) = (machine.at("config.yaml"), machine.at("rules.d/a.yaml"));
    chown(&config, Some(OTHER), None).expect("root may");
    let fix = format!("help: `chown root:root {}`", text(&config));
    refused(
        &run(),
        &[
            "cannot use configuration",
            "user 65534 owns",
            text(&config),
            &fix,
        ],
    );
    // The file is that user's own, who may have it.
    let mut own = Command::new("setpriv");
    own.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(program())
        .args(["config", "show", "--json"])
        .env("TOLLGATE_CONFIG_DIR", machine.0.path())
        .stdin(Stdio::null());
    assert_eq!(
        shown(
            &json(&Limited::start(&mut own, LIMIT).finish(b"")),
            "priority"
        )
        .0,
        "notice"
    );
    chown(&config, Some(0), None).expect("root may");
    machine.mode("rules.d/a.yaml", 0o666);
    refused(
        &run(),
        &[
            "cannot use the rules",
            "all users can write",
            text(&rule),
            "`chmod go-w",
        ],
    );
    refused(
        &machine.run(&["config", "check"]),
        &["all users can write", text(&rule)],
    );
    machine.mode("rules.d/a.yaml", 0o664);
    refused(&run(), &["group 0 can write", text(&rule), "`chmod g-w"]);
    machine.mode("rules.d/a.yaml", 0o644);
    machine.mode("rules.d", 0o777);
    refused(
        &run(),
        &["all users can write", text(&machine.at("rules.d"))],
    );
    machine.mode("rules.d", 0o755);
    // A file that is included counts as well, and so does one that is named and that all users can write.
    let included = machine.write("more.yaml", "");
    machine.write(
        "config.yaml",
        &format!("config_files: [{}]\n", text(&included)),
    );
    machine.mode("more.yaml", 0o646);
    refused(
        &run(),
        &["config.yaml:1:", "cannot include", text(&included)],
    );
    machine.write("config.yaml", "");
    refused(
        &machine.run(&["run", "-q", "-c", text(&included), "--", "true"]),
        &["all users can write", "`chmod go-w"],
    );
    machine.mode("more.yaml", 0o644);
    assert_eq!(run().code(), 0);
}

/// Kubernetes mounts configuration maps so.
#[test]
fn a_writable_folder_on_a_read_only_mount_is_trusted() {
    need_root!();
    let finished = with_own_etc(
        "mkdir map; : > map/a.yaml; chmod 777 map; mount --bind map /etc/tollgate/rules.d
         $tollgate config check && exit 9
         mount -o remount,bind,ro /etc/tollgate/rules.d
         $tollgate config check",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("all users can write /etc/tollgate/rules.d"),
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("rules.d/a.yaml: Ok"),
        "{finished:?}"
    );
}

#[test]
fn falco_reads_none_of_it() {
    let machine = Machine::new(&[
        ("config.yaml", "priority: nonsense\n"),
        ("rules.d/a.yaml", "- rule: broken\n"),
        ("falco.yaml", "log_syslog: false\n"),
        ("r.yaml", &opens("Falcos", "x")),
    ]);
    let (config, rules) = (machine.at("falco.yaml"), machine.at("r.yaml"));
    let finished = machine.run(&["falco", "-c", text(&config), "-r", text(&rules), "-L"]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(finished.stdout.contains("Falcos"), "{finished:?}");
    refused(
        &machine.run(&["run", "--", "true"]),
        &["config.yaml:1:11: invalid priority `nonsense`"],
    );
}

#[test]
fn config_check_names_file_line_cause_and_suggestion() {
    let machine = Machine::new(&[]);
    let check = |text: &str| {
        let path = machine.write("checked.yaml", text);
        machine.run(&["config", "check", path.to_str().expect("a plain name")])
    };
    assert_eq!(check("outputs: {rate: 5}\n").code(), 0);
    refused(
        &check("json_ouput: true\n"),
        &[
            "checked.yaml:1:1: unknown key `json_ouput`",
            "did you mean `json_output`?",
        ],
    );
    refused(
        &check("outputs:\n  rate: fast\n"),
        &["checked.yaml:2:9: expected a number"],
    );
    refused(&check("rules_files: [/none.yaml]\n"), &["/none.yaml"]);
    refused(
        &machine.run(&["config", "check", "/none.yaml"]),
        &["cannot read configuration /none.yaml"],
    );
    // Without a file: what every run reads.
    machine.write("config.yaml", "priority: none\nnosuch: 1\n");
    refused(
        &machine.run(&["config", "check"]),
        &["config.yaml:1:11: invalid priority"],
    );
    machine.write("config.yaml", "outputs: {rate: 5}\n");
    let finished = machine.run(&["config", "check"]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stdout.contains("config.yaml: Ok")
            && finished.stdout.contains("built-in rules: Ok")
    );
    let failed = machine.run(&["config", "check", "--json", "/none.yaml"]);
    assert_eq!(failed.code(), 2);
    let object: Value = serde_json::from_str(&failed.stdout).expect("it is JSON");
    assert_eq!(object["ok"], false);
}

#[test]
fn what_is_shown_is_a_configuration() {
    let machine = Machine::new(&[(
        "config.yaml",
        "outputs: {rate: 5}\nstatic_fields: {a: 'b: c'}\n",
    )]);
    let show = machine.run(&["config", "show", "-o", "priority=error"]);
    assert_eq!(show.code(), 0, "{show:?}");
    let again = Machine::new(&[("config.yaml", &show.stdout)]);
    let (first, second) = (
        json(&machine.run(&["config", "show", "--json", "-o", "priority=error"])),
        json(&again.run(&["config", "show", "--json"])),
    );
    let keys = first["keys"].as_object().expect("a group");
    assert!(keys.len() > 100, "{}", keys.len());
    for key in keys.keys() {
        assert_eq!(shown(&first, key).0, shown(&second, key).0, "{key}");
    }
}

#[test]
fn a_rule_file_that_is_added_while_a_command_runs_is_loaded() {
    // The filter of a running command has all starts of programs, and not all opens.
    let rule = "- rule: Late\n  desc: d\n  condition: evt.type = execve and proc.name = expr\n  output: o\n  \
                priority: WARNING\n";
    let machine = Machine::new(&[("ready.yaml", rule)]);
    let alerts = machine.at("alerts");
    // The folder does not exist when the command starts.
    let script = format!(
        "cd {}; mkdir rules.d; cp ready.yaml rules.d/new; mv rules.d/new rules.d/late.yaml
         for try in $(seq 400); do
             expr 1 + 1; if grep -q '\"rule\":\"Late\"' alerts; then exit 0; fi; sleep 0.05
         done; exit 9",
        text(machine.0.path())
    );
    let finished = machine.run(&[
        "run",
        "-q",
        "--json",
        "-o",
        "watch_config_files=true",
        "-o",
        "file_output.enabled=true",
        "-o",
        &format!("file_output.filename={}", text(&alerts)),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(finished.code(), 0, "{finished:?}");
}

#[test]
fn containers_are_watched_by_the_rules_of_the_machine() {
    need_runtime!("runc");
    let machine = Machine::new(&[("rules.d/own.yaml", &opens("Own", "secret"))]);
    let ground = RuntimeFixture::new();
    ground.bundle("b", "cat /etc/secret > /tmp/x");
    let (finished, alerts) = ground.run(
        "runc",
        &format!(
            "export TOLLGATE_CONFIG_DIR={}\nsed -i /rules_files/d tollgate.yaml\n\
             rt run --bundle b $ID < /dev/null\nsettle\n",
            text(machine.0.path())
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(
        fields(&alerts, "Own", "fd.name"),
        ["/etc/secret"],
        "{alerts:?}"
    );
}
