//! Rules see below every login and in every container: none leaves out what is an ancestor of everything.
//!
//! `proc.aname` reaches the first process of the machine or of the container. A rule with `not proc.aname in (LIST)` whose
//! list holds `systemd` never fires on a host that systemd started. One test evaluates each rule with nothing known but
//! its ancestors: it must stay possible. The other reads the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use event::EventKind;
use rules::synthetic_event::{SyntheticEvent, SyntheticValue, UnsetFields};
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

/// The files that are loaded before others, in this order.
const FIRST: [&str; 3] = ["default.yaml", "counted.yaml", "risk.yaml"];

/// Ancestors of everything: on a host, in a container, below a terminal.
const OF_EVERYTHING: &[&str] = &[
    "(systemd)",
    "agetty",
    "anacron",
    "ash",
    "atd",
    "bash",
    "catatonit",
    "code",
    "conmon",
    "containerd",
    "containerd-shim",
    "containerd-shim-",
    "cri-o",
    "crio",
    "cron",
    "crond",
    "crun",
    "dash",
    "doas",
    "docker",
    "docker-init",
    "dockerd",
    "dropbear",
    "dumb-init",
    "env",
    "exe",
    "fish",
    "frontend",
    "gdm-session-wor",
    "getty",
    "gnome-shell",
    "init",
    "java",
    "ksh",
    "kubelet",
    "login",
    "lxc-start",
    "mksh",
    "node",
    "nohup",
    "npm",
    "openrc-init",
    "pause",
    "perl",
    "php",
    "pnpm",
    "podman",
    "process_api",
    "python",
    "python3",
    "ruby",
    "run-parts",
    "runc",
    "runit",
    "runsv",
    "runsvdir",
    "s6-supervise",
    "s6-svscan",
    "screen",
    "script",
    "sh",
    "sshd",
    "sshd-session",
    "su",
    "sudo",
    "supervisord",
    "systemd",
    "systemd-executo",
    "tini",
    "tmux",
    "tmux: server",
    "uv",
    "xinetd",
    "yarn",
    "zsh",
];

/// Names that are compared with `proc.aname` all the same: the list or name as a rule writes it, the name, and why.
const ACCEPTED: &[(&str, &str, &str)] = &[
    (
        "language_package_tools",
        "npm",
        "only with a command line that begins with it and installs",
    ),
    (
        "language_package_tools",
        "pnpm",
        "only with a command line that begins with it and installs",
    ),
    (
        "language_package_tools",
        "uv",
        "only with a command line that begins with it and installs",
    ),
    (
        "language_package_tools",
        "yarn",
        "only with a command line that begins with it and installs",
    ),
    (
        "other_servers",
        "runsv",
        "no rule leaves it out: what it starts makes alerts",
    ),
    (
        "schedulers",
        "anacron",
        "rules about what jobs do for a living; below a login there is none",
    ),
    (
        "schedulers",
        "atd",
        "rules about what jobs do for a living; below a login there is none",
    ),
    (
        "schedulers",
        "cron",
        "rules about what jobs do for a living; below a login there is none",
    ),
    (
        "schedulers",
        "crond",
        "rules about what jobs do for a living; below a login there is none",
    ),
    (
        "schedulers",
        "run-parts",
        "rules about what jobs do for a living; below a login there is none",
    ),
    ("login", "login", "the rule is about what is below a login"),
    ("sshd", "sshd", "the rule is about what is below a login"),
    (
        "sshd-session",
        "sshd-session",
        "the rule is about what is below a login",
    ),
    (
        "doas",
        "doas",
        "a rule asks for it and does not leave it out",
    ),
    (
        "sudo",
        "sudo",
        "a rule asks for it and does not leave it out",
    ),
    (
        "podman",
        "podman",
        "only with a program in memory by which it builds images",
    ),
];

struct Nowhere;

impl AlertSink for Nowhere {
    fn emit(&self, _: Alert) {}
}

/// Ancestors, the parent first, each with its command line.
type Chain = &'static [(&'static str, &'static str)];

