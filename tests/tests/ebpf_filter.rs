//! The filter in the kernel of the engine `ebpf`: it takes nothing away that a rule asks for.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::{Engine, Fixture, Scratch, Watch, WatchResult, builtin_rules, need_root, watch_host_for};
use serde_json::Value;

/// Paths of every form that the kernel's filter knows.
const RULES: &str = "\
- rule: Exact
  desc: one file
  condition: evt.type in (open, openat) and evt.is_open_read=true and fd.name = /usr/bin/env
  output: exact %fd.name
  priority: DEBUG
- rule: Below
  desc: a folder
  condition: evt.type in (open, openat) and fd.directory = /etc/pam.d
  output: below %fd.name
  priority: DEBUG
- rule: Ending
  desc: the end of a name
  condition: evt.type in (open, openat) and fd.num >= 0 and fd.name endswith /target
  output: ending %fd.name
  priority: DEBUG
- rule: Named
  desc: a name in any folder
  condition: evt.type in (open, openat) and fd.filename in (needle, target) and fd.name contains work
  output: named %fd.name
  priority: DEBUG
- rule: Traversal
  desc: a way up in what was passed
  condition: evt.type in (open, openat) and fd.name startswith /etc and fd.nameraw contains \"../\"
  output: traversal %fd.name
  priority: DEBUG
- rule: Up
  desc: a way up, wherever it leads, also where it leads nowhere
  condition: evt.type in (open, openat) and fd.nameraw glob '*../*' and proc.name = cat
  output: up %fd.name
  priority: DEBUG
- rule: Who
  desc: by a process of this name
  condition: evt.type in (open, openat) and proc.name = head and fd.name startswith /etc
  output: who %fd.name
  priority: DEBUG
";

/// Relative and absolute, plain and not, by links, in folders that move.
const PATHS: &str = "\
exec > /dev/null
cd %W && mkdir -p a/b && echo > a/b/target && echo > needle && ln -s a/b/target link
ln -s a/b folder && ln -s /etc/pam.d there && ln -s /usr/bin/env env
cat a/b/target link folder/target ./a/../a/b//target $PWD/link $PWD/folder/../b/target
cat needle $PWD/./needle there/su /etc/pam.d/su /etc/../etc/pam.d/su env /usr/bin/../bin/env /bin/env
head -n1 /etc/hosts /etc/passwd; tail -n1 /etc/hosts; cat missing/target a/b/missing ../nothing/./here /no/../such/../file
mv a moved && cat moved/b/target; cd moved/b && cat target ../b/target
exit 0
";

/// What the alerts say, in an order that does not depend on time.
fn accounts(watched: &WatchResult) -> Vec<String> {
    let folder = watched.scratch.path().display().to_string();
    let account = |alert: &e2e::Alert| {
        format!("{} {}", alert.rule, alert.field("fd.name")).replace(&folder, "")
    };
    let mut accounts: Vec<_> = watched.alerts.iter().map(account).collect();
    accounts.sort();
    accounts
}

fn counter(watched: &WatchResult, name: &str) -> u64 {
    let stats = watched.stats.as_ref().expect("the run writes statistics");
    let value: &Value = &stats["counters"][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name}: {stats}"))
}

#[test]
fn the_filter_in_the_kernel_takes_no_alert_away() {
    need_root!();
    let run = |option: &[&str]| {
        let watch = Watch::script(PATHS).engine(Engine::Ebpf).rules(RULES);
        option
            .iter()
            .fold(watch, |watch, option| watch.option(*option))
            .run()
    };
    let (with, without) = (run(&[]), run(&["--unfiltered"]));
    assert_eq!(accounts(&with), accounts(&without), "{}", with.story());
    for rule in [
        "Exact",
        "Below",
        "Ending",
        "Named",
        "Traversal",
        "Up",
        "Who",
    ] {
        assert!(!with.of(rule).is_empty(), "{rule}: {}", with.story());
    }
    assert!(counter(&with, "rejected_path") > 20, "{}", with.story());
    assert_eq!(counter(&without, "rejected_path"), 0, "{}", without.story());
    nothing_lost([&with, &without]);
}

