//! Rules are loaded anew while the command runs: those that the filter of the command serves come
//! into force at once, the others are refused by name, and broken ones change nothing.

use std::time::Duration;

use e2e::{Engine, Fixture, SignalSender, Watch, WatchResult, need_root};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

fn opens(rule: &str, file: &str) -> String {
    format!(
        "- rule: {rule}\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /{file}\n  \
         output: opened %fd.name\n  priority: WARNING\n"
    )
}

const MAKES: &str = "\
- rule: Makes a folder
  desc: d
  condition: evt.type in (mkdir, mkdirat)
  output: made
  priority: WARNING
";

/// Orders the agent to reload, `said` being what the last line of the reload says.
fn reload(file: &str, said: &str) -> String {
    format!(
        "cp {file} rules.yaml; n=$(grep -c '{said}' alerts); {}
         while [ $(grep -c '{said}' alerts) = $n ]; do sleep 0.01; done
         ",
        SignalSender::order(Signal::HUP, "pid")
    )
}

fn run(script: &str, files: &[(&str, &str)]) -> WatchResult {
    run_with(Watch::script(""), script, files)
}

/// As [`run`], with options; rules are named on the command line, and alerts go to a file.
fn run_with(watch: Watch, script: &str, files: &[(&str, &str)]) -> WatchResult {
    let options = [
        "-r",
        "%W/rules.yaml",
        "-o",
        "file_output.enabled=true",
        "-o",
        "file_output.filename=%W/alerts",
    ];
    run_in(watch, script, files, &options)
}

/// `%W` in script, files and options is the folder that they are in.
fn run_in(watch: Watch, script: &str, files: &[(&str, &str)], options: &[&str]) -> WatchResult {
    let watch = watch.limit(LIMIT);
    let work = watch.scratch().path().join("work");
    std::fs::create_dir_all(&work).expect("the scratch folder is writable");
    let in_work = |text: &str| text.replace("%W", &work.display().to_string());
    for (name, text) in files.iter().chain(&[("one", ""), ("two", "")]) {
        std::fs::write(work.join(name), in_work(text)).expect("the scratch folder is writable");
    }
    let _postman = SignalSender::at(&work);
    let at = |name: &str| work.join(name).display().to_string();
    let script = in_work(&format!("cd %W\n{script}"));
    let options = options.iter().map(|option| in_work(option));
    options
        .fold(watch, |watch, option| watch.option(option))
        .option("-P")
        .option(at("pid"))
        .command(["sh", "-c", &script].map(str::to_owned))
        .run()
}

#[test]
fn rules_that_the_filter_serves_come_into_force_and_others_are_refused() {
    let before = opens("First", "one");
    let after = opens("Second", "two") + MAKES;
    let script = String::from(": < one; : < two\n")
        + &reload("after.yaml", "Makes a folder needs calls")
        + ": < one; : < two; mkdir three";
    let watched = run(&script, &[("rules.yaml", &before), ("after.yaml", &after)]);
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{story}");
    assert_eq!(watched.of("First").len(), 1, "{story}");
    assert_eq!(watched.of("Second").len(), 1, "{story}");
    assert!(watched.of("Makes a folder").is_empty(), "{story}");
    let refused = watched.of("Tollgate internal: rule refused");
    let [refused] = refused[..] else {
        panic!("{story}")
    };
    assert!(refused.output.contains("Makes a folder"), "{story}");
    assert!(refused.output.contains("mkdir"), "{story}");
    assert_eq!(watched.of("Tollgate internal: rules loaded").len(), 1);
    // Both sets count.
    let stats = watched.stats.as_ref().expect("a stats file was asked for");
    assert_eq!(stats["counters"]["matched"], 2, "{story}");
}

