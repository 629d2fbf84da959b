//! Each way of `fixtures/ways.c` to do what a rule is about, under each engine and in each place: what becomes of
//! it. The table is `docs/reference/attacks.md`; `BLESS=1` writes it anew.
//!
//! A way counts as what was proven of it: an alert that names it, a refusal that was reported, a report that it
//! could not be evaluated. A way that succeeds and gives none of these is silent, and fails the test unless the
//! documents list it as a limit. A way that does not alert is gone alone in one of the places, which its name
//! chooses, and in all of them when slow tests are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::{
    Alert, Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root, repository, slow,
};

/// Where attacks are made: name of the column, place, user.
const PLACES: [(&str, Environment, Identity); 4] = [
    ("host, root", Environment::Host, Identity::Root),
    ("host, user", Environment::Host, Identity::User),
    ("container", Environment::Below, Identity::Docker),
    (
        "container, tollgate is pid 1",
        Environment::Inside,
        Identity::Docker,
    ),
];

const ENGINES: [(&str, Engine); 3] = [
    ("notify", Engine::Notify),
    ("ptrace", Engine::Ptrace),
    ("ebpf", Engine::Ebpf),
];

const TABLE: &str = "docs/reference/attacks.md";

/// What a cell says of a way that was not gone alone in its place; it agrees with everything.
const ELSEWHERE: &str = "?";

/// What a cell says of a way that does not work in its place.
const IMPOSSIBLE: &str = "-";

/// How the names of ways begin that are races.
const RACE: &str = "r_";

/// A way that is silent, or refused without a word, and the document that lists it.
#[derive(Debug)]
struct Listed {
    /// `*` at the end of these three: each that begins so.
    way: &'static str,
    engine: &'static str,
    place: &'static str,
    /// The page with the limit, in its section "Limits".
    page: &'static str,
    /// How the limit begins.
    words: &'static str,
}

const LIMITS: [Listed; 6] = [
    Listed {
        way: "a_*",
        engine: "ebpf",
        place: "*",
        page: "docs/howto/watch-a-host.md",
        words: "`run --engine ebpf` has no keeper",
    },
    Listed {
        way: "f_listener",
        engine: "notify",
        place: "*",
        page: "docs/howto/watch-a-command.md",
        words: "A workload's own supervisor (a second listener) cannot be made",
    },
    Listed {
        way: "f_listener",
        engine: "ptrace",
        place: "*",
        page: "docs/howto/watch-by-ptrace.md",
        words: "A listener of the workload's own under the engine `ptrace` is refused",
    },
    Listed {
        way: "o_untraced",
        engine: "ptrace",
        place: "*",
        page: "docs/howto/watch-by-ptrace.md",
        words: "Children made with `CLONE_UNTRACED` under the engine `ptrace` have no tracer",
    },
    Listed {
        way: "r_registers",
        engine: "ptrace",
        place: "*",
        page: "docs/howto/watch-by-ptrace.md",
        words: "Debuggers and `strace` in a workload under the engine `ptrace`",
    },
    Listed {
        way: "h_link_fd",
        engine: "*",
        place: "*",
        page: "docs/howto/write-rules.md",
        words: "`linkat` of `/proc/self/fd/N` has that name as its source",
    },
];

/// What became of a way, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It cannot be gone there, unwatched either.
    Impossible,
    /// A rule's alert names it.
    Alert,
    /// It failed, succeeds unwatched, and an alert reports the refusal.
    Denied,
    /// It was aimed at the processes that watch and changed nothing.
    NoEffect,
    /// An alert reports that it could not be evaluated, or what is wrong with its caller.
    Reported,
    /// It failed without a word and succeeds unwatched.
    Broken,
    /// It succeeded without a word.
    Silent,
    /// It was not gone alone here, but in another place.
    Elsewhere,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Impossible => IMPOSSIBLE,
            Self::Alert => "alert",
            Self::Denied => "denied",
            Self::NoEffect => "no effect",
            Self::Reported => "reported",
            Self::Broken => "refused, not told",
            Self::Silent => "limit",
            Self::Elsewhere => ELSEWHERE,
        }
    }
}