fn nothing_lost(runs: [&WatchResult; 2]) {
    for watched in runs {
        assert_eq!(
            watched.stats.as_ref().map(|stats| &stats["cur"]["drops"]),
            Some(&Value::from(0))
        );
    }
}

/// Calls that work on names, told by what is passed to them and what that means.
const NAMED: &str = "\
- list: tools
  items: [rm, mv, mkdir, rmdir, chmod, ln, sh]
- rule: Removed
  desc: one file
  condition: evt.type in (unlink, unlinkat) and fs.path.name endswith /target and proc.name in (tools)
  output: removed %fs.path.name %evt.res
  priority: DEBUG
- rule: Renamed
  desc: from or to
  condition: evt.type in (rename, renameat, renameat2) and (fs.path.source contains /secret or fs.path.target contains /secret) and proc.name in (tools)
  output: renamed %fs.path.source %fs.path.target %evt.res
  priority: DEBUG
- rule: Made
  desc: by an argument
  condition: evt.type in (mkdir, mkdirat) and evt.arg.path endswith /hidden and proc.name in (tools)
  output: made %evt.arg.path %evt.res
  priority: DEBUG
- rule: Raw
  desc: as it was passed
  condition: evt.type in (mkdir, mkdirat) and evt.rawarg.path startswith ./ and proc.name in (tools)
  output: raw %evt.rawarg.path %evt.res
  priority: DEBUG
- rule: Mode
  desc: of one file
  condition: evt.type in (chmod, fchmodat, fchmodat2) and fs.path.name glob '*/target' and proc.name in (tools)
  output: mode %fs.path.name %evt.res
  priority: DEBUG
- rule: Linked
  desc: a link to a place
  condition: evt.type in (symlink, symlinkat) and evt.arg.target in (/etc/shadow, target) and proc.name in (tools)
  output: linked %evt.arg.linkpath %evt.arg.target %evt.res
  priority: DEBUG
- rule: Hard link
  desc: another name
  condition: evt.type in (link, linkat) and fs.path.target pmatch (%W/a) and proc.name in (tools)
  output: hard %fs.path.source %fs.path.target %evt.res
  priority: DEBUG
- rule: Not there
  desc: a program that is not there
  condition: evt.type in (execve, execveat) and evt.res != SUCCESS and evt.arg.filename endswith /nothing
  output: missing %evt.arg.filename %evt.res
  priority: DEBUG
- rule: Entered
  desc: a folder
  condition: evt.type = chdir and evt.arg.path in (b, ../b, %W/a) and proc.name in (tools)
  output: entered %evt.arg.path
  priority: DEBUG
";

/// The same by every way that a name can be written.
const NAMES: &str = "\
cd %W && mkdir -p a/b c && echo > a/target && echo > a/b/target && echo > target && echo > secret
ln -s a folder; ln -s /etc/shadow shadow; ln -s target c/link; ln -s /etc/../etc/shadow odd
chmod 600 target a/target ./a/b/../target folder/target %W/a/b/target other; chmod 600 a//b/./target
ln a/target c/hard; ln ./a/b/target c/harder; ln c/hard c/none; ln %W/a/target c/hardest; cd a
ln target ../c/near; ln /dev/../%W/a/target ../c/far; cd ..
mv secret c/secret; mv c/secret ./c/../d; mv d c/./secret; (cd c && mv secret ../e); mv e c/e; mv %W/c/e %W/secretly
mkdir hidden c/hidden ./x %W/c/../y/ c/hidden/ c//hidden2 %W/hidden3; (cd c; mkdir ./hidden/../hid; mkdir hidden/hidden)
rm a/target; rm ./a/b/target; (cd c && rm ../target); rm target; rm %W/nowhere/target; rmdir c/hidden
./nothing; %W/nothing; c/../nothing; /no/nothing; (cd c && ../nothing; ./nothings)
(cd a && cd b && cd ../b && cd %W/a && cd %W/a/b); cd /proc/tty; rm target; mkdir hidden
exit 0
";

