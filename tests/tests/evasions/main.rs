//! What the default rules see of ten evasions: the same act under another look.
//!
//! Each row of the table does in a container what a rule must see, as anybody would and in ten other ways, and the
//! table says which rules fired. A way passes if neither the rule nor another one of severity Notice or above fired. `TOLLGATE_EVASIONS=FOLDER`
//! writes the table there. The quick part tries some of the rows; `TOLLGATE_TEST_SLOW=1` tries all.

mod rows;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use e2e::{Environment, SENTINEL, Watch, need_root, slow};

use self::rows::{NOT_TRIED, ROWS, Row};
use self::ways::{OTHER_ROOT, Way, command};

/// What begins the command line of the program that marks the beginning of a part of the script.
const MARK: &str = "true part:";
/// A part whose alerts do not count.
const PREPARATION: &str = "-";
/// The quick part tries one row of this many.
const QUICK: usize = 12;
/// Number of ways that may pass a rule.
const TOLERATED: usize = 2;

/// What a try of a row in one way gave.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// The way has no meaning for what the row does.
    NoMeaning,
    /// The row's rule fired.
    Seen,
    /// Only other rules fired.
    SeenByOthers(BTreeSet<String>),
    /// No rule fired.
    Passed,
}

#[test]
fn a_default_rule_is_tried_or_left_out_with_a_reason() {
    let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
    let rules = e2e::stock_rules(&file).into_iter().map(|rule| rule.name);
    let rules = rules.collect::<BTreeSet<_>>();
    let tried = ROWS
        .iter()
        .map(|row| row.rule.to_owned())
        .collect::<BTreeSet<_>>();
    let left_out = NOT_TRIED.iter().map(|(rule, _)| (*rule).to_owned());
    let left_out = left_out.collect::<BTreeSet<_>>();
    assert_eq!(tried.intersection(&left_out).next(), None);
    let listed = tried.union(&left_out).cloned().collect::<BTreeSet<_>>();
    assert_eq!(rules, listed);
}

#[test]
fn few_evasions_pass_a_default_rule() {
    need_root!();
    let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
    let step = if slow() { 1 } else { QUICK };
    let results = ROWS.iter().step_by(step);
    let results = results.map(|row| (row, tried(row, &file)));
    let results = results.collect::<Vec<_>>();
    if let Some(folder) = env::var_os("TOLLGATE_EVASIONS").map(PathBuf::from) {
        fs::create_dir_all(&folder).expect("the folder can be made");
        fs::write(folder.join("tables.md"), table(&results)).expect("the folder is writable");
    }
    println!("{}", table(&results));
    let mut failures = Vec::new();
    for (row, verdicts) in &results {
        let seen = &verdicts[&Way::Plain];
        if *seen != Verdict::Seen {
            failures.push(format!(
                "{}: the plain act of {:?} is {seen:?}",
                row.rule, row.act
            ));
        }
        let passed = verdicts
            .iter()
            .filter(|(_, verdict)| **verdict == Verdict::Passed);
        let passed = passed.map(|(way, _)| way.name()).collect::<Vec<_>>();
        if passed.len() > TOLERATED {
            failures.push(format!("{} is passed by {}", row.rule, passed.join(", ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Does what a row does in each way, in one run.
fn tried(row: &Row, file: &PathBuf) -> BTreeMap<Way, Verdict> {
    let watched = Watch::script(&script(row))
        .place(Environment::Inside)
        .rules_file(file)
        .rules(SENTINEL)
        .run();
    let mut fired: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut part = PREPARATION.to_owned();
    for alert in &watched.alerts {
        if alert.rule == "Sentinel" {
            let line = alert.field("proc.cmdline");
            if let Some(name) = line.strip_prefix(MARK) {
                part = name.to_owned();
                fired.entry(part.clone()).or_default();
            }
            continue;
        }
        let is_weak = matches!(alert.priority.as_str(), "Informational" | "Debug");
        if !is_weak || alert.rule == row.rule {
            fired
                .entry(part.clone())
                .or_default()
                .insert(alert.rule.clone());
        }
    }
    let verdict = |way: Way| {
        if command(row.act, way).is_none() {
            return Verdict::NoMeaning;
        }
        let Some(rules) = fired.get(way.name()) else {
            panic!(
                "{:?} of {} was not reached\n{}",
                way,
                row.rule,
                watched.story()
            );
        };
        match rules {
            rules if rules.contains(row.rule) => Verdict::Seen,
            rules if rules.is_empty() => Verdict::Passed,
            rules => Verdict::SeenByOthers(rules.clone()),
        }
    };
    Way::ALL.map(|way| (way, verdict(way))).into()
}

/// Writes the script: a part that prepares and a part that acts, for each way.
fn script(row: &Row) -> String {
    let mut script = format!("mkdir -p {OTHER_ROOT}\n");
    if row.is_stand_in {
        let ways::Operation::Start(path, _) = row.act else {
            panic!("{} starts no tool", row.rule);
        };
        _ = writeln!(script, "[ -e {path} ] || : > {path}");
        _ = writeln!(script, "busybox mount --bind /usr/bin/true {path}");
    }
    _ = writeln!(script, "{}", row.before);
    _ = writeln!(script, "busybox mount --rbind / {OTHER_ROOT}");
    for way in Way::ALL {
        let Some(command) = command(row.act, way) else {
            continue;
        };
        _ = writeln!(
            script,
            "/bin/{MARK}'{PREPARATION}'\nrm -f %W/notes %W/other"
        );
        _ = writeln!(script, "{}", row.before);
        let (first, last) = command.rsplit_once('\n').unwrap_or(("", &command));
        _ = writeln!(script, "/bin/{MARK}'{}'\n{first}", way.name());
        _ = writeln!(script, "{}{last} > /dev/null 2>&1", row.input);
    }
    script + ":"
}

fn table(results: &[(&Row, BTreeMap<Way, Verdict>)]) -> String {
    let mut table = String::from("| Rule | What it does");
    for way in Way::ALL {
        _ = write!(table, " | {}", way.name());
    }
    _ = writeln!(table, " |\n|{}", "---|".repeat(2 + Way::ALL.len()));
    for (row, verdicts) in results {
        _ = write!(table, "| {} | {}", row.rule, described(row));
        for verdict in verdicts.values() {
            let cell = match verdict {
                Verdict::NoMeaning => "".to_owned(),
                Verdict::Seen => "seen".to_owned(),
                Verdict::SeenByOthers(rules) => {
                    let rules = rules.iter().map(String::as_str).collect::<Vec<_>>();
                    format!("by {}", rules.join(", "))
                }
                Verdict::Passed => "**passes**".to_owned(),
            };
            _ = write!(table, " | {cell}");
        }
        _ = writeln!(table, " |");
    }
    table
}

/// Returns what a row does, for the table.
fn described(row: &Row) -> String {
    let line = match row.act {
        ways::Operation::Call(_) => "system calls by Perl".to_owned(),
        act => command(act, Way::Plain).expect("every act has a plain way"),
    };
    format!("`{}{}`", row.input, line)
        .replace('|', "\\|")
        .replace("%W", "DIR")
}