/// One way, as the program lists it.
#[derive(Clone, Debug)]
struct Way {
    id: String,
    kind: String,
    what: String,
}

/// The compiled program and what it lists.
struct Ways {
    fixture: Fixture,
    all: Vec<Way>,
}

impl Ways {
    fn new() -> Self {
        let fixture = Fixture::compile("ways");
        let output = std::process::Command::new(fixture.program())
            .arg("list")
            .output();
        let text = String::from_utf8(output.expect("it was compiled").stdout).expect("it is ASCII");
        let way = |line: &str| {
            let mut words = line.split('\t').map(str::to_owned);
            let (id, kind, what) = (words.next()?, words.next()?, words.next()?);
            Some(Way { id, kind, what })
        };
        let all = text.lines().filter_map(way).collect();
        Self { fixture, all }
    }
}

/// The rules that the ways are about, for what lies below `vault`.
fn rules(vault: &Path, ways: &[Way]) -> String {
    let vault = vault.display();
    let files: Vec<_> = ways
        .iter()
        .map(|way| format!("{vault}/{}/secret", way.id))
        .collect();
    let fields = "way=%proc.cmdline name=%fd.name exe=%proc.exepath";
    let change = "rename, renameat, renameat2, unlink, unlinkat, link, linkat, symlink, symlinkat, mkdir, mkdirat, \
                  chmod, fchmod, fchmodat, fchmodat2, mknod, mknodat";
    let mut text = String::new();
    let open =
        "evt.type in (open, openat, openat2, creat, open_by_handle_at) and not proc.name = sshd";
    for (name, condition) in [
        (
            "Open by literal",
            format!("{open} and fd.name in ({})", files.join(", ")),
        ),
        (
            "Open by folder",
            format!("{open} and fd.name startswith {vault}/"),
        ),
        (
            "Write",
            format!("evt.type = openat2 and evt.is_open_write = true and fd.name startswith {vault}/"),
        ),
        (
            "Connect",
            "evt.type in (connect, sendto, sendmsg, sendmmsg) and fd.snet in (127.77.0.0/24)".to_owned(),
        ),
        ("Bind", "evt.type = bind and fd.snet in (127.77.0.0/24)".to_owned()),
        (
            "Change",
            format!(
                "evt.type in ({change}) and (fs.path.name startswith {vault}/ or fs.path.source startswith {vault}/ \
                 or fs.path.target startswith {vault}/)"
            ),
        ),
        (
            "Exec",
            format!("evt.type in (execve, execveat) and proc.exepath startswith {vault}/"),
        ),
        (
            "Call",
            "evt.type in (ptrace, process_vm_writev, memfd_create, unshare, mount, fsmount, move_mount) and \
             proc.args contains \" k_\""
                .to_owned(),
        ),
    ] {
        let _ = write!(
            text,
            "- rule: {name}\n  desc: {name}\n  condition: {condition}\n  output: \"{name} {fields} \
             path=%fs.path.name source=%fs.path.source target=%fs.path.target\"\n  priority: NOTICE\n"
        );
    }
    text
}

/// The rules whose alerts show that a way of a kind was seen. All of them must fire.
fn wanted(kind: &str) -> &'static [&'static str] {
    match kind {
        "open" => &["Open by literal", "Open by folder"],
        "write" => &["Write"],
        "connect" => &["Connect"],
        "bind" => &["Bind"],
        "change" => &["Change"],
        "exec" => &["Exec"],
        "call" => &["Call"],
        "aimed" => &[],
        other => panic!("ways.c has a kind {other} that no rule is about"),
    }
}

