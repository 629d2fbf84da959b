//! Evaluates the event of an alert under the rules, without and with an exception.

use config::rule_files::{self, Loaded, NoSink, RuleFile};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EventKind;
use rules::diagnostic::closest;
use rules::synthetic_event::{SyntheticEvent, SyntheticValue, UnsetFields};
use rules::trace::Tracer;
use rules::{Engine, EngineOptions, Rule, RuleMatching};

use super::alert::Alert;

/// Values of `evt.arg.flags` that decide whether an open reads or writes, which few alerts show.
const FLAGS: [&str; 2] = ["O_RDONLY", "O_RDWR|O_CREAT|O_TRUNC"];

/// The event of an alert as text, in the form that `tollgate rules test` reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventText {
    pub(super) fields: Vec<(String, SyntheticValue)>,
    pub(super) others: UnsetFields,
}

/// Rules, of which one is the alert's.
pub(super) struct RulesUnderTest {
    loaded: Loaded,
    name: String,
}

impl RulesUnderTest {
    /// Loads the rules.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if a file has errors, or there is no such rule.
    pub(super) fn load(files: Vec<RuleFile>, name: &str) -> Result<Self, Failure> {
        let mut loaded = rule_files::load_read(files);
        loaded.compile(&all_rules(), NoSink);
        loaded.usable()?;
        if loaded.ruleset.rule(name).is_none() {
            let names = loaded.ruleset.rules.iter().map(|rule| &*rule.name);
            return Err(unknown_rule(name, closest(name, names)));
        }
        Ok(Self {
            loaded,
            name: name.to_owned(),
        })
    }

    /// Loads the same rules with one more file, an exception. They are not compiled before [`RulesUnderTest::alerts`]
    /// needs it.
    pub(super) fn with(&self, name: &str, text: &str) -> Result<Self, Failure> {
        let mut files = self.loaded.files.clone();
        files.push(RuleFile {
            name: name.into(),
            text: Ok(text.to_owned()),
        });
        let loaded = rule_files::load_read(files);
        loaded.usable()?;
        Ok(Self {
            loaded,
            name: self.name.clone(),
        })
    }

    /// Returns the rule of the alert.
    pub(super) fn rule(&self) -> &Rule {
        let rule = self.loaded.ruleset.rule(&self.name);
        rule.expect("it was there when the rules were loaded")
    }

    /// Returns the texts of the files, in the order in which they are loaded.
    pub(super) fn texts(&self) -> Vec<&str> {
        let files = self.loaded.files.iter();
        files.filter_map(|file| file.text.as_deref().ok()).collect()
    }

    /// Returns whether the rule matches; `None` if that depends on what the event does not tell.
    pub(super) fn matches(&self, event: &EventText) -> Option<bool> {
        let tracer = Tracer::new(&self.loaded.ruleset, self.rule());
        tracer.explain_given(&event.event()).holds
    }

    /// Returns the rules that alert on the event.
    pub(super) fn alerts(&self, event: &EventText) -> Vec<String> {
        let (engine, _problems) = Engine::new(&self.loaded.ruleset, &all_rules(), Box::new(NoSink));
        let alerts = engine.evaluate_synthetic(&event.event()).alerts;
        alerts.iter().map(|alert| alert.rule.to_string()).collect()
    }

    /// Returns the rules that alert on the event if the levels above that of the alert's rule are off.
    pub(super) fn alerts_of_level(&self, event: &EventText) -> Vec<String> {
        let level = self.rule().level();
        let is_on = |name: &String| {
            let rule = self.loaded.ruleset.rule(name);
            rule.is_some_and(|rule| rule.level() <= level || rule.is_enabled_by_name)
        };
        self.alerts(event).into_iter().filter(is_on).collect()
    }