const CHAINS: &[(&str, Chain)] = &[
    (
        "a login to a host with systemd",
        &[
            ("bash", "bash"),
            ("sshd", "sshd -D"),
            ("systemd", "systemd"),
        ],
    ),
    (
        "a terminal of a desktop",
        &[
            ("bash", "bash"),
            ("gnome-terminal-", "gnome-terminal-"),
            ("systemd", "systemd --user"),
            ("systemd", "systemd"),
        ],
    ),
    (
        "a container, seen from its host",
        &[
            ("sh", "sh"),
            ("containerd-shim", "containerd-shim -id x"),
            ("systemd", "systemd"),
        ],
    ),
    (
        "a container whose first process is npm",
        &[
            ("sh", "sh"),
            ("node", "node server.js"),
            ("npm", "npm start"),
            ("sh", "sh -c npm install && npm start"),
            ("runc", "runc init"),
            ("containerd-shim", "containerd-shim -id x"),
        ],
    ),
];

/// Rules that cannot hold below these chains, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("DB program spawned process", "the parent is a database"),
    (
        "Directory traversal monitored file read",
        "what a person types at a shell is left out: the parent is none",
    ),
    ("Run shell untrusted", "an ancestor is a server"),
    ("Shell started by a text tool", "the parent is a tool"),
    (
        "Shell started by an editor or a pager",
        "the parent is an editor or a pager",
    ),
    ("Terminal shell in container", "the parent is a runtime"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rules")
}

/// Returns all files of rules below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the rules are part of the repository") {
        let path = entry.expect("the rules are part of the repository").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "yaml") {
            found.push(path);
        }
    }
    found
}

/// Returns the text of each file of rules, in the order of loading. `notes.yaml` has no rules.
fn texts() -> Vec<(String, String)> {
    let folder = folder();
    let mut files = files(&folder);
    let rank = |path: &PathBuf| {
        let at = FIRST.iter().position(|first| *path == folder.join(first));
        (at.unwrap_or(FIRST.len()), path.clone())
    };
    files.sort_by_key(rank);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("it is text");
        (path.display().to_string(), text)
    };
    let texts = files.into_iter().map(read);
    texts
        .filter(|(_, text)| text.contains("\n- rule: "))
        .collect()
}

fn ruleset() -> Ruleset {
    let loader = texts()
        .into_iter()
        .fold(Loader::new(), |loader, (name, text)| {
            loader.add(&name, &text)
        });
    let (ruleset, problems) = loader.finish();
    let errors: Vec<_> = problems
        .iter()
        .filter(|problem| problem.is_error())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    ruleset
}

/// Makes an event of which nothing is known but its ancestors.
fn below(kind: EventKind, chain: Chain) -> SyntheticEvent {
    let mut event = SyntheticEvent::new(kind.name(), UnsetFields::Unknown).expect("it has a name");
    let mut give =
        |field: &str, value: SyntheticValue| event.give(field, &value).expect("it has this type");
    let many = |of: fn(&(&'static str, &'static str)) -> &'static str| {
        SyntheticValue::Many(chain.iter().map(|one| of(one).to_owned()).collect())
    };
    give("proc.aname", many(|(name, _)| name));
    give("proc.acmdline", many(|(_, command)| command));
    give("proc.pname", SyntheticValue::One(chain[0].0.to_owned()));
    give("proc.pcmdline", SyntheticValue::One(chain[0].1.to_owned()));
    for (at, (name, command)) in chain.iter().enumerate() {
        give(
            &format!("proc.aname[{}]", at + 1),
            SyntheticValue::One((*name).to_owned()),
        );
        give(
            &format!("proc.acmdline[{}]", at + 1),
            SyntheticValue::One((*command).to_owned()),
        );
    }
    event
}

/// Returns the rules that match no event below a chain, whatever its other fields are, with the index of that chain.
fn impossible(ruleset: &Ruleset, chains: &[(&str, Chain)]) -> BTreeSet<(usize, String)> {
    let (engine, problems) = Engine::new(ruleset, &EngineOptions::default(), Box::new(Nowhere));
    assert!(problems.is_empty(), "{problems:?}");
    let all = || ruleset.rules.iter().map(|rule| rule.name.to_string());
    let lost = |(at, (_, chain)): (usize, &(&str, Chain))| {
        let mut names: BTreeSet<String> = all().collect();
        for kind in EventKind::all() {
            let succeeded = below(kind, chain);
            let mut failed = succeeded.clone();
            // A call without a result is taken as one that succeeded.
            let error = SyntheticValue::One("ECONNREFUSED".to_owned());
            failed.give("evt.res", &error).expect("it is a text");
            for event in [&succeeded, &failed] {
                let results = engine.evaluate_synthetic(event);
                let matched = results.alerts.iter().map(|alert| &alert.rule);
                for name in matched.chain(&results.undecided) {
                    names.remove(&**name);
                }
            }
        }
        names.into_iter().map(move |name| (at, name))
    };
    chains.iter().enumerate().flat_map(lost).collect()
}

