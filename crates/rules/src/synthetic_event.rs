//! Events described by the values of their fields, for tests of rules and for explanations of why a rule does
//! or does not match.
//!
//! Nothing is captured and nothing is looked up. Unset fields get the value that always follows from the set
//! ones (`implied`); the rest is absent or unknown, as [`UnsetFields`] says.

mod implied;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::field::{Field, FieldError, Source};
use event::{
    Absence, Comm, Event, EventKind, Image, LiveProcess, NoSystemInfo, Outcome, Param, Pid,
    Process, Stage, StartTime, Tid, Value, ValueType,
};

use crate::alert::Alert;
use crate::compile::Ternary;
use crate::compile::eval::Evaluation;
use crate::engine::Engine;

/// Value of fields that are not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnsetFields {
    /// Unset fields do not exist: comparisons with them do not hold.
    #[default]
    Absent,
    /// Unset fields may have any value: comparisons with them are undecided.
    Unknown,
}

/// A value of a field, or a list of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyntheticValue {
    /// The field does not exist.
    Absent,
    /// One value as text.
    One(String),
    /// Several values as text.
    Many(Vec<String>),
}

/// Error in the description of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticEventError {
    /// The event type does not exist.
    #[error("unknown event type `{name}`")]
    Kind {
        /// Name as written.
        name: String,
        /// Similar existing name.
        suggestion: Option<String>,
    },
    /// The field does not exist.
    #[error(transparent)]
    Field {
        /// Field error.
        source: FieldError,
    },
    /// The event type determines the field's value, and another one was given.
    #[error("`{field}` is `{actual}` in each event of this type, not `{given}`")]
    Contradicts {
        /// Name of the field.
        field: String,
        /// Value determined by the event type.
        actual: String,
        /// Value as written.
        given: String,
    },
    /// The value does not have the field's type.
    #[error("`{field}` has to be {expected}, found `{found}`")]
    Type {
        /// Name of the field.
        field: String,
        /// Description of accepted values.
        expected: &'static str,
        /// Value as written.
        found: String,
    },
    /// Several values were given for a field with one.
    #[error("`{field}` has one value, not a list")]
    NoList {
        /// Name of the field.
        field: String,
    },
}

/// An event described by the values of its fields.
#[derive(Clone, Debug)]
pub struct SyntheticEvent {
    kind: EventKind,
    others: UnsetFields,
    values: HashMap<Field, Kept>,
}

/// A value converted to the type of its field.
#[derive(Clone, Debug, PartialEq)]
enum Kept {
    Absent,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Box<[u8]>),
    Ip(IpAddr),
    List(Vec<Kept>),
}

/// Results of evaluating a synthetic event.
#[derive(Clone, Debug, Default)]
pub struct RuleResults {
    /// Alerts of all matching rules, in load order.
    pub alerts: Vec<Alert>,
    /// Rules that stay undecided because of unknown values.
    pub undecided: Vec<Arc<str>>,
}

impl SyntheticEvent {
    /// Creates an event of this type (`evt.type`) without any other field set.
    ///
    /// # Errors
    ///
    /// Fails if there is no such type.
    pub fn new(event_type: &str, others: UnsetFields) -> Result<Self, SyntheticEventError> {
        let kind = EventKind::from_name(event_type).map_err(|error| SyntheticEventError::Kind {
            name: event_type.to_owned(),
            suggestion: error.suggestion,
        })?;
        Ok(Self {
            kind,
            others,
            values: HashMap::new(),
        })
    }

    /// Returns the kind of the event.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// Returns true if the type of an event decides the value of a field, written as in a rule: it cannot be set to another one.
    #[must_use]
    pub fn type_decides(field: &str) -> bool {
        Field::parse(field).is_ok_and(|field| is_of_the_kind(&field))
    }

    /// Makes the event one of another kind. The fields that are set stay; those that the type decides are not checked again.
    pub fn change_kind(&mut self, kind: EventKind) {
        self.kind = kind;
    }