/// A place with an engine.
#[derive(Clone, Copy)]
struct Setting {
    engine: (&'static str, Engine),
    place: (&'static str, Environment, Identity),
}

impl Setting {
    fn watch(self, ways: &Ways) -> (Watch, PathBuf) {
        let (_, place, identity) = self.place;
        let watch = Watch::new(["true"])
            .place(place)
            .identity(identity)
            .engine(self.engine.1)
            .limit(Duration::from_secs(300))
            .option("-o")
            .option("outputs_queue.capacity=100000");
        watch.scratch().program(ways.fixture.program(), "ways");
        let root = watch.scratch().path().to_owned();
        // Not by the copy: a process that another thread starts may still hold it open for writing.
        let prepared = std::process::Command::new(ways.fixture.program())
            .arg("prepare")
            .args([folder(&root, "v"), folder(&root, "w")])
            .status();
        assert!(
            prepared.is_ok_and(|status| status.success()),
            "cannot prepare {}",
            root.display()
        );
        (watch.rules(&rules(&root.join("v"), &ways.all)), root)
    }

    /// Goes these ways in one run, one after the other.
    fn go(self, ways: &Ways, ids: &[&str], is_watched: bool) -> WatchResult {
        let (watch, root) = self.watch(ways);
        // The front hands these three on to its command: it must not end by what a way sends to the front.
        let mut script = "trap '' HUP USR1 USR2\n".to_owned();
        for id in ids {
            let _ = writeln!(
                script,
                "timeout 20 {0}/ways do {id} {0}/v {0}/w || echo \"{id} ended $?\"",
                root.display()
            );
        }
        let watch = watch.command(["sh", "-c", &script].map(str::to_owned));
        if is_watched { watch } else { watch.unwatched() }.run()
    }
}

fn folder(root: &Path, name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = root.join(name);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)))
        .expect("the scratch folder is writable");
    folder
}

/// Whether the way says that it succeeded.
fn is_done(run: &WatchResult, id: &str) -> bool {
    run.printed.lines().any(|line| line == format!("{id} done"))
}

/// The names of the rules whose alerts name the way.
fn rules_of(run: &WatchResult, id: &str) -> BTreeSet<String> {
    let names = |alert: &&Alert| {
        let text = alert.output.as_str();
        text.contains(&format!(" do {id} ")) || text.contains(&format!("/{id}/"))
    };
    let alerts = run
        .alerts
        .iter()
        .filter(|alert| !alert.rule.starts_with("Tollgate internal"));
    alerts
        .filter(names)
        .map(|alert| alert.rule.clone())
        .collect()
}

fn is_seen(run: &WatchResult, way: &Way) -> bool {
    let fired = rules_of(run, &way.id);
    let wanted = wanted(&way.kind);
    !wanted.is_empty() && wanted.iter().all(|rule| fired.contains(*rule))
}

/// The internal alerts of a run.
fn reports(run: &WatchResult) -> Vec<&Alert> {
    let internal = |alert: &&Alert| alert.rule.starts_with("Tollgate internal");
    run.alerts.iter().filter(internal).collect()
}

/// What becomes of a way that is gone alone.
fn alone(setting: Setting, ways: &Ways, way: &Way) -> (Outcome, String) {
    let open = ways
        .all
        .iter()
        .find(|way| way.id == "o_open")
        .expect("ways.c has it");
    let run = setting.go(ways, &[&way.id, &open.id], true);
    let reports = reports(&run);
    let is_told = !reports.is_empty();
    let outcome = if !is_seen(&run, open) {
        Outcome::Broken
    } else if way.kind == "aimed" {
        aimed(&run, way)
    } else if is_seen(&run, way) {
        Outcome::Alert
    } else {
        match (is_done(&run, &way.id), is_told) {
            (true, true) => Outcome::Reported,
            (true, false) => Outcome::Silent,
            (false, true) => Outcome::Denied,
            (false, false) => Outcome::Broken,
        }
    };
    (outcome, run.story())
}