#[test]
fn broken_rules_leave_those_in_force() {
    let before = opens("First", "one");
    let broken = before.replace("fd.name", "fd.nam");
    let script = reload("broken.yaml", "the old rules remain in force")
        + &reload("missing", "the old rules remain in force")
        + ": < one; : < two";
    let script = script.replace("cp missing rules.yaml", "rm rules.yaml");
    let watched = run(
        &script,
        &[("rules.yaml", &before), ("broken.yaml", &broken)],
    );
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{story}");
    assert_eq!(watched.of("First").len(), 1, "{story}");
    let complaints = watched.of("Tollgate internal: rules not loaded");
    assert_eq!(complaints.len(), 2, "{story}");
    assert!(complaints[0].output.contains("fd.nam"), "{story}");
    assert!(complaints[1].output.contains("rules.yaml"), "{story}");
}

#[test]
fn a_wider_set_of_the_same_calls_is_taken_over_again_and_again() {
    let (narrow, wide) = (
        opens("First", "one"),
        opens("First", "one") + &opens("Second", "two"),
    );
    let mut script = String::new();
    for _ in 0..20 {
        script += &reload("narrow.yaml", "1 rule in force");
        script += ": < two; : < one\n";
        script += &reload("wide.yaml", "2 rules in force");
        script += ": < two; : < one\n";
    }
    let files = [
        ("rules.yaml", &*wide),
        ("narrow.yaml", &*narrow),
        ("wide.yaml", &*wide),
    ];
    let watched = run(&script, &files);
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{story}");
    assert_eq!(watched.of("First").len(), 40, "{story}");
    assert_eq!(watched.of("Second").len(), 20, "{story}");
}

/// An io_uring opens files past the engine: only the file system tells.
#[test]
fn files_that_rules_name_from_now_on_are_watched_by_the_tripwire_too() {
    let literal = |file: &str| opens("Literal", file).replace("endswith /", "= %W/");
    let watch = Watch::script("").option("--io-uring").option("allow");
    let racer = Fixture::compile("racer");
    let program = watch.scratch().program(racer.program(), "racer");
    let open = format!("{} ringopen %W", program.display());
    let script = format!(
        "{open}/two; {}sleep 1.2; {open}/two; {open}/one",
        reload("after.yaml", "1 rule in force")
    );
    let files = [
        ("rules.yaml", literal("one")),
        ("after.yaml", literal("two")),
    ];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let watched = run_with(watch, &script, &files);
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{story}");
    let unseen = watched.of("Tollgate internal: sensitive file opened unseen");
    // Neither before it was named nor after its rule was gone.
    let [unseen] = unseen[..] else {
        panic!("{story}")
    };
    assert!(unseen.field("fd.name").ends_with("/two"), "{story}");
}

/// Waits until a line is said once more than before.
fn until_said(said: &str, change: &str) -> String {
    format!(
        "n=$(grep -c '{said}' alerts); {change}
         while [ $(grep -c '{said}' alerts) = $n ]; do sleep 0.01; done
         "
    )
}

#[test]
fn changed_files_are_loaded_without_an_order_and_broken_ones_change_nothing() {
    let before = opens("First", "one");
    let after = opens("Second", "two");
    let config = "rules_files: [%W/rules.yaml]\nwatch_config_files: true\n\
        file_output: {enabled: true, filename: %W/alerts}\n";
    let disabling = format!("{config}rules: [{{disable: {{rule: Sec*}}}}]\nverify: always\n");
    let script = until_said("1 rule in force", "cp after.yaml new; mv new rules.yaml")
        + &until_said(
            "the old rules remain in force",
            "echo '- rule: [' > rules.yaml",
        )
        + ": < one; : < two\n"
        + &until_said("1 rule in force", "cp after.yaml rules.yaml")
        + &until_said("only a restart", "cp config2 config.yaml")
        + ": < two";
    let watch = Watch::script("");
    let config_file = watch.scratch().path().join("work/config.yaml");
    let watch = watch.option("-c").option(config_file.display().to_string());
    let watched = run_in(
        watch,
        &script,
        &[
            ("rules.yaml", &before),
            ("after.yaml", &after),
            ("config.yaml", config),
            ("config2", &disabling),
        ],
        &[],
    );
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{story}");
    assert!(watched.of("First").is_empty(), "{story}");
    assert_eq!(watched.of("Second").len(), 1, "{story}");
    let complaints = watched.of("Tollgate internal: rules not loaded");
    assert!(!complaints.is_empty(), "{story}");
    let left = watched.of("Tollgate internal: settings not taken over");
    assert!(left[0].output.contains("verify"), "{story}");
}