fn told(watched: &WatchResult) -> Vec<String> {
    let folder = watched.scratch.path().display().to_string();
    let account = |alert: &e2e::Alert| {
        // Without the time.
        let said = alert.output.split_once("Debug ");
        let said = said.map_or("", |(_, said)| said);
        format!("{}: {said}", alert.rule).replace(&folder, "")
    };
    let mut told: Vec<_> = watched.alerts.iter().map(account).collect();
    told.sort();
    told
}

#[test]
fn names_are_found_however_they_are_written() {
    need_root!();
    let run = |option: &[&str]| {
        let watch = Watch::script(NAMES).engine(Engine::Ebpf);
        let work = watch.scratch().path().join("work").display().to_string();
        let watch = watch.rules(&NAMED.replace("%W", &work));
        let watch = option.iter().fold(watch, |watch, one| watch.option(*one));
        watch.run()
    };
    let (with, without) = (run(&[]), run(&["--unfiltered"]));
    assert_eq!(told(&with), told(&without), "{}", with.story());
    for rule in [
        "Removed",
        "Renamed",
        "Made",
        "Raw",
        "Mode",
        "Linked",
        "Hard link",
        "Not there",
        "Entered",
    ] {
        assert!(!with.of(rule).is_empty(), "{rule}: {}", with.story());
    }
    assert!(counter(&with, "rejected_path") > 10, "{}", with.story());
    nothing_lost([&with, &without]);
}

/// Files of folders that rules name, by their ends, and read through mounts that begin below those folders: there no path
/// ends as it does in the folder.
const MOUNTED: &str = "\
- rule: Glob
  desc: the end of a name below a folder
  condition: evt.type in (open, openat) and fd.name glob '%W/home/*/.keys/id' and proc.name = cat
  output: glob %fd.name
  priority: DEBUG
- rule: Both ends
  desc: a folder and the end of a name
  condition: evt.type in (open, openat) and fd.name startswith %W/home/ and fd.name endswith /.keys/id and proc.name = cat
  output: both %fd.name
  priority: DEBUG
";

const MOUNTS: &str = "\
exec > /dev/null
cd %W
cat home/u/.keys/id link/u/.keys/id %W/home/u/.keys/id %W/link/u/.keys/id
unshare -m sh -c 'mount --bind home/u/.keys at && cat at/id %W/at/id; umount at
mount --bind home/u at && cat at/.keys/id; umount at; mount --bind home/u/.keys/id file && cat file %W/file'
exit 0
";

#[test]
fn files_below_named_folders_are_found_through_mounts_that_begin_further_below() {
    need_root!();
    let run = |option: &[&str]| {
        let watch = Watch::new(["true"]).engine(Engine::Ebpf);
        let folder = watch.scratch().path().join("mounts");
        let inside = |name: &str| folder.join(name);
        // They are there before the rules are: what is named later is looked up later.
        for name in ["home/u/.keys", "at"] {
            fs::create_dir_all(inside(name)).expect("it is ours");
        }
        for name in ["home/u/.keys/id", "file"] {
            fs::write(inside(name), "").expect("it is ours");
        }
        std::os::unix::fs::symlink("home", inside("link")).expect("the name is new");
        let place = folder.display().to_string();
        let script = MOUNTS.replace("%W", &place);
        let watch = watch.command(["sh".to_owned(), "-c".to_owned(), script]);
        let watch = watch.rules(&MOUNTED.replace("%W", &place));
        let watch = option.iter().fold(watch, |watch, one| watch.option(*one));
        watch.run()
    };
    let (with, without) = (run(&[]), run(&["--unfiltered"]));
    assert_eq!(told(&with), told(&without), "{}", with.story());
    // Four times without a mount, five through one.
    for rule in ["Glob", "Both ends"] {
        assert_eq!(with.of(rule).len(), 9, "{rule}: {}", with.story());
    }
    nothing_lost([&with, &without]);
}