/// What becomes of a way that is aimed at the processes that watch.
fn aimed(run: &WatchResult, way: &Way) -> Outcome {
    let is = |words: &str| reports(run).iter().any(|alert| alert.rule.contains(words));
    if ["upgraded", "gap", "replaced", "rules loaded", "keeper"]
        .iter()
        .any(|words| is(words))
    {
        return Outcome::Silent;
    }
    // ESRCH: none of these processes is in sight.
    if run.printed.contains(&format!("{} failed 3 ", way.id)) {
        return Outcome::Impossible;
    }
    match (is_done(run, &way.id), is("aimed")) {
        (false, true) => Outcome::Denied,
        (true, _) => Outcome::NoEffect,
        (false, false) => Outcome::Broken,
    }
}

/// Whether a way is to be gone alone in a place where going it together with others showed no alert: everywhere if slow
/// tests are asked for or the table is written; otherwise where the table expects something else, and in the chosen place.
fn is_gone_alone(setting: Setting, way: &Way) -> bool {
    let is_unexpected = || match documented(setting, way).as_deref() {
        // Whether one is aimed at something in sight is known only alone.
        Some(IMPOSSIBLE) => way.kind != "aimed",
        Some(outcome) => outcome == "alert",
        None => true,
    };
    let is_chosen = || {
        let chosen = chosen_place(setting.engine, way);
        chosen.is_none_or(|place| place == setting.place.0)
    };
    slow() || is_written() || is_unexpected() || is_chosen()
}