    /// Sets the value of a field, written as in a rule.
    ///
    /// # Errors
    ///
    /// Fails if there is no such field, or if it cannot have this value.
    pub fn give(&mut self, field: &str, value: &SyntheticValue) -> Result<(), SyntheticEventError> {
        let field = Field::parse(field).map_err(|source| SyntheticEventError::Field { source })?;
        if is_of_the_kind(&field) {
            return self.check_kind(&field, value);
        }
        let kept = match value {
            SyntheticValue::Absent => Kept::Absent,
            SyntheticValue::One(text) if field.multi() => Kept::List(vec![keep(&field, text)?]),
            SyntheticValue::One(text) => keep(&field, text)?,
            SyntheticValue::Many(texts) if field.multi() => {
                let all: Result<_, _> = texts.iter().map(|text| keep(&field, text)).collect();
                Kept::List(all?)
            }
            SyntheticValue::Many(_) => {
                return Err(SyntheticEventError::NoList {
                    field: field.to_string(),
                });
            }
        };
        self.values.insert(field, kept);
        Ok(())
    }

    /// Checks a field that the event type determines: any other value is an error.
    fn check_kind(&self, field: &Field, value: &SyntheticValue) -> Result<(), SyntheticEventError> {
        let actual = self.with_event(|event| match field.extract(event) {
            Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Uint(number) => number.to_string(),
            _ => String::new(),
        });
        match value {
            SyntheticValue::One(given) if *given != actual => {
                Err(SyntheticEventError::Contradicts {
                    field: field.to_string(),
                    actual,
                    given: given.clone(),
                })
            }
            SyntheticValue::Many(_) => Err(SyntheticEventError::NoList {
                field: field.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Calls `look` with an event of which only the type is known.
    pub(crate) fn with_event<T>(&self, look: impl FnOnce(&Event<'_>) -> T) -> T {
        let arena = Bump::new();
        let image = Arc::new(Image::default());
        let process = Process::new(
            Pid(1),
            StartTime(0),
            0,
            None,
            Arc::clone(&image),
            Comm::new(b""),
        );
        let params = vec![Param::Absent(Absence::recorded()); self.kind.spec().params.len()];
        look(&Event {
            number: 1,
            time_ns: 0,
            kind: self.kind,
            stage: Stage::Exit,
            cpu: None,
            tid: Tid(1),
            process: &process,
            image,
            params: &params,
            descriptor: None,
            outcome: Outcome::None,
            world: &NoSystemInfo,
            live: &LiveProcess::default(),
            arena: &arena,
        })
    }

    /// Sets the given values as the operands of a program.
    pub(crate) fn seed(&self, evaluation: &mut Evaluation<'_, '_, '_>) {
        let arena = evaluation.event().arena;
        let operands = evaluation.operands();
        for id in operands.ids() {
            if let Some(field) = operands.as_field(id)
                && !is_of_the_kind(field)
            {
                evaluation.give(id, self.value(field, arena));
            }
        }
    }

    fn value<'a>(&self, field: &Field, arena: &'a Bump) -> Value<'a> {
        match (self.values.get(field), self.others) {
            (Some(kept), _) => kept.value(arena),
            (None, others) => match (implied::value(self, field), others) {
                (Some(kept), _) => kept.value(arena),
                (None, UnsetFields::Absent) => Value::Absent,
                (None, UnsetFields::Unknown) => Value::Unknown,
            },
        }
    }
}

/// Returns true if all events of a kind have the same value of the field, or one that no rule can mean.
fn is_of_the_kind(field: &Field) -> bool {
    matches!(field.depends_on(), Source::Kind | Source::Nowhere)
}

fn keep(field: &Field, text: &str) -> Result<Kept, SyntheticEventError> {
    let (kept, expected) = match field.ty() {
        ValueType::Bool => (text.parse().ok().map(Kept::Bool), "true or false"),
        ValueType::Int => (text.parse().ok().map(Kept::Int), "a number"),
        ValueType::Uint | ValueType::AbsTime | ValueType::RelTime | ValueType::Port => (
            unsigned(text).map(Kept::Uint),
            "a number that is not negative",
        ),
        ValueType::Text | ValueType::Path => (Some(Kept::Text(text.as_bytes().into())), "a text"),
        ValueType::Ip | ValueType::Net => (text.parse().ok().map(Kept::Ip), "an address"),
    };
    kept.ok_or_else(|| SyntheticEventError::Type {
        field: field.to_string(),
        expected,
        found: text.to_owned(),
    })
}

fn unsigned(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Kept {
    fn value<'a>(&self, arena: &'a Bump) -> Value<'a> {
        match self {
            Self::Absent => Value::Absent,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(number) => Value::Int(*number),
            Self::Uint(number) => Value::Uint(*number),
            Self::Text(text) => Value::Text(arena.alloc_slice_copy(text)),
            Self::Ip(address) => Value::Ip(*address),
            Self::List(all) => {
                let values: Vec<Value<'a>> = all.iter().map(|kept| kept.value(arena)).collect();
                Value::List(arena.alloc_slice_copy(&values))
            }
        }
    }
}

impl Engine {
    /// Evaluates a synthetic event with all rules, whatever `rule_matching` says. No alert is sent.
    #[must_use]
    pub fn evaluate_synthetic(&self, given: &SyntheticEvent) -> RuleResults {
        use event::Evaluator as _;
        let mut scratch = self.scratch();
        given.with_event(|event| {
            let mut evaluation = Evaluation::new(&self.program, &mut scratch.memo, event);
            given.seed(&mut evaluation);
            let mut evaluated = RuleResults::default();
            for entry in &self.program.kind(event.kind).entries {
                let rule = &self.rules[entry.rule];
                match evaluation.rule(entry) {
                    Ternary::False => {}
                    Ternary::Unknown => evaluated.undecided.push(Arc::clone(&rule.name)),
                    Ternary::True => evaluated.alerts.push(self.alert(rule, &mut evaluation)),
                }
            }
            evaluated
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlertSink, AlertValue, EngineOptions, Loader};

    struct NoSystemInfo;

    impl AlertSink for NoSystemInfo {
        fn emit(&self, _alert: Alert) {
            unreachable!("described events are nobody's");
        }
    }

    const RULES: &str = "- rule: Read it\n  desc: d\n  condition: evt.type in (open, openat) and \
        evt.is_open_read = true and fd.name startswith /etc/ and not proc.pname in (sshd, cron)\n  \
        output: read %fd.filename by %proc.name in %container.id\n  priority: WARNING\n\
        - rule: Any\n  desc: d\n  condition: evt.type = openat and fd.directory = /etc and proc.aname = sshd\n  \
        output: o\n  priority: INFO\n";

    fn engine() -> Engine {
        let (ruleset, diagnostics) = Loader::new().add("r.yaml", RULES).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoSystemInfo)).0
    }

    fn given(others: UnsetFields, fields: &[(&str, &str)]) -> SyntheticEvent {
        let mut given = SyntheticEvent::new("openat", others).expect("a known type");
        for (field, text) in fields {
            let value = SyntheticValue::One((*text).to_owned());
            given.give(field, &value).expect("it fits");
        }
        given
    }

    #[test]
    fn described_events_become_alerts() {
        let event = given(
            UnsetFields::Absent,
            &[
                ("evt.arg.flags", "O_RDONLY|O_CLOEXEC"),
                ("fd.name", "/etc/shadow"),
                ("proc.name", "cat"),
            ],
        );
        let evaluated = engine().evaluate_synthetic(&event);
        assert_eq!(evaluated.undecided, []);
        let [alert] = &evaluated.alerts[..] else {
            panic!("{evaluated:?}");
        };
        assert_eq!(&*alert.rule, "Read it");
        assert_eq!(alert.message, "read shadow by cat in host");
        let field = &alert.fields[1];
        assert_eq!(
            (&*field.0, &field.1),
            ("proc.name", &AlertValue::Text("cat".into()))
        );
    }

    #[test]
    fn ancestors_are_given_as_a_list() {
        let mut event = given(UnsetFields::Absent, &[("fd.name", "/etc/shadow")]);
        let all = SyntheticValue::Many(vec!["bash".into(), "sshd".into()]);
        event.give("proc.aname", &all).expect("it fits");
        let evaluated = engine().evaluate_synthetic(&event);
        assert_eq!(evaluated.alerts.len(), 1, "{evaluated:?}");
        assert_eq!(&*evaluated.alerts[0].rule, "Any");
    }

    #[test]
    fn what_may_be_anything_leaves_rules_undecided() {
        let fields = [("evt.is_open_read", "true"), ("fd.name", "/etc/shadow")];
        let evaluated = engine().evaluate_synthetic(&given(UnsetFields::Unknown, &fields));
        assert_eq!(evaluated.undecided.len(), 2, "{evaluated:?}");
        let fields = [("evt.is_open_read", "false"), ("fd.directory", "/home")];
        let evaluated = engine().evaluate_synthetic(&given(UnsetFields::Unknown, &fields));
        assert!(evaluated.undecided.is_empty() && evaluated.alerts.is_empty());
    }

    #[test]
    fn the_container_is_the_host_only_where_others_are_absent_for_sure() {
        let rules = "- rule: Inside\n  desc: d\n  condition: evt.type = openat and container.id != host\n  \
            output: in %container.name\n  priority: INFO\n- rule: Host\n  desc: d\n  \
            condition: evt.type = openat and container.name = host\n  output: o\n  priority: INFO\n";
        let (ruleset, _) = Loader::new().add("r.yaml", rules).finish();
        let engine = Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoSystemInfo)).0;
        let names = |others, fields: &[(&str, &str)]| {
            let evaluated = engine.evaluate_synthetic(&given(others, fields));
            let alerts = evaluated.alerts.iter().map(|alert| alert.rule.to_string());
            let undecided = evaluated.undecided.iter().map(|rule| format!("{rule}?"));
            alerts.chain(undecided).collect::<Vec<_>>()
        };
        assert_eq!(names(UnsetFields::Absent, &[]), ["Host"]);
        assert_eq!(names(UnsetFields::Unknown, &[]), ["Inside?", "Host?"]);
        let host = [("container.id", "host")];
        assert_eq!(names(UnsetFields::Unknown, &host), ["Host"]);
        let inside = [("container.id", "0123456789ab")];
        assert_eq!(names(UnsetFields::Absent, &inside), ["Inside"]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let error = SyntheticEvent::new("opnat", UnsetFields::Absent).expect_err("no such type");
        assert!(
            matches!(&error, SyntheticEventError::Kind { suggestion: Some(near), .. } if near == "openat"),
            "{error:?}"
        );
        let mut event = given(
            UnsetFields::Absent,
            &[("evt.type", "openat"), ("fd.num", "-1")],
        );
        let mut wrong = |field: &str, value: &str| {
            let value = SyntheticValue::One(value.to_owned());
            event.give(field, &value).expect_err(field).to_string()
        };
        assert!(wrong("proc.nme", "x").contains("proc.nme"));
        assert_eq!(
            wrong("fd.num", "x"),
            "`fd.num` has to be a number, found `x`"
        );
        assert_eq!(
            wrong("fd.cip", "x"),
            "`fd.cip` has to be an address, found `x`"
        );
        assert_eq!(
            wrong("evt.type", "open"),
            "`evt.type` is `openat` in each event of this type, not `open`"
        );
        let list = SyntheticValue::Many(vec![]);
        let error = event.give("fd.name", &list).expect_err("one value");
        assert_eq!(error.to_string(), "`fd.name` has one value, not a list");
    }
}
