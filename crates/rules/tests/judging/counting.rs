//! Rules that alert when they have matched often enough.

use abi::Syscall;
use event::{EngineKind, Stage};
use rules::{AlertValue, EngineOptions, Loader};

use crate::case::Case;
use crate::engine::{conclude, engine, rule_text};

const SECOND: u64 = 1_000_000_000;

fn open(path: &str, second: u64) -> Case {
    let mut case = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, 0, 0, 0, 0]);
    case.text = Some(path.as_bytes().to_vec());
    case.result = Some(3);
    case.time_ns = 1_700_000_000 * SECOND + second * SECOND;
    case
}

fn counting(count: &str) -> String {
    rule_text("many", "evt.type = openat") + &format!("  count: {count}\n")
}

#[test]
fn a_rule_that_counts_alerts_once_with_what_it_counted() {
    let text = counting("{over: 2, within: 60s, by: [proc.sid], distinct: [fd.name]}");
    let (engine, kept) = engine(&text, &EngineOptions::default());
    for (path, second) in [("/a", 0), ("/b", 1), ("/a", 2)] {
        conclude(&engine, &open(path, second), Stage::Exit);
    }
    assert!(kept.take().is_empty());
    assert_eq!(engine.matches().collect::<Vec<_>>(), [("many", 0)]);
    conclude(&engine, &open("/c", 5), Stage::Exit);
    conclude(&engine, &open("/d", 6), Stage::Exit);
    let alerts = kept.take();
    assert_eq!(alerts.len(), 1, "what goes on is one alert: {alerts:?}");
    assert_eq!(alerts[0].message, "matched count=3 in 4 s: /a, /b, /c");
    let value = |name: &str| {
        let mut fields = alerts[0].fields.iter();
        fields
            .find(|(known, _)| &**known == name)
            .map(|(_, value)| value.clone())
    };
    assert_eq!(value("count.number"), Some(AlertValue::Uint(3)));
    assert_eq!(
        value("count.values"),
        Some(AlertValue::Text("/a, /b, /c".into()))
    );
    assert_eq!(engine.matches().collect::<Vec<_>>(), [("many", 1)]);
    assert_eq!(engine.forgotten_counts(), 0);
}

#[test]
fn a_rule_that_counts_hides_no_other_rule() {
    let text = counting("{over: 1, within: 1h}") + &rule_text("other", "evt.type = openat");
    let (engine, kept) = engine(&text, &EngineOptions::default());
    for second in 0..3 {
        conclude(&engine, &open("/a", second), Stage::Exit);
    }
    let alerts = kept.take();
    let names: Vec<_> = alerts.iter().map(|alert| &*alert.rule).collect();
    assert_eq!(names, ["other", "many", "other", "other"]);
    assert!(
        engine
            .lint(&[EngineKind::Notify])
            .iter()
            .all(|finding| &*finding.rule != "other")
    );
}

#[test]
fn faulty_counts_are_told_with_their_place() {
    for (count, expected) in [
        ("3", "`count` has to be a mapping, found"),
        ("{within: 60s}", "the key `over` of `count` is missing"),
        ("{over: 3}", "the key `within` of `count` is missing"),
        (
            "{over: 0, within: 60s}",
            "`over` has to be a number from 1 to 1000, found `0`",
        ),
        (
            "{over: 3, within: 60}",
            "`within` has to be a time of at most an hour, found `60`",
        ),
        (
            "{over: 3, within: 2h}",
            "`within` has to be a time of at most an hour, found `2h`",
        ),
        (
            "{over: 3, within: 9999999h}",
            "`within` has to be a time of at most an hour",
        ),
        (
            "{over: 3, within: 1s, by: '('}",
            "`by` has to be a field or a list of fields",
        ),
        (
            "{over: 3, within: 1s, per: proc.pid}",
            "unknown key `per` is ignored",
        ),
    ] {
        let (_, found) = Loader::new().add("r.yaml", &counting(count)).finish();
        let text: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(
            text.iter().any(|it| it.contains(expected)),
            "{count}: {text:?}"
        );
        assert!(
            text.iter().all(|it| it.starts_with("r.yaml:6:")),
            "{text:?}"
        );
    }
    let text = counting("{over: 3, within: 1s, by: proc.nmae}");
    let (_, _, problems) = crate::engine::try_engine(&text, &EngineOptions::default());
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(
        text.iter()
            .any(|it| it.starts_with("test.yaml:6:") && it.contains("proc.nmae")),
        "{text:?}"
    );
}