#[test]
fn every_rule_can_match_below_logins_and_in_containers() {
    let ruleset = ruleset();
    assert!(ruleset.rules.len() > 100, "{}", ruleset.rules.len());
    let (mut used, mut lost) = (BTreeSet::new(), String::new());
    for (chain, rule) in impossible(&ruleset, CHAINS) {
        if !ELSEWHERE.iter().any(|(name, _)| *name == rule) {
            lost += &format!("{rule} never matches below {}\n", CHAINS[chain].0);
        }
        used.insert(rule);
    }
    assert!(lost.is_empty(), "{lost}");
    let named: BTreeSet<_> = ELSEWHERE
        .iter()
        .map(|(rule, _)| (*rule).to_owned())
        .collect();
    assert_eq!(named, used, "a rule that is excused can match everywhere");
}

#[test]
fn a_rule_that_leaves_out_systemd_is_found() {
    let rule = |name: &str, condition: &str| {
        format!(
            "- rule: {name}\n  desc: d\n  condition: {condition}\n  output: o\n  priority: INFO\n"
        )
    };
    let text = rule(
        "All",
        "evt.type = creat and not proc.aname in (puppet, systemd)",
    ) + &rule(
        "Parent",
        "evt.type = creat and not proc.pname in (puppet, systemd)",
    );
    let (ruleset, problems) = Loader::new().add("r.yaml", &text).finish();
    assert!(problems.is_empty(), "{problems:?}");
    let found = impossible(&ruleset, &CHAINS[..1]);
    assert_eq!(found, BTreeSet::from([(0, "All".to_owned())]));
}

/// Splits the items of a list in brackets or parentheses.
fn words(text: &str, close: char) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            '"' | '\'' => quoted = !quoted,
            end if end == close && !quoted => break,
            ',' if !quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    let trimmed = words
        .iter()
        .map(|word| word.split_whitespace().collect::<Vec<_>>().join(" "));
    trimmed.filter(|word| !word.is_empty()).collect()
}

/// Returns the lists of all files by name.
fn lists(texts: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let items = texts
        .iter()
        .flat_map(|(_, text)| text.split("\n- list: ").skip(1));
    let list = |item: &str| {
        let (name, rest) = item.split_once('\n').expect("a list has items");
        let (_, items) = rest.split_once('[').expect("items stand in brackets");
        (name.trim().to_owned(), words(items, ']'))
    };
    items.map(list).collect()
}

/// Returns what `proc.aname` without an index is compared with.
fn compared(texts: &[(String, String)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, text) in texts {
        for after in text.split("proc.aname").skip(1) {
            let after = after.trim_start();
            if let Some(set) = after.strip_prefix("in ") {
                all.extend(words(set.trim_start().trim_start_matches('('), ')'));
            } else if let Some(word) = after.strip_prefix("= ") {
                let end = word.find(|c: char| c.is_whitespace() || c == ')');
                all.insert(
                    word[..end.unwrap_or(word.len())]
                        .trim_matches('"')
                        .to_owned(),
                );
            }
        }
    }
    all
}

/// Returns the names that a word stands for.
fn names(word: &str, lists: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    match lists.get(word) {
        Some(items) => items.iter().flat_map(|item| names(item, lists)).collect(),
        None => vec![word.to_owned()],
    }
}

#[test]
fn no_list_of_ancestors_has_an_ancestor_of_everything() {
    let texts = texts();
    let lists = lists(&texts);
    let words = compared(&texts);
    assert!(
        words.contains("configuration_agents") && words.contains("telegraf"),
        "{words:?}"
    );
    let (mut used, mut wrong) = (BTreeSet::new(), String::new());
    for word in &words {
        let all = names(word, &lists).into_iter();
        for name in all.filter(|name| OF_EVERYTHING.contains(&name.as_str())) {
            let is_accepted = ACCEPTED
                .iter()
                .any(|(of, accepted, _)| of == word && *accepted == name);
            if !is_accepted {
                wrong += &format!("`proc.aname` is compared with {word}, which holds {name}\n");
            }
            used.insert((word.clone(), name));
        }
    }
    assert!(wrong.is_empty(), "ancestors of everything:\n{wrong}");
    let accepted: BTreeSet<_> = ACCEPTED
        .iter()
        .map(|(word, name, _)| ((*word).to_owned(), (*name).to_owned()))
        .collect();
    assert_eq!(
        accepted, used,
        "a name that is accepted is compared no longer"
    );
}