/// Connections by each of their ends.
const CONNECTIONS: &str = "\
- rule: Server port
  desc: x
  condition: evt.type in (connect, accept, accept4, bind, listen, sendto, sendmsg, recvfrom) and fd.sport = 40404 and proc.name = crowd
  output: server port %evt.type %fd.sip %fd.l4proto %evt.res
  priority: DEBUG
- rule: Any port
  desc: x
  condition: evt.type in (connect, accept, accept4, sendto, sendmsg, recvfrom) and fd.port in (1, 40404) and proc.name = crowd
  output: any port %evt.type %fd.sip %evt.res
  priority: DEBUG
- rule: Remote
  desc: x
  condition: evt.type in (connect, sendto, sendmsg) and fd.rport >= 40400 and fd.rport < 40410 and proc.name = crowd
  output: remote %evt.type %fd.rip %evt.res
  priority: DEBUG
- rule: Network
  desc: x
  condition: evt.type in (connect, accept, sendto, sendmsg) and fd.snet in (127.0.0.0/30) and proc.name = crowd
  output: network %evt.type %fd.sip %evt.res
  priority: DEBUG
- rule: Address
  desc: x
  condition: evt.type in (connect, accept, sendto, sendmsg) and fd.sip = \"::1\" and proc.name = crowd
  output: address %evt.type %fd.sip %evt.res
  priority: DEBUG
- rule: Other network
  desc: x
  condition: evt.type in (connect, accept, sendto, sendmsg) and fd.net in (10.0.0.0/8, 192.168.0.0/16) and proc.name = crowd
  output: elsewhere %evt.type %fd.name %evt.res
  priority: DEBUG
- rule: Family
  desc: x
  condition: evt.type in (connect, accept, bind, dup, dup2, dup3, sendto) and fd.type = ipv6 and proc.name = crowd
  output: family %evt.type %fd.type %evt.res
  priority: DEBUG
- rule: Unix
  desc: x
  condition: evt.type in (connect, bind, sendto) and fd.sockfamily = unix and proc.name = crowd
  output: unix %evt.type %fd.name %evt.res
  priority: DEBUG
- rule: Letter
  desc: x
  condition: evt.type in (dup, dup2, dup3, accept, accept4) and fd.typechar in (4, 6) and proc.name = crowd
  output: letter %evt.type %fd.typechar %evt.res
  priority: DEBUG
- rule: Outside
  desc: x
  condition: evt.type = listen and container.id = host and proc.name = crowd
  output: outside %container.id
  priority: DEBUG
- rule: Inside
  desc: x
  condition: evt.type = listen and container.id != host and proc.name = crowd
  output: inside %container.id
  priority: DEBUG
";

#[test]
fn ends_of_connections_are_found_in_every_family() {
    need_root!();
    let fixture = Fixture::shared("crowd");
    let run = |option: &[&str]| {
        let watch = Watch::new(["true"]).engine(Engine::Ebpf);
        let crowd = watch.scratch().program(fixture.program(), "crowd");
        let crowd = crowd.display().to_string();
        let watch = watch.rules(CONNECTIONS);
        let watch = option.iter().fold(watch, |watch, one| watch.option(*one));
        // Ports of this test's own, in a network of its own, where no port that is given out is one of
        // those that rules name. What the shell redirects is no connection: two calls each time.
        let script = format!(
            "echo 50000 60000 > /proc/sys/net/ipv4/ip_local_port_range; busybox ifconfig lo up
             {crowd} talk 40404 && {crowd} connect 7 20 9 1
             for i in $(seq 20); do : > /dev/null; done"
        );
        let words = ["unshare", "--net", "sh", "-c"].map(str::to_owned);
        watch.command(words.into_iter().chain([script])).run()
    };
    let (with, without) = (run(&[]), run(&["--unfiltered"]));
    for run in [&with, &without] {
        assert_eq!(run.finished.code(), 0, "{}", run.story());
    }
    assert_eq!(told(&with), told(&without), "{}", with.story());
    for rule in [
        "Server port",
        "Any port",
        "Remote",
        "Network",
        "Address",
        "Family",
        "Unix",
        "Letter",
        "Outside",
    ] {
        assert!(!with.of(rule).is_empty(), "{rule}: {}", with.story());
    }
    for rule in ["Other network", "Inside"] {
        assert!(with.of(rule).is_empty(), "{rule}: {}", with.story());
    }
    assert!(counter(&with, "rejected_socket") >= 40, "{}", with.story());
    assert_eq!(
        counter(&without, "rejected_socket"),
        0,
        "{}",
        without.story()
    );
    nothing_lost([&with, &without]);
}