    /// Returns the event of an alert: of the types and values that the alert leaves open, those with which its rule matches,
    /// or else might match.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the rule cannot match such an event.
    pub(super) fn event(&self, alert: &Alert) -> Result<EventText, Failure> {
        let tracer = Tracer::new(&self.loaded.ruleset, self.rule());
        let kinds: Vec<EventKind> = match alert.text("evt.type") {
            Some(name) => EventKind::from_name(name).into_iter().collect(),
            None => EventKind::all()
                .filter(|kind| tracer.concerns(*kind))
                .collect(),
        };
        let mut possible = None;
        for others in [UnsetFields::Unknown, UnsetFields::Absent] {
            for kind in &kinds {
                for event in completions(alert, *kind, others) {
                    match tracer.explain_given(&event.event()).holds {
                        Some(true) => return Ok(event),
                        None if possible.is_none() => possible = Some(event),
                        _ => {}
                    }
                }
            }
        }
        possible.ok_or_else(|| {
            let message = format!(
                "cannot silence `{}`: the loaded rules do not raise this alert",
                self.name
            );
            Failure::new(Exit::BadInput, message).help(
                "it may be silenced already; `tollgate rules explain --event ALERT --rule RULE` shows why",
            )
        })
    }
}

/// Options with which every rule that matches alerts.
fn all_rules() -> EngineOptions {
    EngineOptions {
        rule_matching: RuleMatching::All,
        ..EngineOptions::default()
    }
}

fn unknown_rule(name: &str, near: Option<&str>) -> Failure {
    let shown = yaml::quote::comment(name);
    let message = format!("cannot silence `{shown}`: no loaded rule has this name");
    let failure = Failure::new(Exit::BadInput, message);
    if name.starts_with("Tollgate internal") || name.starts_with("Policy violation") {
        return failure
            .help("this alert comes from no rule: it reports the policy or the monitor itself");
    }
    match near {
        Some(near) => failure.help(format!(
            "did you mean `{near}`? Name the file of the rule with -r"
        )),
        None => failure.help("name the file of the rule with -r or --add-rules"),
    }
}

/// Returns the events of a type that an alert can be about.
fn completions(alert: &Alert, kind: EventKind, others: UnsetFields) -> Vec<EventText> {
    let mut event = EventText {
        fields: vec![one("evt.type", kind.name())],
        others,
    };
    for field in &alert.fields {
        let is_time = field.0.starts_with("evt.time") || field.0.starts_with("evt.rawtime");
        let is_known = is_time || event.fields.iter().any(|known| known.0 == field.0);
        // A field of another type of event, or in another notation, stays open.
        if !is_known && event.takes(field) {
            event.fields.push(field.clone());
        }
    }
    let with_flags = FLAGS.map(|flags| one("evt.arg.flags", flags));
    let with_flags = with_flags
        .into_iter()
        .filter(|field| event.fields.iter().all(|known| known.0 != field.0) && event.takes(field));
    let mut all = vec![event.clone()];
    all.extend(with_flags.map(|field| {
        let mut event = event.clone();
        event.fields.push(field);
        event
    }));
    all
}

fn one(field: &str, value: &str) -> (String, SyntheticValue) {
    (field.to_owned(), SyntheticValue::One(value.to_owned()))
}

impl EventText {
    fn event(&self) -> SyntheticEvent {
        let kind = match &self.fields[0].1 {
            SyntheticValue::One(kind) => kind,
            _ => unreachable!("the first field is the type"),
        };
        let event = SyntheticEvent::new(kind, self.others);
        let mut event = event.expect("the type comes from the table of types");
        for (field, value) in &self.fields {
            event.give(field, value).expect("it took the value before");
        }
        event
    }

    fn takes(&self, (field, value): &(String, SyntheticValue)) -> bool {
        self.event().give(field, value).is_ok()
    }

    /// Returns the event with the values that another alert has in its place.
    pub(super) fn of(&self, alert: &Alert) -> Self {
        let mut changed = self.clone();
        for (field, value) in &mut changed.fields {
            if let Some(new) = alert.value(field) {
                value.clone_from(new);
            }
        }
        changed
    }
}