/// Returns the place where a way is gone alone under an engine: always the same one, so that a failure repeats. `None` if the
/// table has no place where it is refused, reported or a limit.
fn chosen_place(engine: (&'static str, Engine), way: &Way) -> Option<&'static str> {
    let places: Vec<_> = without_alert(engine, way).collect();
    let place = hash(engine.0, &way.id).checked_rem(places.len())?;
    Some(places[place])
}

/// Returns the places where the table says of a way that it is possible and gives no alert.
fn without_alert(engine: (&'static str, Engine), way: &Way) -> impl Iterator<Item = &'static str> {
    let is_without = move |place: &(&'static str, Environment, Identity)| {
        let place = *place;
        let outcome = documented(Setting { engine, place }, way);
        outcome.is_some_and(|outcome| !["alert", IMPOSSIBLE].contains(&outcome.as_str()))
    };
    PLACES.into_iter().filter(is_without).map(|place| place.0)
}

/// FNV-1a of these words.
fn hash(engine: &str, way: &str) -> usize {
    let bytes = engine.bytes().chain(way.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The low bits alone depend on little of the words.
    usize::try_from(hash >> 16).expect("it has 16 bits")
}

#[test]
fn each_place_has_ways_that_are_gone_alone_in_it_on_each_run() {
    let ways = Ways::new();
    assert_eq!(hash("notify", "o_open"), 42341);
    for engine in ENGINES {
        let chosen = ways.all.iter().filter_map(|way| chosen_place(engine, way));
        let chosen: Vec<_> = chosen.collect();
        let possible = ways.all.iter().flat_map(|way| without_alert(engine, way));
        for place in possible.collect::<BTreeSet<_>>() {
            let count = chosen.iter().filter(|chosen| **chosen == place).count();
            println!("{}, {place}: {count} ways alone", engine.0);
            assert!(count > 0, "{}, {place}", engine.0);
        }
    }
}

/// Returns what the table says of a way.
fn documented(setting: Setting, way: &Way) -> Option<String> {
    let text = fs::read_to_string(repository().join(TABLE)).expect("the repository has it");
    let start = format!("| {} | `{}` | ", setting.engine.0, way.id);
    let line = text.lines().find(|line| line.starts_with(&start))?;
    let place = PLACES.iter().position(|place| place.0 == setting.place.0)?;
    let cell = line.split(" | ").nth(3 + place)?;
    Some(cell.trim_end_matches(" |").to_owned())
}

/// Whether the table is written anew.
fn is_written() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// What becomes of every way in a setting, and the story of those that need a look.
fn outcomes(setting: Setting, ways: &Ways) -> BTreeMap<String, (Outcome, String)> {
    let together: Vec<&str> = ways
        .all
        .iter()
        .filter(|way| way.kind != "aimed")
        .map(|way| way.id.as_str())
        .collect();
    let control = setting.go(ways, &together, false);
    // A race may be lost by chance.
    let is_won = |id: &str| {
        id.starts_with(RACE) && (0..5).any(|_| is_done(&setting.go(ways, &[id], false), id))
    };
    let possible: Vec<&str> = together
        .iter()
        .copied()
        .filter(|id| is_done(&control, id) || is_won(id))
        .collect();
    let run = setting.go(ways, &possible, true);
    let mut all = BTreeMap::new();
    for way in &ways.all {
        let outcome = if way.kind == "aimed" && setting.engine.1 == Engine::Ebpf {
            // It refuses nothing. Its run would wait for ever for an agent that was stopped.
            (Outcome::Silent, String::new())
        } else if way.kind != "aimed" && !possible.contains(&way.id.as_str()) {
            (Outcome::Impossible, String::new())
        } else if way.kind != "aimed" && is_done(&run, &way.id) && is_seen(&run, way) {
            (Outcome::Alert, String::new())
        } else if is_gone_alone(setting, way) {
            alone(setting, ways, way)
        } else {
            (Outcome::Elsewhere, String::new())
        };
        all.insert(way.id.clone(), outcome);
    }
    all
}

/// Which of `LIMITS` lists a way in a setting.
fn limit(way: &Way, setting: Setting) -> Option<usize> {
    let fits = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    };
    LIMITS.iter().position(|listed| {
        fits(listed.way, &way.id)
            && fits(listed.engine, setting.engine.0)
            && fits(listed.place, setting.place.0)
    })
}

/// Returns the lines of the table: one for each way, with a column for each place.
fn lines(engine: &str, ways: &Ways, columns: &[BTreeMap<String, (Outcome, String)>]) -> String {
    let mut lines = String::new();
    for way in &ways.all {
        let _ = write!(lines, "| {} | `{}` | {} |", engine, way.id, way.what);
        for column in columns {
            let outcome = column[&way.id].0;
            let name = match outcome {
                // By turns, as the race goes.
                Outcome::Alert | Outcome::Denied | Outcome::Reported
                    if way.id.starts_with(RACE) =>
                {
                    "alert or reported"
                }
                _ => outcome.name(),
            };
            let _ = write!(lines, " {name} |");
        }
        lines.push('\n');
    }
    lines
}

/// Under an engine: the lines of the table, and what is wrong.
fn table(engine: (&'static str, Engine)) {
    let ways = Ways::new();
    let mut columns = Vec::new();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    let mut found = std::thread::scope(|scope| {
        let ways = &ways;
        let started =
            PLACES.map(|place| scope.spawn(move || outcomes(Setting { engine, place }, ways)));
        started
            .map(|thread| thread.join().expect("it panics with its own words"))
            .to_vec()
    });
    for place in PLACES {
        let setting = Setting { engine, place };
        let outcomes = found.remove(0);
        for way in &ways.all {
            let (outcome, story) = &outcomes[&way.id];
            if !matches!(outcome, Outcome::Broken | Outcome::Silent) {
                continue;
            }
            if let Some(limit) = limit(way, setting) {
                used.insert(limit);
            } else {
                wrong.push(format!(
                    "{} under {} at {}: {outcome:?}\n{story}",
                    way.id, engine.0, place.0
                ));
            }
        }
        columns.push(outcomes);
    }
    for (index, limit) in LIMITS.iter().enumerate() {
        if [engine.0, "*"].contains(&limit.engine) && !used.contains(&index) {
            wrong.push(format!("{limit:?} is listed and is no limit"));
        }
    }
    let lines = lines(engine.0, &ways, &columns);
    println!("{lines}");
    assert!(
        wrong.is_empty(),
        "{} ways:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    compare(engine.0, &lines);
}

/// Ways that fail on some machines: where processors have protection keys, nothing can be read from a page that can only
/// be executed, and the kernel does not find the path either.
const OF_SOME_MACHINES: [&str; 1] = ["m_exec_only"];

/// Whether a line is that of a way that fails everywhere on this machine.
fn is_impossible(line: &str) -> bool {
    let is_of = |way: &str| line.contains(&format!("`{way}`"));
    OF_SOME_MACHINES.iter().any(|way| is_of(way)) && line.ends_with("| - | - | - | - |")
}

/// Whether a line is that of the document in all that is known.
fn agrees(is: &str, was: &str) -> bool {
    let (is, was) = (is.split(" | "), was.split(" | "));
    let elsewhere = format!("{ELSEWHERE} |");
    let unknown = |cell: &str| [ELSEWHERE, &elsewhere].contains(&cell);
    is.clone().count() == was.clone().count()
        && is.zip(was).all(|(is, was)| is == was || unknown(is))
}

/// Compares the lines of an engine with those of the document, or writes them.
fn compare(engine: &str, lines: &str) {
    let file = repository().join(TABLE);
    let text = fs::read_to_string(&file).expect("the repository has it");
    let (begin, end) = (
        format!("<!-- {engine}: begin -->\n"),
        format!("<!-- {engine}: end -->"),
    );
    let from = text
        .find(&begin)
        .expect("the document has a part for each engine")
        + begin.len();
    let to = text.find(&end).expect("the part has an end");
    let head: String = "| engine | way | what it does |".to_owned();
    let head = PLACES
        .iter()
        .fold(head, |head, place| format!("{head} {} |", place.0));
    let rule = "|---".repeat(3 + PLACES.len());
    let part = format!("\n{head}\n{rule}|\n{lines}\n");
    if is_written() {
        let text = format!("{}{part}{}", &text[..from], &text[to..]);
        fs::write(&file, text).expect("the repository is writable");
        return;
    }
    let differences: Vec<_> = part
        .lines()
        .zip(text[from..to].lines())
        .filter(|(is, was)| !agrees(is, was) && !is_impossible(is))
        .map(|(is, was)| format!("is      {is}\nwas     {was}"))
        .collect();
    assert!(
        differences.is_empty(),
        "docs/reference/attacks.md says otherwise:\n{}",
        differences.join("\n")
    );
    assert_eq!(
        part.lines().count(),
        text[from..to].lines().count(),
        "docs/reference/attacks.md lacks lines"
    );
}

#[test]
fn notify_sees_refuses_or_reports_every_way_that_is_no_listed_limit() {
    need_root!();
    table(ENGINES[0]);
}

#[test]
fn ptrace_sees_refuses_or_reports_every_way_that_is_no_listed_limit() {
    need_root!();
    table(ENGINES[1]);
}

#[test]
fn ebpf_sees_or_reports_every_way_that_is_no_listed_limit() {
    need_root!();
    table(ENGINES[2]);
}

#[test]
fn each_listed_limit_is_in_the_limits_of_its_page() {
    for listed in &LIMITS {
        let text =
            fs::read_to_string(repository().join(listed.page)).expect("the repository has it");
        let section = text
            .split("\n## ")
            .find(|part| part.starts_with("Limits\n"));
        let section = section.unwrap_or_else(|| panic!("{} has no limits", listed.page));
        // Lines are broken anywhere.
        let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            section.contains(&format!("- {}", listed.words)),
            "no limit begins like this: {listed:?}"
        );
    }
}
