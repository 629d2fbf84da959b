//! A rule with programs that must fire it and programs that must not.

use std::collections::BTreeSet;
use std::path::PathBuf;

use generator::expectation::{Comparison, Expectation, Fit};

use crate::{
    Alert, Engine, Environment, Identity, Pattern, SENTINEL, StockRule, Watch, WatchResult, slow,
    stock_rules,
};

/// Makes a command line that runs a shell command while a listener sends one line to each connection at an
/// address. The command starts as soon as somebody listens. Nothing else may listen in its network, unless the address is
/// `-U SOCKET`.
#[macro_export]
macro_rules! with_listener {
    ($address:literal, $line:literal, $then:literal) => {
        &[
            "bash",
            "-c",
            concat!(
                "echo '",
                $line,
                "' | nc -l -N ",
                $address,
                " &\nset -- ",
                $address,
                "\nlistens=' 0A '; table=/proc/net/tcp\n",
                "if [ $1 = -U ]; then listens=\" 00010000 0001 01 +[0-9]+ $2\"; table=/proc/net/unix; fi\n",
                "until [[ $(< $table) =~ $listens ]]; do sleep 0.02; done\n",
                $then,
                "\nwait"
            ),
        ]
    };
}

/// What is above whoever logs in to a machine with systemd. `proc.aname` has all of them: a rule that leaves one out
/// never fires there.
const LOGIN: &[&str] = &["systemd", "sshd", "bash"];

/// A program that does, or nearly does, what a rule detects.
#[derive(Clone, Copy, Debug)]
pub struct TestProgram {
    command: &'static [&'static str],
    places: &'static [Environment],
    identities: &'static [Identity],
    terminal: bool,
    known: bool,
    inside: bool,
    waits: bool,
    apart: bool,
    /// The process that the alert names. For a program that must fire, `fields` holds what the alert must
    /// contain.
    process: &'static str,
    fields: &'static [(&'static str, &'static str)],
}

/// A rule, programs that must fire it, and programs that must not.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the rule.
    pub rule: &'static str,
    /// Programs that must fire it.
    pub fires: &'static [TestProgram],
    /// Programs that must not fire it.
    pub near_misses: &'static [TestProgram],
}

