//! Whose child a new process is, in whatever order its engine sees it and its birth, and that no order holds
//! anybody up.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::{Engine, Fixture, Watch, WatchResult};

const MARK: &str = "Mark";
const RULES: &str = "
- rule: Mark
  desc: a file that each process opens
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: o (pid=%proc.pid parent=%proc.ppid name=%proc.pname grandparent=%proc.aname[2])
  priority: INFO
";
/// Far more than any of these takes; a process that is held for ever takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const CHILDREN: usize = 400;

/// Runs the fixture below a shell.
fn births(engine: Engine, words: &[&str]) -> WatchResult {
    let fixture = Fixture::compile("births");
    let watch = Watch::new(["true"])
        .engine(engine)
        .rules(RULES)
        .limit(LIMIT);
    let program = watch.scratch().program(fixture.program(), "births");
    let mark = watch.scratch().file("mark", 0o644, "");
    let script = ["sh", "-c", "\"$0\" \"$@\" && echo ended"].map(str::to_owned);
    let words = words.iter().map(|word| (*word).to_owned());
    let files = [program, mark].map(|path| path.display().to_string());
    let [program, mark] = files;
    let command = script.into_iter().chain([program]).chain(words);
    watch.command(command.chain([mark])).run()
}

/// A child by `CLONE_PARENT` has the parent of its maker in `/proc`. Its maker is its parent, before it runs another
/// program and after.
#[test]
fn children_given_to_the_grandparent_are_their_makers() {
    for engine in [Engine::Notify, Engine::Ptrace, Engine::EveryCall] {
        let count = CHILDREN.to_string();
        let watched = births(engine, &["siblings", &count]);
        assert!(watched.printed.ends_with("ended\n"), "{}", watched.story());
        let maker = watched.printed.lines().next();
        let maker: i64 = maker.and_then(|line| line.parse().ok()).expect("its pid");
        let mut opens = BTreeMap::new();
        for alert in watched.of(MARK) {
            let line = ["proc.pname", "proc.aname[2]"].map(|name| alert.field(name));
            assert_eq!(alert.number("proc.ppid"), maker, "{engine:?}: {line:?}");
            assert_eq!(line, ["births", "sh"], "{engine:?}");
            *opens.entry(alert.number("proc.pid")).or_insert(0) += 1;
        }
        assert_eq!(opens.len(), CHILDREN, "{engine:?}: {}", watched.story());
        assert!(opens.values().all(|count| *count == 2), "{engine:?}");
    }
}

/// A new process may be held until its parent reports it: where that parent waits for it, is killed before, or is
/// replaced by a program that another thread executes.
#[test]
fn storms_of_births_end() {
    for engine in [Engine::Ptrace, Engine::EveryCall] {
        for storm in [["storm", "300"], ["killed", "60"], ["exec", "40"]] {
            let watched = births(engine, &storm);
            let printed = watched.printed.as_str();
            assert_eq!(
                printed,
                "ended\n",
                "{engine:?} {storm:?} {}",
                watched.story()
            );
        }
    }
}
