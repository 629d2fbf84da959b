//! Each rule of the files by tactic (`rules/impact.yaml` and its like), fired by a real program, with a twin that must
//! not fire it. The rules are loaded as they are built in, after those of `rules/default.yaml`; where a tool is missing
//! or would do harm, a link of its name to `true` stands for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use e2e::Environment::{self, Below, Host, Inside};
use e2e::Identity::{self, Root, User};
use e2e::{Case, TestProgram, builtin_rule_files, need_root};

mod command_and_control;
mod credential_access;
mod defense_evasion;
mod execution;
mod exfiltration;
mod impact;
mod persistence;

const CONTAINER: &[Environment] = &[Inside, Below];
const BOTH: &[Identity] = &[Root, User];

/// What root does inside a container, unless the row says otherwise.
const fn act(process: &'static str, command: &'static [&'static str]) -> TestProgram {
    e2e::act(process, command).by(&[Root])
}

/// A script that makes a link of this name to `true` in the work folder and calls it `$t`.
macro_rules! stand_in {
    ($name:literal, $($line:expr),+) => {
        &["sh", "-c", concat!("ln -s /bin/true %W/", $name, "; t=%W/", $name, "\n", $($line, "\n",)+ ":")]
    };
}
pub(crate) use stand_in;

/// A shell script.
macro_rules! script {
    ($($line:expr),+) => {
        &["sh", "-c", concat!($($line, "\n",)+ ":")]
    };
}
pub(crate) use script;

macro_rules! cases {
    ($($name:ident => $case:expr;)*) => {
        $(#[test]
        fn $name() {
            const CASE: Case = $case;
            need_root!();
            assert!(
                CASE.check(&RULES),
                "{} is never the first of the rules that match: the others hide it",
                CASE.rule
            );
        })*

        /// The cases of this module.
        pub(crate) const CASES: &[Case] = &[$($case),*];
    };
}
pub(crate) use cases;

/// The built-in rules that alert by themselves, in one file.
static RULES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tactic_rules");
    fs::create_dir_all(&folder).expect("the folder can be made");
    // A run beside this one reads the file while this one replaces it.
    let new = folder.join(format!("rules.{}", std::process::id()));
    // What sums weights changes other rules, and has no cases.
    let files = builtin_rule_files().into_iter();
    let files = files.filter(|file| !file.ends_with("risk.yaml"));
    let texts = files.map(|file| fs::read_to_string(file).expect("it is part of the repository"));
    fs::write(&new, texts.collect::<Vec<_>>().join("\n")).expect("the folder is writable");
    let file = folder.join("rules.yaml");
    fs::rename(&new, &file).expect("it is in the same folder");
    file
});

#[test]
fn every_rule_by_tactic_has_a_case() {
    let modules = [
        command_and_control::CASES,
        credential_access::CASES,
        defense_evasion::CASES,
        execution::CASES,
        exfiltration::CASES,
        impact::CASES,
        persistence::CASES,
    ];
    let mut cases = BTreeSet::new();
    for case in modules.into_iter().flatten() {
        let name = case.rule;
        assert!(cases.insert(name.to_owned()), "two cases of {name}");
        assert!(!case.fires.is_empty(), "nothing fires {name}");
        assert!(!case.near_misses.is_empty(), "{name} has no near miss");
    }
    let others = ["default.yaml", "counted.yaml", "risk.yaml"];
    let files = builtin_rule_files().into_iter();
    let files = files.filter(|file| !others.iter().any(|other| file.ends_with(other)));
    let rules = files.flat_map(|file| e2e::stock_rules(&file));
    let rules = rules.map(|rule| rule.name).collect::<BTreeSet<_>>();
    assert_eq!(rules, cases);
}