/// Runs what is looked for a thousand times, with what is not in between; a rule that asks for the first
/// finds it each time, and the other does not leave the kernel.
fn a_thousand_of(what: &str, [this, other]: [&str; 2], rule: &str, counted: &str) {
    let fixture = Fixture::shared("crowd");
    let watch = Watch::new(["true"]).engine(Engine::Ebpf);
    let crowd = watch.scratch().program(fixture.program(), "crowd");
    let [this, other] = [this, other].map(|word| match word.parse::<u16>() {
        Ok(_) => word.to_owned(),
        Err(_) => watch.scratch().file(word, 0o644, "").display().to_string(),
    });
    let rule = format!(
        "- rule: Hidden\n  desc: x\n  condition: {}\n  output: x\n  priority: DEBUG\n",
        rule.replace("THIS", &this)
    );
    let crowd = crowd.display().to_string();
    let command = [&*crowd, what, &this, "1000", &other, "100"];
    let watched = watch
        .rules(&rule)
        .command(command.map(str::to_owned))
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .run();
    assert_eq!(watched.of("Hidden").len(), 1000, "{}", watched.story());
    // What cannot be read at that moment goes through.
    assert!(counter(&watched, counted) >= 99_900, "{}", watched.story());
    assert_eq!(counter(&watched, "lost_bulk"), 0, "{}", watched.story());
}

#[test]
fn a_thousand_files_in_a_crowd_are_all_found() {
    need_root!();
    let rule = "evt.type in (open, openat) and fd.name = THIS";
    a_thousand_of("hide", ["target", "targets"], rule, "rejected_path");
}

/// Watches a program that opens a file for a second which no rule asks for, and one that some rule asks for before and
/// after; returns the former's count, and the result.
fn flooded(rules: &str, other: &str, wanted: &str) -> (u64, WatchResult) {
    let fixture = Fixture::shared("crowd");
    let watch = Watch::new(["true"]).engine(Engine::Ebpf);
    let crowd = watch.scratch().program(fixture.program(), "crowd");
    let script = format!(
        "read -r line < {wanted}; {} flood 1 {other}; read -r line < {wanted}; exit 0",
        crowd.display()
    );
    let watched = watch
        .rules(rules)
        .command(["sh".to_owned(), "-c".to_owned(), script])
        .run();
    let line = watched
        .printed
        .lines()
        .find_map(|line| line.strip_prefix("flooded "));
    let opened = line.unwrap_or_else(|| panic!("no flood: {}", watched.story()));
    (opened.parse().expect("a number"), watched)
}

#[test]
fn the_default_rules_leave_no_open_to_the_agent_that_none_of_them_asks_for() {
    need_root!();
    let (opened, watched) = flooded(&builtin_rules(), "/usr/bin/env", "/etc/shadow");
    assert!(opened > 1000, "{opened}: {}", watched.story());
    let rejected = counter(&watched, "rejected_path");
    assert!(
        rejected >= opened,
        "{rejected} of {opened}: {}",
        watched.story()
    );
    let read = watched.of("Read sensitive file untrusted").len();
    assert_eq!(read, 2, "{}", watched.story());
}

