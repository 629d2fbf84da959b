//! Whose child a process is, when its parent had ended before anybody saw the process.

use e2e::{Engine, Fixture, Watch, WatchResult};

const RULE: &str = "Shell of a server";

const RULES: &str = "
- rule: Shell of a server
  desc: a shell among the descendants of a server
  condition: >
    evt.type in (execve, execveat) and proc.name = sh and proc.args contains orphan
    and proc.aname = nginx
  output: shell (name=%proc.name parent=%proc.pname ancestors=%proc.aname)
  priority: WARNING
";

/// Runs the orphan maker under a name; `CLAIM` is the shell that started it.
fn orphan(name: &str, how: &str) -> WatchResult {
    let fixture = Fixture::compile("orphan");
    let script = "CLAIM=$$; export CLAIM; \"$0\" \"$1\" \"$2\" & wait; sleep 0.3";
    let watch = Watch::new(["true"]).rules(RULES);
    let program = watch.scratch().program(fixture.program(), name);
    let other = watch.scratch().program(fixture.program(), "nginx");
    let (program, other) = (program.display().to_string(), other.display().to_string());
    let words = ["sh", "-c", script, &program, how, &other];
    watch.command(words.map(str::to_owned)).run()
}

#[test]
fn a_server_cannot_disown_its_shells() {
    for how in ["fork", "killed", "thread"] {
        let watched = orphan("nginx", how);
        let alerts = watched.of(RULE);
        assert_eq!(alerts.len(), 1, "{how}: {}", watched.story());
        assert_eq!(alerts[0].field("proc.name"), "sh", "{how}");
    }
}

/// A process that has been seen long ago is still the parent of its children, however many others have been seen since.
#[test]
fn a_parent_is_not_forgotten_while_it_lives() {
    const CHILDREN: usize = 9000;
    let rules = "- rule: Child\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /nowhere\n  \
                 output: o (parent=%proc.ppid)\n  priority: INFO\n";
    let script = format!(
        "$| = 1; print \"$$\\n\";
         for (1 .. {CHILDREN}) {{ if (!fork) {{ open my $f, '<', '/nowhere'; POSIX::_exit(0) }} wait }}"
    );
    let watched = Watch::new(["perl", "-MPOSIX", "-e", &script])
        .rules(rules)
        .limit(std::time::Duration::from_secs(240))
        .run();
    let parent: u64 = watched.printed.trim().parse().expect("its number");
    let alerts = watched.of("Child");
    assert_eq!(alerts.len(), CHILDREN);
    let parents = alerts
        .iter()
        .map(|alert| alert.fields["proc.ppid"].as_u64());
    let other = parents
        .enumerate()
        .find(|(_, other)| *other != Some(parent));
    assert_eq!(other, None, "the parent is {parent}");
}

#[test]
fn who_adopts_orphans_is_not_their_parent() {
    let watched = orphan("minit", "reaper");
    assert_eq!(watched.of(RULE).len(), 1, "{}", watched.story());
}

#[test]
fn nobody_is_taken_for_the_child_of_another() {
    let watched = orphan("nginx", "forge");
    assert_eq!(watched.of(RULE).len(), 1, "{}", watched.story());
}

#[test]
fn orphans_of_others_are_not_a_servers() {
    for how in ["fork", "thread"] {
        let watched = orphan("plain", how);
        assert!(watched.of(RULE).is_empty(), "{how}: {}", watched.story());
    }
}

#[test]
fn the_limit_that_tells_can_be_set_in_vain() {
    let watched = orphan("plain", "limit");
    let traced = Engine::under_test() != Engine::Notify;
    let expected = if traced {
        "set 0 both 0\n"
    } else {
        "set 0 both 1\n"
    };
    assert!(watched.printed.contains(expected), "{}", watched.story());
}
