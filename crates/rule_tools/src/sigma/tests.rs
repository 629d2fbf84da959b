use std::collections::BTreeMap;

use proptest::prelude::*;
use rules::synthetic_event::{SyntheticEvent, SyntheticValue, UnsetFields};

use super::*;

fn rule(category: &str, detection: &str) -> String {
    let detection: String = detection
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect();
    format!(
        "title: A rule\nid: 5d1b\nlevel: high\ntags: [attack.t1059.004, attack.defense-evasion, cve.2024-1]\n\
         logsource: {{product: linux, category: {category}}}\ndetection:\n{detection}"
    )
}

fn converted(text: &str) -> Conversion {
    let mut all = convert("rule.yml", text, &mut BTreeSet::new());
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

/// The condition of the converted rule, after that of the category.
fn condition(category: &str, detection: &str) -> String {
    let text = rule(category, detection);
    let carried = converted(&text)
        .outcome
        .unwrap_or_else(|why| panic!("{text}{why:?}"));
    let lines = carried
        .text
        .lines()
        .skip_while(|line| !line.contains("condition:"));
    let lines = lines.skip(2).take_while(|line| !line.contains("output:"));
    let lines: Vec<_> = lines
        .map(|line| line.trim().trim_start_matches("and "))
        .collect();
    lines.join(" & ")
}

fn refusal(text: &str) -> String {
    let reasons = converted(text).outcome.expect_err("it is refused");
    let reasons: Vec<_> = reasons
        .iter()
        .map(|reason| format!("{}: {}", reason.location, reason.message))
        .collect();
    reasons.join("\n")
}

/// Selections of starts of programs, and the conditions that they become.
const STARTS: &[(&str, &str)] = &[
    (
        "s: {Image|endswith: /nc}\ncondition: s",
        r#"proc.exepath iglob "*/nc""#,
    ),
    (
        "s: {CommandLine|contains: ' -e '}\ncondition: s",
        r#"proc.exeline icontains " -e ""#,
    ),
    (
        "s: {CommandLine|contains: '12'}\ncondition: s",
        r#"proc.exeline contains "12""#,
    ),
    (
        "s: {CommandLine|cased|startswith: Nc}\ncondition: s",
        r#"proc.exeline startswith "Nc""#,
    ),
    (
        "s: {Image|cased: [/a, /b]}\ncondition: s",
        r#"proc.exepath in ("/a", "/b")"#,
    ),
    ("s: {ProcessId: 7}\ncondition: s", "proc.pid = 7"),
    ("s: {ProcessId|gte: 7}\ncondition: s", "proc.pid >= 7"),
    ("s: {User: null}\ncondition: s", "not user.name exists"),
    ("s: {User|exists: true}\ncondition: s", "user.name exists"),
    ("s: {User: '*'}\ncondition: s", "user.name exists"),
    (
        "s: {CommandLine|contains|all: [a, '1']}\ncondition: s",
        r#"proc.exeline icontains "a" & proc.exeline contains "1""#,
    ),
    (
        "s: {CurrentDirectory: /12}\ncondition: s",
        r#"proc.cwd = "/12/""#,
    ),
    (
        "s: {CommandLine|re|i: 'a b'}\ncondition: s",
        r#"proc.exeline regex "(?s:.*)(?i:a b)(?s:.*)""#,
    ),
    (
        r"s: {CommandLine: 'a\*[?\'}
condition: s",
        r#"proc.exeline iglob "a\\*\\[?\\\x5c""#,
    ),
    (
        "s:\n- {Image|cased: /1}\n- {User|cased: '2'}\ncondition: s",
        r#"(proc.exepath = "/1" or user.name = "2")"#,
    ),
    (
        "a1: {ProcessId: 1}\na2: {ProcessId: 2}\n_b: {User|cased: x}\ncondition: 1 of them and not _b",
        r#"proc.pid in (1, 2) & not user.name = "x""#,
    ),
    (
        "a1: {ProcessId: 1}\na2: {User|cased: x}\ncondition: not (all of a*) or NOT a1",
        r#"(not (proc.pid = 1 and user.name = "x") or not proc.pid = 1)"#,
    ),
    (
        "a: {ProcessId: 1}\nb: {ProcessId: 2}\ncondition: [a, b]",
        "proc.pid in (1, 2)",
    ),
    (
        "a: {ProcessId: 1}\ncondition: not not a",
        "not (not proc.pid = 1)",
    ),
];

/// Selections of connections.
const CONNECTIONS: &[(&str, &str)] = &[
    (
        "s: {DestinationIp|cidr: [10.0.0.0/8, '::1/128']}\ncondition: s",
        r#"fd.snet in ("10.0.0.0/8", "::1/128")"#,
    ),
    (
        "s: {Initiated: 'true', DestinationPort: [1, 2]}\ncondition: s",
        "evt.type = connect & fd.sport in (1, 2)",
    ),
    (
        "s: {DestinationHostname: a.example}\ncondition: s",
        r#"fd.sip.name = "a.example""#,
    ),
];

#[test]
fn selections_become_conditions() {
    for (detection, expected) in STARTS {
        assert_eq!(
            condition("process_creation", detection),
            *expected,
            "{detection}"
        );
    }
    for (detection, expected) in CONNECTIONS {
        assert_eq!(
            condition("network_connection", detection),
            *expected,
            "{detection}"
        );
    }
    let file = "s: {TargetFilename|startswith: /etc/X}\ncondition: s";
    assert_eq!(
        condition("file_event", file),
        r#"fd.name startswith "/etc/X""#
    );
}

#[test]
fn what_is_compared_by_bytes_is_told() {
    for (detection, part) in [
        ("s: {Image: 'a?'}\ncondition: s", "`?` is one byte here"),
        ("s: {Image: 'é'}\ncondition: s", "letters outside of ASCII"),
        (
            "s: {CurrentDirectory|contains: a}\ncondition: s",
            "ends in a slash here",
        ),
        (
            "s: {ParentCommandLine|contains: a}\ncondition: s",
            "not with its argv[0]",
        ),
    ] {
        let carried = converted(&rule("process_creation", detection)).outcome;
        let lost = carried.expect("it is carried").lost;
        assert!(
            lost.len() == 1 && lost[0].message.contains(part),
            "{detection}: {lost:?}"
        );
    }
}

#[test]
fn names_of_selections_are_matched_in_time() {
    let name = "a".repeat(60);
    let detection = format!(
        "{name}: {{User|cased: x}}\ncondition: 1 of {}",
        "*a".repeat(30)
    );
    assert_eq!(
        condition("process_creation", &detection),
        r#"user.name = "x""#
    );
    let reasons = refusal(&rule("process_creation", &format!("{detection}b")));
    assert!(reasons.contains("has no selection for"), "{reasons}");
    for (pattern, fits) in [
        ("a*", true),
        ("*c", true),
        ("a*c", true),
        ("a*b*c", true),
        ("*b*", true),
        ("ab", false),
        ("b*", false),
        ("*b", false),
        ("a*x*c", false),
        ("abc*c", false),
        ("**", true),
    ] {
        let detection = format!("abc: {{User|cased: x}}\ncondition: 1 of {pattern}");
        let found = converted(&rule("process_creation", &detection))
            .outcome
            .is_ok();
        assert_eq!(found, fits, "{pattern}");
    }
}

#[test]
fn what_a_rule_says_of_itself_is_kept() {
    let text = rule("process_creation", "s: {User: x}\ncondition: s")
        + "author: Me\nreferences: ['https://a.example']\n";
    let mut names = BTreeSet::new();
    let twice = convert("rule.yml", &format!("{text}---\n{text}"), &mut names);
    let texts: Vec<_> = twice
        .iter()
        .filter_map(|one| one.outcome.as_ref().ok())
        .collect();
    assert_eq!(
        [&texts[0].name[..], &texts[1].name[..]],
        ["A rule", "A rule (5d1b)"]
    );
    for part in [
        "# Sigma rule 5d1b\n# Author: Me\n# https://a.example\n- rule: \"A rule\"\n",
        "priority: ERROR\n",
        "tags: [\"T1059.004\", \"mitre_defense_evasion\", \"cve.2024-1\"]\n",
    ] {
        assert!(texts[0].text.contains(part), "{}", texts[0].text);
    }
    let tagged = rule("process_creation", "s: {User: x}\ncondition: s").replace(
        "attack.t1059.004",
        "attack.s0029, attack.g0049, level_forensic",
    );
    let carried = converted(&tagged).outcome.expect("tags are texts");
    let tags = r#"tags: ["attack.s0029", "attack.g0049", "sigma.level_forensic", "#;
    assert!(carried.text.contains(tags), "{}", carried.text);
    let hostile = rule("process_creation", "s: {User: x}\ncondition: s")
        .replace("A rule", r#""\e[2J %proc.name: 'x'""#);
    let carried = converted(&hostile).outcome.expect("the title is a text");
    assert!(!carried.text.contains('\u{1b}'), "{}", carried.text);
}

/// Selections that cannot be carried, and why.
const REFUSED: &[(&str, &str)] = &[
    (
        "s: {Imag: x}\ncondition: s",
        "rule.yml:7:7: no field has the meaning of `Imag`; did you mean `Image`?",
    ),
    (
        "s: {Image|contain: x}\ncondition: s",
        "rule.yml:7:7: the modifier `contain` is not carried; did you mean `contains`?",
    ),
    (
        "s: {ProcessId: x}\ncondition: s",
        "rule.yml:7:18: `x` is not an integer: invalid digit found in string",
    ),
    (
        "s: [x, y]\ncondition: s",
        "rule.yml:7:7: keywords look into the line of a log, which events of system calls do not have\n\
          rule.yml:7:10: keywords look into the line of a log, which events of system calls do not have",
    ),
    (
        "s: {Image: x}\ncondition: t",
        "rule.yml:8:14: the rule has no selection `t`",
    ),
    (
        "s: {Image: x}\ncondition: 2 of s*",
        "rule.yml:8:14: `2 of` is not carried; carried are `1 of` and `all of`",
    ),
    (
        "s: {Image: x}\ncondition: s | count() > 5",
        "rule.yml:8:14: `|` counts matches, which Sigma no longer knows; write `count` in a converted rule",
    ),
    (
        "s: {Image: x}\ncondition: (s",
        "rule.yml:8:14: a parenthesis is not closed",
    ),
    (
        "s: {Image: []}\ncondition: s",
        "rule.yml:7:14: the list of values is empty",
    ),
    (
        "s: {}\ncondition: 1 of x*",
        "rule.yml:8:14: the rule has no selection for `x*`",
    ),
    (
        "s: {Image|contains|startswith: a}\ncondition: s",
        "rule.yml:7:7: `contains` and `startswith` exclude each other",
    ),
    (
        "s: {CurrentDirectory|re: '/tmp$'}\ncondition: s",
        "rule.yml:7:28: `proc.cwd` ends in a slash, which an expression for Sigma does not expect",
    ),
];

#[test]
fn what_cannot_be_carried_is_refused_with_its_place() {
    let process = |detection: &str| refusal(&rule("process_creation", detection));
    for (detection, expected) in REFUSED {
        assert_eq!(process(detection), *expected, "{detection}");
    }
    let lookahead = process("s: {Image|re: '(?!a)b'}\ncondition: s");
    assert!(lookahead.contains("regular expression"), "{lookahead}");
    // In a group it would be two expressions.
    let halves = process("s: {Image|re: 'a)|(b'}\ncondition: s");
    assert!(halves.contains("regular expression"), "{halves}");
    let many = format!(
        "s: {{Image: [{}]}}\ncondition: {} s",
        "a, ".repeat(500),
        "s or ".repeat(30)
    );
    assert_eq!(
        process(&many),
        "rule.yml:7:14: the rule has more than 10000 comparisons"
    );
    let deep = format!("s: {{Image: x}}\ncondition: {} s", "not ".repeat(30));
    assert!(
        process(&deep).contains("nests deeper"),
        "{}",
        process(&deep)
    );
    let other = refusal(&rule("registry_event", "s: {Image: x}\ncondition: s"));
    assert!(
        other.contains("`category: registry_event` is not carried"),
        "{other}"
    );
    for (text, part) in [
        (
            "title: x\nlogsource: {product: windows}\n",
            "`product: windows`",
        ),
        (
            "title: x\nlogsource: {product: linux, service: auditd}\n",
            "`service: auditd`",
        ),
        ("title: x\ncorrelation: {}\n", "`correlation`"),
        ("title: x\n", "`logsource` is missing"),
        ("- a\n", "found a list"),
        ("a: [\n", "rule.yml:"),
    ] {
        assert!(refusal(text).contains(part), "{}", refusal(text));
    }
}

/// A field of a start of a program, by Sigma's name and ours.
const FIELDS: [(&str, &str); 3] = [
    ("Image", "proc.exepath"),
    ("CommandLine", "proc.exeline"),
    ("ParentImage", "proc.pexepath"),
];

/// Returns whether a text fits a pattern, as the specification of Sigma says: `*` and `?` are wildcards unless a
/// backslash stands before them, and letters are compared whatever their case.
fn fits(pattern: &[char], text: &[char]) -> bool {
    let same = |a: char, b: char| a.to_lowercase().eq(b.to_lowercase());
    match pattern {
        [] => text.is_empty(),
        ['\\', c @ ('*' | '?' | '\\'), rest @ ..] => {
            text.first() == Some(c) && fits(rest, &text[1..])
        }
        ['*', rest @ ..] => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        ['?', rest @ ..] => !text.is_empty() && fits(rest, &text[1..]),
        [c, rest @ ..] => {
            text.first().is_some_and(|first| same(*first, *c)) && fits(rest, &text[1..])
        }
    }
}

/// One field of a selection: its name, its modifier, whether all values must fit, and the values.
type Line = (usize, &'static str, bool, Vec<String>);

fn matches(lines: &[Line], event: &BTreeMap<&str, String>) -> bool {
    lines.iter().all(|(field, modifier, is_all, values)| {
        let text: Vec<char> = event[FIELDS[*field].0].chars().collect();
        let fits = |value: &String| {
            let pattern = match *modifier {
                "|contains" => format!("*{value}*"),
                "|startswith" => format!("{value}*"),
                "|endswith" => format!("*{value}"),
                _ => value.clone(),
            };
            fits(&pattern.chars().collect::<Vec<_>>(), &text)
        };
        match is_all {
            true => values.iter().all(fits),
            false => values.iter().any(fits),
        }
    })
}

fn line() -> impl Strategy<Value = Line> {
    let modifier = prop::sample::select(vec!["", "|contains", "|startswith", "|endswith"]);
    // A value that ends in a lone backslash would escape the wildcard that a modifier adds.
    let value = r#"[aA/*?\[\] "'-]{1,4}|[aA]\\[*?\\][aA]{0,2}"#;
    (
        0..FIELDS.len(),
        modifier,
        any::<bool>(),
        prop::collection::vec(value, 1..4),
    )
}

fn yaml_of(name: &str, lines: &[Line]) -> String {
    let mut text = format!("{name}:\n");
    for (field, modifier, is_all, values) in lines {
        let all = if *is_all { "|all" } else { "" };
        let values: Vec<_> = values
            .iter()
            .map(|value| yaml::quote::scalar(value))
            .collect();
        text.push_str(&format!(
            "- {}{modifier}{all}: [{}]\n",
            FIELDS[*field].0,
            values.join(", ")
        ));
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The rule and a direct reading of Sigma's specification agree on every event.
    #[test]
    fn a_converted_rule_means_what_the_sigma_rule_means(
        one in prop::collection::vec(line(), 1..3),
        two in prop::collection::vec(line(), 1..3),
        shape in 0_usize..4,
        events in prop::collection::vec(prop::collection::vec(r#"[aA/*?\[\] "'\\-]{1,5}"#, 3), 8),
    ) {
        let conditions = ["one and two", "one or not two", "1 of *", "all of * and not (one and not two)"];
        // A list of groups: one of them must match.
        let any = |lines: &[Line], event: &_| lines.iter().any(|line| matches(std::slice::from_ref(line), event));
        let detection = format!("{}{}condition: {}", yaml_of("one", &one), yaml_of("two", &two), conditions[shape]);
        let carried = converted(&rule("process_creation", &detection)).outcome;
        let carried = carried.map_err(|why| TestCaseError::fail(format!("{detection}{why:?}")))?;
        let (ruleset, problems) = Loader::new().add("rules", &carried.text).finish();
        prop_assert!(problems.is_empty(), "{problems:?}");
        let (engine, _) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(config::rule_files::NoSink));
        for values in events {
            let event: BTreeMap<_, _> = FIELDS.iter().map(|(name, _)| *name).zip(values.iter().cloned()).collect();
            let (one, two) = (any(&one, &event), any(&two, &event));
            let expected = [one && two, one || !two, one || two, one && two][shape];
            let mut given = SyntheticEvent::new("execve", UnsetFields::Absent).expect("a type");
            given.give("evt.rawres", &SyntheticValue::One("0".to_owned())).expect("an integer");
            for ((_, field), value) in FIELDS.iter().zip(values) {
                given.give(field, &SyntheticValue::One(value)).expect("a text");
            }
            let found = !engine.evaluate_synthetic(&given).alerts.is_empty();
            prop_assert_eq!(found, expected, "{}\n{:?}", carried.text, event);
        }
    }
}