#[test]
fn rules_of_more_kinds_than_the_tables_have_room_for_are_asked_in_the_kernel_all_the_same() {
    need_root!();
    let scratch = Scratch::new();
    let folder = scratch.path().join("x".repeat(100));
    fs::create_dir(&folder).expect("a folder");
    let name = |number: usize| folder.join(format!("{number}-{}", "y".repeat(60)));
    // More demands than there are slots, and more text than the automaton has states.
    let rules: String = (0..300)
        .map(|number| {
            let (path, process) = (name(number).display().to_string(), number % 7);
            let who = match number % 3 {
                0 => format!(" and not proc.name = none-{process}"),
                1 => " and proc.name = sh".to_owned(),
                _ => " and container.id = host".to_owned(),
            };
            format!(
                "- rule: Number {number}\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {path}{who}\n  \
                 output: x\n  priority: DEBUG\n"
            )
        })
        .collect();
    for number in (0..300).step_by(13) {
        let file = name(number);
        fs::write(&file, "a\n").expect("it is ours");
        if number % 39 == 0 {
            let (opened, watched) = flooded(&rules, "/usr/bin/env", &file.display().to_string());
            let rejected = counter(&watched, "rejected_path");
            assert!(
                rejected >= opened,
                "{rejected} of {opened}: {}",
                watched.story()
            );
            let fired = watched.of(&format!("Number {number}")).len();
            assert_eq!(fired, 2, "{number}: {}", watched.story());
        }
    }
}

#[test]
fn a_thousand_removals_in_a_crowd_are_all_found() {
    need_root!();
    let rule = "evt.type in (unlink, unlinkat) and fs.path.name = THIS";
    a_thousand_of("unlink", ["target", "targets"], rule, "rejected_path");
}

#[test]
fn a_thousand_connections_in_a_crowd_are_all_found() {
    need_root!();
    let rule = "evt.type = connect and fd.sport = THIS";
    a_thousand_of("connect", ["40404", "40405"], rule, "rejected_socket");
}

/// Of files outside the root of their process, by the path that `/proc/PID/fd` shows.
const OUTSIDE: &str = "\
- rule: File
  desc: x
  condition: evt.type in (open, openat) and fd.name = %P/b/target and proc.name = crowd
  output: file %fd.name %evt.res
  priority: DEBUG
- rule: Folder
  desc: x
  condition: evt.type in (open, openat) and fd.directory = %P/b and fd.filename startswith tar and proc.name = crowd
  output: folder %fd.name %evt.res
  priority: DEBUG
- rule: Removed
  desc: x
  condition: evt.type in (unlink, unlinkat) and fs.path.name = %P/b/plain and proc.name = crowd
  output: removed %fs.path.name %evt.res
  priority: DEBUG
- rule: Other
  desc: no path that is one of theirs
  condition: evt.type in (open, openat) and fd.name startswith %O/b and proc.name = crowd
  output: other %fd.name
  priority: DEBUG
";

/// Runs `crowd WAY` under each engine: the same is told, with the filter in the kernel and without.
fn engines_agree_outside_the_root(way: &str, is_detached: bool) {
    let fixture = Fixture::shared("crowd");
    let run = |engine, option: &[&str]| {
        let watch = Watch::new(["true"]).engine(engine);
        let crowd = watch.scratch().program(fixture.program(), "crowd");
        let work = watch.scratch().path().join("work").display().to_string();
        let folder = format!("{work}/a");
        let (path, other) = if is_detached {
            ("", &*folder)
        } else {
            (&*folder, "")
        };
        let watch = watch.rules(&OUTSIDE.replace("%P", path).replace("%O", other));
        let watch = option.iter().fold(watch, |watch, one| watch.option(*one));
        let script = format!(
            "mkdir -p {folder}/b && echo > {folder}/b/target && echo > {folder}/b/plain
             {} {way} {folder} b/target 1 b/plain 500",
            crowd.display()
        );
        let told_as = path.replace(&watch.scratch().path().display().to_string(), "");
        let words = ["sh", "-c", &*script].map(str::to_owned);
        (watch.command(words).run(), told_as)
    };
    let runs = [
        run(Engine::Ebpf, &[]),
        run(Engine::Ebpf, &["--unfiltered"]),
        run(Engine::Notify, &[]),
        run(Engine::Ptrace, &[]),
    ];
    for (run, path) in &runs {
        assert_eq!(run.finished.code(), 0, "{}", run.story());
        let expected = [
            format!("File: file {path}/b/target SUCCESS"),
            format!("Folder: folder {path}/b/target SUCCESS"),
            format!("Removed: removed {path}/b/plain SUCCESS"),
        ];
        assert_eq!(told(run), expected, "{}", run.story());
        assert_eq!(counter(run, "undecided"), 0, "{}", run.story());
    }
    let [(filtered, _), ..] = &runs;
    assert!(
        counter(filtered, "rejected_path") >= 500,
        "{}",
        filtered.story()
    );
}