/// Creates a program, run by `process` inside a container.
pub const fn act(process: &'static str, command: &'static [&'static str]) -> TestProgram {
    TestProgram {
        command,
        places: &[Environment::Inside],
        identities: Identity::ALL,
        terminal: false,
        known: false,
        inside: false,
        waits: false,
        apart: false,
        process,
        fields: &[],
    }
}

impl TestProgram {
    /// Runs it in these environments instead.
    pub const fn at(self, places: &'static [Environment]) -> Self {
        Self { places, ..self }
    }

    /// Runs it as these users only.
    pub const fn by(self, identities: &'static [Identity]) -> Self {
        Self { identities, ..self }
    }

    /// Expects these fields in its alert.
    pub const fn showing(self, fields: &'static [(&'static str, &'static str)]) -> Self {
        Self { fields, ..self }
    }

    /// Runs it on a terminal.
    pub const fn on_terminal(self) -> Self {
        Self {
            terminal: true,
            ..self
        }
    }

    /// Runs it in a container whose id is given to tollgate.
    pub const fn known(self) -> Self {
        Self {
            known: true,
            ..self
        }
    }

    /// Runs it only in environments where tollgate itself is in the container.
    pub const fn from_inside(self) -> Self {
        Self {
            inside: true,
            ..self
        }
    }

    /// Makes its runs at once, as it sleeps most of its time.
    pub const fn waiting(self) -> Self {
        Self {
            waits: true,
            ..self
        }
    }

    /// Leaves out the run below a login: the rule is about processes that nobody started from one.
    pub const fn apart_from_logins(self) -> Self {
        Self {
            apart: true,
            ..self
        }
    }

    /// Runs it below a shell of a login, in its first environment as its first user, under the rules of a file.
    fn run_below_login(&self, file: &PathBuf) -> (Environment, Identity, WatchResult) {
        let (place, identity) = (self.places[0], self.identities[0]);
        let watch = self.watch(place, identity).below(LOGIN);
        (place, identity, watch.rules_file(file).run())
    }

    /// Returns true if the case does not apply to an engine that watches from outside: names of other hosts
    /// inside the container are not known there.
    fn is_out_of_reach(&self) -> bool {
        Engine::under_test() == Engine::Ebpf && self.inside
    }

    /// Returns the users who run it in the environment with index `turn`. A near miss runs in each environment
    /// as one user only, to save time; the index selects the user.
    fn identities_in_turn(&self, turn: usize, must_fire: bool) -> &[Identity] {
        if must_fire {
            return self.identities;
        }
        std::slice::from_ref(&self.identities[turn % self.identities.len()])
    }

    /// Runs it in each environment as each user whose turn it is, under the rules of a file.
    fn runs(&self, must_fire: bool, file: &PathBuf) -> Vec<(Environment, Identity, WatchResult)> {
        let run = |place, identity| {
            let watch = self.watch(place, identity).rules_file(file);
            (place, identity, watch.rules(SENTINEL).run())
        };
        let places = self.places.iter().enumerate();
        let turns = places.flat_map(|(turn, &place)| {
            let identities = self.identities_in_turn(turn, must_fire).iter();
            identities.map(move |&identity| (place, identity))
        });
        if !self.waits {
            return turns
                .map(|(place, identity)| run(place, identity))
                .collect();
        }
        std::thread::scope(|scope| {
            let started: Vec<_> = turns
                .map(|(place, identity)| scope.spawn(move || run(place, identity)))
                .collect();
            let ended = started.into_iter().map(|thread| thread.join());
            ended
                .map(|run| run.expect("it panics with its own words"))
                .collect()
        })
    }

    fn watch(&self, place: Environment, identity: Identity) -> Watch {
        let watch = Watch::new(self.command.iter())
            .place(place)
            .identity(identity);
        let watch = if self.known {
            watch.container_id()
        } else {
            watch
        };
        if self.terminal {
            watch.terminal()
        } else {
            watch
        }
    }
}

impl Case {
    /// Runs every program in every environment as every user under the rules of a file. Returns true if the
    /// rule was the first to match in one of them: the one that is reported when only one is.
    ///
    /// # Panics
    /// If a program does not behave as it must.
    pub fn check(&self, file: &PathBuf) -> bool {
        let rules = stock_rules(file);
        let stock = rules.iter().find(|rule| rule.name == self.rule);
        let stock = stock.unwrap_or_else(|| panic!("no rule {} in {}", self.rule, file.display()));
        let mut failures = Vec::new();
        let mut first = false;
        for (act, must_fire) in self.acts() {
            if act.is_out_of_reach() {
                println!("left out: {:?}: the program is outside", act.command);
                continue;
            }
            for (place, identity, watched) in act.runs(must_fire, file) {
                let outcome = if must_fire {
                    fired(&watched, stock, act, place, identity)
                } else {
                    did_not_fire(&watched, stock, act, place)
                };
                first |= must_fire && is_first(&watched, self.rule);
                if let Err(why) = outcome {
                    failures.push(format!(
                        "{:?} at {place:?} as {identity:?}: {why}\n{}",
                        act.command,
                        watched.story()
                    ));
                }
            }
        }
        failures.extend(self.failures_below_login(file, stock));
        let count = failures.len();
        assert!(
            failures.is_empty(),
            "{count} failures of {}:\n{}",
            self.rule,
            failures.join("\n")
        );
        first
    }

    /// Runs the first program that must fire below a login, or all of them in the slow tier.
    fn failures_below_login(&self, file: &PathBuf, stock: &StockRule) -> Vec<String> {
        let acts = self
            .fires
            .iter()
            .filter(|act| !act.is_out_of_reach() && !act.apart);
        let acts = acts.take(if slow() { usize::MAX } else { 1 });
        let failure = |act: &TestProgram| {
            let (place, identity, watched) = act.run_below_login(file);
            let why = fired(&watched, stock, act, place, identity).err()?;
            let story = watched.story();
            Some(format!(
                "{:?} below {LOGIN:?} at {place:?} as {identity:?}: {why}\n{story}",
                act.command
            ))
        };
        acts.filter_map(failure).collect()
    }

    fn acts(&self) -> impl Iterator<Item = (&TestProgram, bool)> {
        let fires = self.fires.iter().map(|act| (act, true));
        fires.chain(self.near_misses.iter().map(|act| (act, false)))
    }
}

/// Returns true if an alert of the rule is the first one of its event.
fn is_first(watched: &WatchResult, rule: &str) -> bool {
    let event = |alert: &Alert| (alert.time.clone(), alert.fields.get("proc.name").cloned());
    watched.of(rule).into_iter().any(|alert| {
        let same = |other: &&Alert| event(other) == event(alert);
        watched.alerts.iter().find(same) == Some(alert)
    })
}

fn fired(
    watched: &WatchResult,
    stock: &StockRule,
    act: &TestProgram,
    place: Environment,
    identity: Identity,
) -> Result<(), String> {
    let is_by = |alert: &&Alert| {
        alert.rule == stock.name && Pattern(act.process).fits(&alert.field("proc.name"))
    };
    let differences = |alert: &&Alert| {
        let fits = alert_fits(alert, stock, act, place, identity);
        fits.err().into_iter().collect()
    };
    let expectation = Expectation::nothing()
        .require(&stock.name, is_by, differences)
        .allow(|_| true);
    let comparison = Comparison::new(expectation).with(&watched.alerts);
    // The first alert of the rule counts: a later one does not make up for it.
    let first = comparison.alerts().find(|(_, fit)| **fit != Fit::Allowed);
    match first {
        Some((_, Fit::Expected(_))) => Ok(()),
        Some((_, Fit::Different(differences))) => Err(differences.join(", ")),
        _ => Err(format!("{} did not fire for {}", stock.name, act.process)),
    }
}

/// Checks what the alert of a program says.
fn alert_fits(
    alert: &Alert,
    stock: &StockRule,
    act: &TestProgram,
    place: Environment,
    identity: Identity,
) -> Result<(), String> {
    // The one priority that alerts spell differently from rules.
    let priority = alert
        .priority
        .to_uppercase()
        .replace("INFORMATIONAL", "INFO");
    expect("priority", &priority, &stock.priority)?;
    expect("source", &alert.source, "syscall")?;
    let set = |tags: &[String]| tags.iter().cloned().collect::<BTreeSet<_>>();
    if set(&alert.tags) != set(&stock.tags) {
        return Err(format!("tags are {:?}", alert.tags));
    }
    for field in &stock.fields {
        if !alert.fields.contains_key(field) {
            return Err(format!("the output has no {field}"));
        }
    }
    for (field, pattern) in act.fields {
        // Seen from outside, a container's first process has a parent: its runtime.
        let is_orphan = (*field, *pattern) == ("proc.pname", "<NA>");
        let pattern = match is_orphan && is_made_in_sight(place) {
            true => "runc",
            false => pattern,
        };
        expect(field, &alert.field(field), pattern)?;
    }
    user_fits(alert, act, place, identity)
}

/// Checks that the alert names the user who started the program, unless the program changes its user.
fn user_fits(
    alert: &Alert,
    act: &TestProgram,
    place: Environment,
    identity: Identity,
) -> Result<(), String> {
    if act.fields.iter().any(|(field, _)| *field == "user.name") {
        return Ok(());
    }
    expect(
        "user.uid",
        &alert.field("user.uid"),
        &identity.uid().to_string(),
    )?;
    match place {
        Environment::Inside => expect(
            "user.name",
            &alert.field("user.name"),
            identity.name_in_container(),
        ),
        _ if identity.uid() == 0 => expect("user.name", &alert.field("user.name"), "root"),
        _ => Ok(()),
    }
}

fn expect(what: &str, found: &str, pattern: &str) -> Result<(), String> {
    if Pattern(pattern).fits(found) {
        return Ok(());
    }
    Err(format!("{what} is {found:?}, expected {pattern:?}"))
}

fn did_not_fire(
    watched: &WatchResult,
    stock: &StockRule,
    act: &TestProgram,
    place: Environment,
) -> Result<(), String> {
    let seen = watched.of("Sentinel");
    if !seen
        .iter()
        .any(|alert| alert.field("proc.name") == act.process)
    {
        return Err(format!("the start of {} was not seen at all", act.process));
    }
    let expectation = Expectation::nothing().allow(|alert: &&Alert| alert.rule != stock.name);
    let comparison = Comparison::new(expectation).with(workload(watched, place));
    match comparison.unexpected().next() {
        Some(alert) => Err(format!("{} fired: {alert}", stock.name)),
        None => Ok(()),
    }
}

/// Returns true if tollgate runs outside and sees how the workload's container is made.
fn is_made_in_sight(place: Environment) -> bool {
    Engine::under_test() == Engine::Ebpf
        && matches!(place, Environment::Inside | Environment::Below)
}

/// Returns the alerts about the workload. While its container is made, namespaces are changed and file systems
/// mounted; the last step is to start env(1).
fn workload(watched: &WatchResult, place: Environment) -> &[Alert] {
    let is_last = |alert: &Alert| {
        alert.rule == "Sentinel" && alert.field("proc.cmdline").starts_with("env -i HOME=")
    };
    let made = watched.alerts.iter().position(is_last);
    match made.filter(|_| is_made_in_sight(place)) {
        Some(made) => &watched.alerts[made..],
        None => &watched.alerts,
    }
}