// In bursts, because an engine that holds nothing up lets all pass before the first change.
const BURSTS: usize = 40;
const BURST: usize = 100;
const OPENS: usize = BURSTS * BURST;
const CHANGES: usize = 12;

/// Opens a file again and again, and exchanges the configuration meanwhile.
fn load_and_changes() -> String {
    let mut script = format!(
        ": > alerts.1; : > alerts.2\n\
         (b=0; while [ $b -lt {BURSTS} ]; do i=0; while [ $i -lt {BURST} ]; do : < one; i=$((i+1)); done\n\
         sleep 0.05; b=$((b+1)); done) & load=$!\n"
    );
    for change in 0..CHANGES {
        let from = change % 2 + 1;
        script += &format!(
            "n=$(cat alerts.? | grep -c 'in force'); cp config{from} new; mv new config.yaml\n\
             while [ $(cat alerts.? | grep -c 'in force') = $n ]; do sleep 0.01; done\n"
        );
    }
    script += "wait $load";
    script
}

/// Each change has alerts go to another file; rules change with it, and what is said of it.
fn outputs_and_rules_are_exchanged_under_load(engine: Engine) {
    let config = |file: usize| {
        format!(
            "rules_files: [%W/rules{file}.yaml]\nwatch_config_files: true\nbuffered_outputs: {}\n\
             file_output: {{enabled: true, keep_alive: true, filename: %W/alerts.{file}}}\n",
            file == 2
        )
    };
    let script = load_and_changes();
    let watch = Watch::script("").engine(engine);
    let work = watch.scratch().path().join("work");
    let config_file = work.join("config.yaml").display().to_string();
    let watch = watch.option("-c").option(config_file);
    let (first, second) = (config(1), config(2));
    let rules = opens("First", "one");
    // Where the filter can be replaced it is: one set asks for another call, and for a wider path.
    let more = rules.clone() + &opens("Second", "two") + MAKES;
    let files = [
        ("rules1.yaml", rules.as_str()),
        ("rules2.yaml", &more),
        ("config.yaml", &first),
        ("config1", &second),
        ("config2", &first),
    ];
    let watched = run_in(watch, &script, &files, &[]);
    let story = watched.story();
    assert_eq!(watched.code(), 0, "{}", &story[..story.len().min(4000)]);
    assert_eq!(watched.of("First").len(), OPENS, "{engine:?}");
    let count = |file: usize| {
        let text = std::fs::read_to_string(work.join(format!("alerts.{file}")));
        let text = text.expect("it was written");
        text.lines().filter(|line| line.contains("opened ")).count()
    };
    assert_eq!(count(1) + count(2), OPENS, "{} and {}", count(1), count(2));
    assert!(
        count(1) > 0 && count(2) > 0,
        "{} and {}",
        count(1),
        count(2)
    );
    let loads = watched.of("Tollgate internal: rules loaded").len();
    assert!(loads >= CHANGES, "{loads}");
    let refused = watched.of("Tollgate internal: rule refused").len();
    assert_eq!(refused > 0, engine != Engine::Ebpf, "{refused} refused");
    let stats = watched.stats.as_ref().expect("a stats file was asked for");
    assert_eq!(stats["cur"]["drops"], 0, "{engine:?}: {stats}");
}

#[test]
fn outputs_and_rules_are_exchanged_under_load_and_no_alert_is_lost() {
    outputs_and_rules_are_exchanged_under_load(Engine::Notify);
}

#[test]
fn under_ptrace_outputs_and_rules_are_exchanged_under_load_and_no_alert_is_lost() {
    outputs_and_rules_are_exchanged_under_load(Engine::Ptrace);
}

#[test]
fn under_ebpf_outputs_and_rules_are_exchanged_under_load_and_no_alert_is_lost() {
    need_root!();
    outputs_and_rules_are_exchanged_under_load(Engine::Ebpf);
}