#[test]
fn engines_agree_on_files_of_a_mount_that_is_attached_nowhere() {
    need_root!();
    engines_agree_outside_the_root("detached", true);
}

#[test]
fn engines_agree_on_files_outside_the_root_of_the_process() {
    need_root!();
    engines_agree_outside_the_root("outside", false);
}

const OPENED: &str = "\
- rule: Opened
  desc: x
  condition: evt.type in (open, openat) and fd.num >= 0 and fd.name endswith /target and proc.name = sh
  output: opened %fd.name
  priority: DEBUG
";

/// What was found in a path is remembered by its text, up to some length.
#[test]
fn paths_that_are_alike_or_lead_elsewhere_by_now_are_told_apart() {
    need_root!();
    let script = "\
        cd %W; echo > target; echo > plain
        for len in $(seq 55 70); do
            pad=$((len - ${#PWD} - 8)); [ $pad -gt 0 ] || exit 3
            folder=$PWD/$(printf %0${pad}d 0); mkdir $folder
            for name in target tarxet xarget; do echo > $folder/$name; done
            for i in 1 2 3; do for name in tarxet target xarget; do true < $folder/$name; done; done
        done
        for i in 1 2 3; do true < $PWD/plain; done
        ln -sf target plain; for i in 1 2 3; do true < $PWD/plain; done
        rm plain; ln target plain; for i in 1 2 3; do true < $PWD/plain; done; exit 0";
    let watched = Watch::script(script)
        .engine(Engine::Ebpf)
        .rules(OPENED)
        .run();
    assert_eq!(watched.finished.code(), 0, "{}", watched.story());
    // Of each length made once and read three times, made once here, and read by the link; not by the other
    // name of the same file.
    assert_eq!(
        watched.of("Opened").len(),
        16 * 4 + 1 + 3,
        "{}",
        watched.story()
    );
}

#[test]
fn what_was_found_in_a_path_ends_with_the_rules() {
    need_root!();
    let files = Scratch::new();
    let [first, second] = ["first", "second"].map(|name| files.file(name, 0o644, ""));
    let alerts = files.path().join("alerts");
    let rule = |path: &std::path::Path| {
        format!(
            "- rule: Opened\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {}\n  output: x\n  priority: DEBUG\n",
            path.display()
        )
    };
    let own = files.file("own.yaml", 0o644, rule(&first));
    let output = format!("file_output.filename={}", alerts.display());
    let rules = own.display().to_string();
    let options = [
        "-r",
        &rules,
        "-o",
        "file_output.enabled=true",
        "-o",
        &output,
    ];
    let none = "- list: nothing\n  items: []\n";
    let (_, stats) = watch_host_for(Duration::from_secs(60), &options, none, |watcher| {
        let size = || fs::metadata(&alerts).map_or(0, |data| data.len());
        let open = |path: &std::path::Path| fs::read(path).expect("it is there");
        for _ in 0..100 {
            open(&second);
        }
        assert_eq!(size(), 0, "nobody asks for it");
        fs::write(&own, rule(&second)).expect("it is ours");
        let mut reload = Command::new("kill");
        reload.args(["-HUP", &watcher.to_string()]);
        assert!(reload.status().expect("kill(1) is there").success());
        let start = Instant::now();
        while size() == 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "no alert");
            open(&second);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(stats["cur"]["drops"], 0, "{stats}");
}
