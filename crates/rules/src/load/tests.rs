use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::condition::ast::ExprKind;
use crate::diagnostic::Severity;

fn load(files: &[&str]) -> (Ruleset, Vec<Diagnostic>) {
    let names = ["a.yaml", "b.yaml", "c.yaml"];
    let loader = files
        .iter()
        .zip(names)
        .fold(Loader::new(), |loader, (text, name)| loader.add(name, text));
    loader.finish()
}

/// Loads files without any problem except unused items.
fn clean(files: &[&str]) -> Ruleset {
    let (ruleset, mut diagnostics) = load(files);
    diagnostics.retain(|d| !matches!(d.code, Code::UnusedMacro | Code::UnusedList));
    assert_eq!(diagnostics, [], "{files:?}");
    ruleset
}

/// Returns `line:column CODE message` of each problem.
fn problems(files: &[&str]) -> Vec<String> {
    let (_, diagnostics) = load(files);
    let show = |d: Diagnostic| {
        format!(
            "{}:{} {} {}",
            d.location.line, d.location.column, d.code, d.message
        )
    };
    diagnostics.into_iter().map(show).collect()
}

fn condition(ruleset: &Ruleset, name: &str) -> String {
    ruleset
        .rule(name)
        .unwrap_or_else(|| panic!("no rule {name}"))
        .condition
        .to_string()
}

/// Returns a rule with this condition and more lines, each with its own indentation of two.
fn rule(name: &str, condition: &str, more: &str) -> String {
    format!(
        "- rule: {name}\n  desc: d\n  condition: {condition}\n  output: o %proc.name\n  \
         priority: WARNING\n{more}"
    )
}

#[test]
fn a_rule_has_what_was_written_and_defaults() {
    let text = "
- rule: Full
  desc: what it is
  condition: evt.type = open
  output: '  by %proc.name  '
  priority: info
  source: syscall
  tags: [b, a, b]
  enabled: false
  warn_evttypes: no
  skip-if-unknown-filter: Yes
  capture: true
  capture_duration: 5000
- rule: Short
  desc: d
  condition: evt.type = open
  output: o
  priority: 2
";
    let ruleset = clean(&[text]);
    let full = ruleset.rule("Full").unwrap();
    assert_eq!(full.output.text, "by %proc.name");
    let at = ruleset.locate(crate::condition::ast::Span::new(full.output.source, 3, 4));
    assert_eq!((at.line, at.column), (5, 17));
    assert_eq!(full.priority, crate::ruleset::Priority::Informational);
    assert_eq!(full.tags.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert!(!full.enabled && !full.warn_evttypes && full.skip_if_unknown_filter && full.capture);
    assert_eq!(full.capture_duration_ms, 5000);
    assert_eq!((full.location.line, full.location.column), (2, 3));
    let short = ruleset.rule("Short").unwrap();
    assert_eq!(short.source, "syscall");
    assert!(short.enabled && short.warn_evttypes && !short.skip_if_unknown_filter);
    assert!(!short.capture && short.tags.is_empty() && short.capture_duration_ms == 0);
    assert_eq!(short.priority, crate::ruleset::Priority::Critical);
}

#[test]
fn later_definitions_replace_earlier_ones_in_place() {
    let first = rule("A", "evt.type = open", "") + &rule("B", "evt.type = open", "");
    let second = rule("A", "evt.type = close", "")
        + "- list: l\n  items: [x]\n- macro: m\n  condition: a.b in (l)\n"
        + "- list: l\n  items: [y]\n"
        + &rule("C", "m", "");
    let ruleset = clean(&[&first, &second]);
    let names: Vec<&str> = ruleset.rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["A", "B", "C"]);
    assert_eq!(condition(&ruleset, "A"), "evt.type = close");
    // Lists have no order: the macro sees the last definition.
    assert_eq!(condition(&ruleset, "C"), "a.b in (y)");
}

#[test]
fn lists_expand_by_falcos_quoting_rules() {
    let text = "
- list: inner
  items: [one, 'two words', '\"quoted\"', 22, /usr/bin/*, true]
- list: outer
  items: [inner, 'a,b', 'k=v', outer]
- list: empty
  items: []
";
    let rules = rule("R", "a.b in (x, outer, \"inner\", empty)", "")
        + &rule("S", "a.b in inner or a.b in empty", "")
        + &rule("T", "a.b startswith anyof outer", "");
    let ruleset = clean(&[text, &rules]);
    let inner = "one, \"two words\", \"quoted\", 22, /usr/bin/*, true";
    // `a,b` without quotes is two values; `k=v` cannot be spelt bare; `outer` in itself is a value.
    let outer = format!("{inner}, a, b, \"k=v\", outer");
    assert_eq!(
        condition(&ruleset, "R"),
        format!("a.b in (x, {outer}, \"inner\")")
    );
    assert_eq!(
        condition(&ruleset, "S"),
        format!("a.b in ({inner}) or a.b in ()")
    );
    assert_eq!(
        condition(&ruleset, "T"),
        format!("a.b startswith anyof ({outer})")
    );
    assert!(ruleset.lists.iter().all(|list| list.used));
}

#[test]
fn a_list_of_one_stands_for_a_single_value() {
    let lists = "- list: one\n  items: [v]\n- list: two\n  items: [v, w]\n";
    let ruleset = clean(&[lists, &rule("R", "a.b = one or c.d contains \"one\"", "")]);
    assert_eq!(condition(&ruleset, "R"), "a.b = v or c.d contains \"one\"");
    let found = problems(&[lists, &rule("R", "a.b = two", "")]);
    assert_eq!(
        found,
        ["3:20 LOAD_ERR_COMPILE_CONDITION `=` compares with one value, list `two` has 2"]
    );
}

#[test]
fn an_unknown_list_without_parentheses_is_doubtful() {
    let lists = "- list: shells\n  items: [v]\n";
    let (ruleset, diagnostics) = load(&[lists, &rule("R", "a.b in shels", "")]);
    let doubt = diagnostics
        .iter()
        .find(|d| d.code == Code::DoubtfulCondition)
        .unwrap();
    assert_eq!(doubt.help.as_deref(), Some("did you mean `shells`?"));
    assert_eq!(condition(&ruleset, "R"), "a.b in (shels)");
}

#[test]
fn macros_expand_and_keep_their_names() {
    let text = "
- macro: m1
  condition: a.b = 1
- macro: m2
  condition: (m1 or c.d = 2)
";
    let ruleset = clean(&[text, &rule("R", "not m2 and e.f exists", "")]);
    assert_eq!(
        condition(&ruleset, "R"),
        "not (a.b = 1 or c.d = 2) and e.f exists"
    );
    let rule = ruleset.rule("R").unwrap();
    assert_eq!(format!("{:#}", rule.condition), "not m2 and e.f exists");
    let mut names = Vec::new();
    rule.condition.walk(&mut |expr| {
        assert!(!matches!(expr.kind, ExprKind::Macro(_)));
        if let ExprKind::Expanded { name, .. } = &expr.kind {
            names.push(name.to_string());
        }
        // Each node is found where it was written.
        assert_ne!(ruleset.locate(expr.span).line, 0);
    });
    assert_eq!(names, ["m2", "m1"]);
}

#[test]
fn macros_see_earlier_macros_only() {
    let text = "- macro: m1\n  condition: m2 and a.b = 1\n- macro: m2\n  condition: c.d = 2\n";
    assert_eq!(
        problems(&[text]),
        ["2:14 LOAD_ERR_VALIDATE macro `m2` is defined after this one"]
    );
    // A redefinition counts from where it stands.
    let again = "- macro: m1\n  condition: m2 and a.b = 2\n";
    let ok = "- macro: m1\n  condition: a.b = 1\n- macro: m2\n  condition: c.d = 2\n";
    let ruleset = clean(&[ok, again, &rule("R", "m1", "")]);
    assert_eq!(condition(&ruleset, "R"), "c.d = 2 and a.b = 2");
}

#[test]
fn circles_of_macros_and_lists_are_found() {
    let text = "- macro: a\n  condition: x.y = 1\n- macro: b\n  condition: a\n- macro: a\n  \
                condition: b\n";
    let found = problems(&[text, &rule("R", "a", "")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("refers to itself"), "{found:?}");
    let own = problems(&["- macro: a\n  condition: a\n"]);
    assert!(own[0].contains("`a`"), "{own:?}");
    let text = "- list: a\n  items: [b]\n- list: b\n  items: [c]\n- list: c\n  items: [a]\n";
    let found = problems(&[text]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("list `a` contains itself"), "{found:?}");
}

#[test]
fn undefined_macros_are_all_named_with_suggestions() {
    let text = "- macro: spawned_process\n  condition: a.b = 1\n- list: shells\n  items: [x]\n";
    let (ruleset, diagnostics) = load(&[
        text,
        &rule(
            "R",
            ">\n    spawned_proces\n    and shells\n    and zzzz",
            "",
        ),
    ]);
    assert!(ruleset.rules.is_empty());
    let at = |d: &Diagnostic| (d.location.line, d.location.column);
    assert_eq!(
        diagnostics.iter().map(at).collect::<Vec<_>>(),
        [(4, 5), (5, 9), (6, 9)]
    );
    assert!(
        diagnostics
            .iter()
            .all(|d| d.code == Code::Validate && d.context == "rule R")
    );
    assert_eq!(
        diagnostics[0].help.as_deref(),
        Some("did you mean `spawned_process`?")
    );
    assert!(
        diagnostics[1]
            .help
            .as_deref()
            .unwrap()
            .contains("is a list")
    );
    assert_eq!(diagnostics[2].help, None);
}

#[test]
fn unused_items_are_warned_of_unless_there_are_errors() {
    let text = "- macro: m\n  condition: a.b = 1\n- list: l\n  items: [x]\n";
    let found = problems(&[text]);
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with("1:3 LOAD_UNUSED_MACRO"), "{found:?}");
    assert!(found[1].starts_with("3:3 LOAD_UNUSED_LIST"), "{found:?}");
    let found = problems(&[text, &rule("R", "a.b =", "")]);
    assert_eq!(found.len(), 1, "{found:?}");
}

/// Updates of a rule, and its condition, output, desc, tags, priority, switches and duration of capture after it.
const CHANGES: &[(&str, &str)] = &[
    (
        "- rule: R\n  append: true\n  condition: or c.d = 2\n",
        "a.b = 1 or c.d = 2|o %proc.name|d|x|Warning|0100|0",
    ),
    // The old append looks at nothing but condition and exceptions.
    (
        "- rule: R\n  append: true\n  condition: or c.d = 2\n  output: more\n",
        "a.b = 1 or c.d = 2|o %proc.name|d|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  enabled: true\n",
        "a.b = 1|o %proc.name|d|x|Warning|1100|0",
    ),
    (
        "- rule: R\n  condition: and c.d = 2\n  override:\n    condition: append\n",
        "a.b = 1 and c.d = 2|o %proc.name|d|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  condition: c.d = 2\n  override:\n    condition: replace\n",
        "c.d = 2|o %proc.name|d|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  output: 'f=%fd.name'\n  override: {output: append}\n",
        "a.b = 1|o %proc.name f=%fd.name|d|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  output: new\n  override: {output: replace}\n",
        "a.b = 1|new|d|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  desc: e\n  override: {desc: append}\n",
        "a.b = 1|o %proc.name|d e|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  desc: e\n  override: {desc: replace}\n",
        "a.b = 1|o %proc.name|e|x|Warning|0100|0",
    ),
    (
        "- rule: R\n  tags: [y]\n  override: {tags: append}\n",
        "a.b = 1|o %proc.name|d|x,y|Warning|0100|0",
    ),
    (
        "- rule: R\n  tags: [y]\n  override: {tags: replace}\n",
        "a.b = 1|o %proc.name|d|y|Warning|0100|0",
    ),
    (
        "- rule: R\n  priority: ERROR\n  override: {priority: replace}\n",
        "a.b = 1|o %proc.name|d|x|Error|0100|0",
    ),
    (
        "- rule: R\n  enabled: true\n  override: {enabled: replace}\n",
        "a.b = 1|o %proc.name|d|x|Warning|1100|0",
    ),
    (
        "- rule: R\n  warn_evttypes: false\n  override: {warn_evttypes: replace}\n",
        "a.b = 1|o %proc.name|d|x|Warning|0000|0",
    ),
    (
        "- rule: R\n  skip-if-unknown-filter: true\n  override: {skip-if-unknown-filter: replace}\n",
        "a.b = 1|o %proc.name|d|x|Warning|0110|0",
    ),
    (
        "- rule: R\n  capture: true\n  capture_duration: 7\n  override:\n    capture: replace\n    \
          capture_duration: replace\n",
        "a.b = 1|o %proc.name|d|x|Warning|0101|7",
    ),
    (
        "- rule: R\n  condition: and c.d = 2\n  priority: DEBUG\n  tags: [y]\n  override:\n    \
          condition: append\n    priority: replace\n    tags: append\n",
        "a.b = 1 and c.d = 2|o %proc.name|d|x,y|Debug|0100|0",
    ),
    ("[]", "a.b = 1|o %proc.name|d|x|Warning|0100|0"),
];

#[test]
fn append_and_override_change_what_they_name() {
    let base = rule("R", "a.b = 1", "  tags: [x]\n  enabled: false\n");
    let all = |update: &str| {
        let (ruleset, diagnostics) = load(&[&base, update]);
        let errors = diagnostics
            .iter()
            .filter(|d| d.severity == Severity::Error)
            .count();
        assert_eq!(errors, 0, "{diagnostics:?}");
        let rule = ruleset.rule("R").unwrap();
        let tags: Vec<&str> = rule.tags.iter().map(String::as_str).collect();
        let flags = [
            rule.enabled,
            rule.warn_evttypes,
            rule.skip_if_unknown_filter,
            rule.capture,
        ];
        let flags: String = flags.iter().map(|on| if *on { '1' } else { '0' }).collect();
        format!(
            "{}|{}|{}|{}|{}|{flags}|{}",
            rule.condition,
            rule.output.text,
            rule.desc,
            tags.join(","),
            rule.priority,
            rule.capture_duration_ms,
        )
    };
    for &(update, expected) in CHANGES {
        assert_eq!(all(update), expected, "{update}");
    }
}

#[test]
fn append_and_override_of_macros_and_lists() {
    let base = "- macro: m\n  condition: a.b = 1\n- list: l\n  items: [x]\n";
    let user = rule("R", "m and c.d in (l)", "");
    for (update, expected) in [
        (
            "- macro: m\n  condition: or a.b = 2\n  append: true\n",
            "(a.b = 1 or a.b = 2) and c.d in (x)",
        ),
        (
            "- macro: m\n  condition: or a.b = 2\n  override: {condition: append}\n",
            "(a.b = 1 or a.b = 2) and c.d in (x)",
        ),
        (
            "- macro: m\n  condition: a.b = 2\n  override: {condition: replace}\n",
            "a.b = 2 and c.d in (x)",
        ),
        (
            "- macro: m\n  condition: a.b = 3\n",
            "a.b = 3 and c.d in (x)",
        ),
        (
            "- list: l\n  items: [y]\n  append: true\n",
            "a.b = 1 and c.d in (x, y)",
        ),
        (
            "- list: l\n  items: [y]\n  append: false\n",
            "a.b = 1 and c.d in (y)",
        ),
        (
            "- list: l\n  items: [y]\n  override: {items: append}\n",
            "a.b = 1 and c.d in (x, y)",
        ),
        (
            "- list: l\n  items: [y]\n  override: {items: replace}\n",
            "a.b = 1 and c.d in (y)",
        ),
        ("- list: l\n  items: [y]\n", "a.b = 1 and c.d in (y)"),
    ] {
        let (ruleset, diagnostics) = load(&[base, update, &user]);
        assert!(
            !diagnostics.iter().any(Diagnostic::is_error),
            "{diagnostics:?}"
        );
        assert_eq!(condition(&ruleset, "R"), expected, "{update}");
        let old = update.contains("append: true");
        let warned = diagnostics.iter().any(|d| d.code == Code::DeprecatedItem);
        assert_eq!(old, warned, "{update}");
    }
}

/// Updates of rule R, macro m or list l, with the expected problem.
const WRONG_UPDATES: &[(&str, &str)] = &[
    (
        "- rule: Q\n  append: true\n  condition: or x\n",
        "1:3 LOAD_ERR_VALIDATE no rule `Q` to append to yet",
    ),
    (
        "- rule: Q\n  condition: x\n  override: {condition: replace}\n",
        "1:3 LOAD_ERR_VALIDATE no rule `Q` to override yet",
    ),
    (
        "- rule: Q\n  enabled: true\n",
        "1:3 LOAD_ERR_VALIDATE no rule `Q` to enable or disable yet",
    ),
    (
        "- macro: q\n  append: true\n  condition: or x\n",
        "1:3 LOAD_ERR_VALIDATE no macro `q` to append to yet",
    ),
    (
        "- list: q\n  items: []\n  override: {items: append}\n",
        "1:3 LOAD_ERR_VALIDATE no list `q` to append to yet",
    ),
    (
        "- rule: R\n  append: true\n  condition: or x\n  override: {condition: append}\n",
        "1:3 LOAD_ERR_YAML_VALIDATE `override` and `append: true` cannot be used together",
    ),
    (
        "- macro: m\n  append: true\n  condition: or x\n  override: {condition: append}\n",
        "1:3 LOAD_ERR_YAML_VALIDATE `override` and `append: true` cannot be used together",
    ),
    (
        "- list: l\n  append: true\n  items: []\n  override: {items: append}\n",
        "1:3 LOAD_ERR_YAML_VALIDATE `override` and `append: true` cannot be used together",
    ),
    (
        "- rule: R\n  append: true\n",
        "1:3 LOAD_ERR_VALIDATE an appended rule needs a condition or exceptions",
    ),
    (
        "- rule: R\n  override: {condition: append}\n",
        "1:3 LOAD_ERR_YAML_VALIDATE `override` names `condition`, which is not given",
    ),
    (
        "- rule: R\n  desc: e\n  output: o\n  override: {desc: replace}\n",
        "3:3 LOAD_ERR_YAML_VALIDATE `output` is given but not named under `override`",
    ),
    (
        "- rule: R\n  priority: ERROR\n  override: {priority: append}\n",
        "3:24 LOAD_ERR_YAML_VALIDATE `priority` cannot be appended to",
    ),
    (
        "- rule: R\n  enabled: true\n  override: {enabled: append}\n",
        "3:23 LOAD_ERR_YAML_VALIDATE `enabled` cannot be appended to",
    ),
    (
        "- rule: R\n  source: x\n  override: {source: replace}\n",
        "3:22 LOAD_ERR_YAML_VALIDATE `source` cannot be overridden",
    ),
    (
        "- rule: R\n  desc: e\n  override: {desc: remove}\n",
        "3:20 LOAD_ERR_YAML_VALIDATE the override of `desc` has to be `append` or `replace`",
    ),
    (
        "- rule: R\n  desc: e\n  override: desc\n",
        "3:13 LOAD_ERR_YAML_VALIDATE override has to be a mapping, found a scalar",
    ),
    (
        "- macro: m\n  condition: x\n  override: {items: replace}\n",
        "3:21 LOAD_ERR_YAML_VALIDATE `items` cannot be overridden",
    ),
    (
        "- rule: R\n  append: true\n  condition: or x\n  source: k8s_audit\n",
        "1:3 LOAD_ERR_VALIDATE the rule has source `k8s_audit` here and `syscall` in its definition \
          at a.yaml:1:3",
    ),
    (
        "- rule: R\n",
        "1:3 LOAD_ERR_YAML_VALIDATE a rule needs condition, output, desc and priority, or \
          `override`, or `enabled` to switch an earlier rule",
    ),
];

#[test]
fn updates_that_cannot_be_are_refused() {
    let base =
        rule("R", "a.b = 1", "") + "- macro: m\n  condition: a.b = 1\n- list: l\n  items: [x]\n";
    for &(update, expected) in WRONG_UPDATES {
        let found = problems(&[&base, update]);
        assert!(
            found.iter().any(|problem| problem == expected),
            "{update}\n{found:#?}"
        );
    }
}

#[test]
fn an_item_in_error_is_not_missed_again() {
    let broken = "- macro: m\n- list: l\n  items: 3\n- rule: R\n  condition: x\n";
    let update = "- macro: m\n  append: true\n  condition: or a.b = 2\n- list: l\n  append: true\n  \
                  items: [x]\n- rule: R\n  enabled: true\n";
    let (_, diagnostics) = load(&[broken, update, &rule("S", "m and a.b in l", "")]);
    let errors: Vec<_> = diagnostics.iter().filter(|d| d.is_error()).collect();
    assert!(
        errors.iter().all(|d| &*d.location.file == "a.yaml"),
        "{errors:#?}"
    );
    // The macro, the list, and three keys of the rule.
    assert_eq!(errors.len(), 5, "{errors:#?}");
}

/// Exceptions of a rule, with the part of the condition that excludes them.
const EXCEPTIONS: &[(&str, &str)] = &[
    // A list of fields: `=` unless comps say otherwise.
    (
        "    - name: e\n      fields: [c.d, e.f]\n      values:\n        - [x, y]\n        - [z, 'a b']\n",
        "(c.d = x and e.f = y or c.d = z and e.f = \"a b\")",
    ),
    (
        "    - name: e\n      fields: [c.d, e.f]\n      comps: [in, startswith]\n      values:\n        \
          - [[x, 'a b', l], /etc]\n",
        "(c.d in (x, \"a b\", p, q) and e.f startswith /etc)",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      values: [[x]]\n",
        "c.d = x",
    ),
    // A list operator takes a scalar too, with or without parentheses.
    (
        "    - name: e\n      fields: [c.d]\n      comps: [in]\n      values: [[x], ['(y, z)'], [l]]\n",
        "(c.d in (x) or c.d in (y, z) or c.d in (p, q))",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      comps: [startswith anyof]\n      values: [[[x, y]]]\n",
        "c.d startswith anyof (x, y)",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      comps: ['>=']\n      values: [[10]]\n",
        "c.d >= 10",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      values: [['val(e.f)']]\n",
        "c.d = val(e.f)",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      values: [['k=v']]\n",
        "c.d = \"k=v\"",
    ),
    (
        "    - name: e\n      fields: [c.d]\n      values: [['\"q r\"']]\n",
        "c.d = \"q r\"",
    ),
    (
        "    - name: e\n      fields: ['proc.aname[2]']\n      values: [[x]]\n",
        "proc.aname[2] = x",
    ),
    // A single field: `in` unless comps say otherwise, all values in one list.
    (
        "    - name: e\n      fields: c.d\n      values: [x, 'a b', l]\n",
        "c.d in (x, \"a b\", p, q)",
    ),
    (
        "    - name: e\n      fields: c.d\n      comps: pmatch\n      values: [/etc, /usr]\n",
        "c.d pmatch (/etc, /usr)",
    ),
    (
        "    - name: e\n      fields: c.d\n      comps: endswith oneof\n      values: [x]\n",
        "c.d endswith oneof (x)",
    ),
];

#[test]
fn exceptions_become_part_of_the_condition() {
    let build = |exceptions: &str| {
        let lists = "- list: l\n  items: [p, q]\n";
        let text = rule(
            "R",
            "a.b = 1 or a.b = 2",
            &format!("  exceptions:\n{exceptions}"),
        );
        condition(&clean(&[lists, &text]), "R")
    };
    let own = "(a.b = 1 or a.b = 2)";
    for &(exceptions, expected) in EXCEPTIONS {
        assert_eq!(
            build(exceptions).replace(" and a.b in (p, q)", ""),
            format!("{own} and not {expected}"),
            "{exceptions}"
        );
    }
    // Without values an exception has no effect; several have one each.
    assert_eq!(
        build("    - name: e\n      fields: [c.d]\n"),
        "a.b = 1 or a.b = 2"
    );
    assert_eq!(
        build("    - name: e\n      fields: c.d\n      values: []\n"),
        "a.b = 1 or a.b = 2"
    );
    assert_eq!(
        build(
            "    - {name: e, fields: c.d, values: [x]}\n    - {name: f, fields: [g.h], values: [[y]]}\n"
        ),
        format!("{own} and not c.d in (x) and not g.h = y")
    );
    let ruleset = clean(&[&rule(
        "R",
        "a.b = 1",
        "  exceptions: [{name: e, fields: [c.d, e.f]}]\n",
    )]);
    let exception = &ruleset.rule("R").unwrap().exceptions[0];
    assert_eq!(exception.comps, ["=", "="]);
    assert_eq!(exception.fields, ["c.d", "e.f"]);
}

#[test]
fn exceptions_can_be_appended_to() {
    let base = rule(
        "R",
        "a.b = 1",
        "  exceptions:\n    - {name: e, fields: [c.d], values: [[x]]}\n",
    );
    for update in [
        "- rule: R\n  append: true\n  exceptions: [{name: e, values: [[y]]}]\n",
        "- rule: R\n  exceptions: [{name: e, values: [[y]]}]\n  override: {exceptions: append}\n",
    ] {
        let (ruleset, _) = load(&[&base, update]);
        assert_eq!(
            condition(&ruleset, "R"),
            "a.b = 1 and not (c.d = x or c.d = y)"
        );
    }
    let update = "- rule: R\n  exceptions: [{name: f, fields: e.f, values: [y]}]\n  override: {exceptions: OP}\n";
    let (ruleset, _) = load(&[&base, &update.replace("OP", "append")]);
    assert_eq!(
        condition(&ruleset, "R"),
        "a.b = 1 and not c.d = x and not e.f in (y)"
    );
    let (ruleset, _) = load(&[&base, &update.replace("OP", "replace")]);
    assert_eq!(condition(&ruleset, "R"), "a.b = 1 and not e.f in (y)");
}

/// Exceptions of a rule, with an expected problem.
const WRONG_EXCEPTIONS: &[(&str, &str)] = &[
    (
        "e",
        "6:15 LOAD_ERR_YAML_VALIDATE `exceptions` has to be a list, found a scalar",
    ),
    (
        "[e]",
        "6:16 LOAD_ERR_YAML_VALIDATE an exception has to be a mapping, found a scalar",
    ),
    (
        "[{fields: c.d}]",
        "6:16 LOAD_ERR_YAML_VALIDATE an exception needs a name",
    ),
    (
        "[{name: e}]",
        "6:16 LOAD_ERR_YAML_VALIDATE exception `e` needs fields",
    ),
    (
        "[{name: e, fields: c.d, values: x}]",
        "6:47 LOAD_ERR_YAML_VALIDATE `values` has to be a list, found a scalar",
    ),
    (
        "[{name: e, fields: [c.d, e.f], comps: [in]}]",
        "6:53 LOAD_ERR_VALIDATE exception `e` has 2 fields and 1 comps",
    ),
    (
        "[{name: e, fields: [c.d], comps: in}]",
        "6:48 LOAD_ERR_VALIDATE exception `e` has a list of fields: comps has to be a list too",
    ),
    (
        "[{name: e, fields: c.d, comps: [in]}]",
        "6:46 LOAD_ERR_VALIDATE exception `e` has a single field: comps has to be a single one too",
    ),
    (
        "[{name: e, fields: c.d, comps: startswith, values: [x]}]",
        "6:46 LOAD_ERR_VALIDATE exception `e` has a single field: comps has to compare with a list \
          (`in`, `pmatch`, `intersects`, `startswith anyof` ..)",
    ),
    (
        "[{name: e, fields: c.d, values: [[x]]}]",
        "6:48 LOAD_ERR_VALIDATE exception `e` has a single field: values are scalars, not lists",
    ),
    (
        "[{name: e, fields: [c.d], comps: [inn], values: [[x]]}]",
        "6:49 LOAD_ERR_VALIDATE `inn` is not an operator that compares with values",
    ),
    (
        "[{name: e, fields: [c.d, e.f], values: [[x]]}]",
        "6:55 LOAD_ERR_VALIDATE exception `e` has 2 fields, so each of its values is a list of 2, \
          found 1 entries",
    ),
    (
        "[{name: e, fields: [c.d, e.f], values: [x]}]",
        "6:55 LOAD_ERR_VALIDATE exception `e` has 2 fields, so each of its values is a list of 2, \
          found a scalar",
    ),
    (
        "[{name: e, fields: [c.d], values: [[[x]]]}]",
        "6:51 LOAD_ERR_VALIDATE `=` compares with one value, not with a list",
    ),
    (
        "[{name: e, fields: [c.d], comps: [in], values: [[[[x]]]]}]",
        "6:65 LOAD_ERR_VALIDATE a list inside a list of values",
    ),
    (
        "[{name: e, fields: [c.d], comps: ['<'], values: [[x]]}]",
        "6:65 LOAD_ERR_VALIDATE `<` compares with a number, found `x`",
    ),
    (
        "[{name: e, fields: [name], values: [[x]]}]",
        "6:35 LOAD_ERR_COMPILE_CONDITION `name` is not a field: expected a field or a transformer, \
          found `name`",
    ),
    (
        "[{name: e, fields: c.d, values: [x]}, {name: e, fields: c.d, values: [x]}]",
        "6:53 LOAD_EXCEPTION_NAME_NOT_UNIQUE exception `e` is defined twice",
    ),
    (
        "[{name: e, fields: c.d, value: [x]}]",
        "6:46 LOAD_UNKNOWN_KEY unknown key `value` is ignored",
    ),
];

/// Exceptions that are appended to those of a rule, with part of an expected problem.
const WRONG_ADDITIONS: &[(&str, &str)] = &[
    (
        "[{name: e}]",
        "LOAD_APPEND_NO_VALUES exception `e` is appended to without values",
    ),
    (
        "[{name: e, fields: [c.d], values: [[x]]}]",
        "only values can be appended to it",
    ),
    (
        "[{name: e, comps: [in], values: [[x]]}]",
        "only values can be appended to it",
    ),
    (
        "[{name: f, values: [[x]]}]",
        "exception `f` is new and needs fields",
    ),
    (
        "[{name: f, fields: c.d}]",
        "exception `f` is new and needs values",
    ),
];

#[test]
fn wrong_exceptions_are_refused_where_they_are_wrong() {
    for &(exceptions, expected) in WRONG_EXCEPTIONS {
        let found = problems(&[&rule(
            "R",
            "a.b = 1",
            &format!("  exceptions: {exceptions}\n"),
        )]);
        assert!(
            found.iter().any(|problem| problem == expected),
            "{exceptions}\n{found:#?}"
        );
    }
    let base = rule(
        "R",
        "a.b = 1",
        "  exceptions:\n    - {name: e, fields: [c.d], values: [[x]]}\n",
    );
    for &(exceptions, expected) in WRONG_ADDITIONS {
        let update =
            format!("- rule: R\n  exceptions: {exceptions}\n  override: {{exceptions: append}}\n");
        let found = problems(&[&base, &update]);
        assert!(
            found.iter().any(|problem| problem.contains(expected)),
            "{exceptions}\n{found:#?}"
        );
    }
}

/// Files of invalid structure, with their first problem.
const WRONG_SHAPES: &[(&str, &str)] = &[
    (
        "a: b: c\n",
        "1:5 LOAD_ERR_YAML_PARSE mapping values are not allowed in this context",
    ),
    ("- rule: [\n", "LOAD_ERR_YAML_PARSE"),
    (
        "- a: *nothing\n",
        "1:6 LOAD_ERR_YAML_PARSE while parsing node, found unknown anchor",
    ),
    ("- &a [*a]\n", "LOAD_ERR_YAML_PARSE"),
    ("\"unclosed\n", "LOAD_ERR_YAML_PARSE"),
    (
        "just text\n",
        "1:1 LOAD_ERR_YAML_VALIDATE expected a list of items, found a scalar",
    ),
    (
        "rule: R\n",
        "1:1 LOAD_ERR_YAML_VALIDATE expected a list of items, found a mapping",
    ),
    (
        "- text\n",
        "1:3 LOAD_ERR_YAML_VALIDATE expected an item, a mapping with keys, found a scalar",
    ),
    (
        "- [a]\n",
        "1:3 LOAD_ERR_YAML_VALIDATE expected an item, a mapping with keys, found a list",
    ),
    (
        "- foo: bar\n",
        "1:3 LOAD_UNKNOWN_ITEM item of unknown kind (first key `foo`) is ignored",
    ),
    ("- rule:\n", "1:7 LOAD_ERR_YAML_VALIDATE `rule` is empty"),
    ("- rule: ''\n", "1:9 LOAD_ERR_YAML_VALIDATE `rule` is empty"),
    (
        "- rule: [a]\n",
        "1:9 LOAD_ERR_YAML_VALIDATE `rule` has to be a scalar, found a list",
    ),
    (
        "- macro: m\n",
        "1:3 LOAD_ERR_YAML_VALIDATE the key `condition` is missing",
    ),
    (
        "- macro: m\n  condition: [a]\n",
        "2:14 LOAD_ERR_YAML_VALIDATE `condition` has to be a scalar, found a list",
    ),
    (
        "- macro: 1-m\n  condition: a.b exists\n",
        "1:3 LOAD_INVALID_MACRO_NAME no condition can spell the name `1-m`",
    ),
    (
        "- list: a b\n  items: []\n",
        "1:3 LOAD_INVALID_LIST_NAME no condition can spell the name `a b`",
    ),
    (
        "- list: l\n",
        "1:3 LOAD_ERR_YAML_VALIDATE the key `items` is missing",
    ),
    (
        "- list: l\n  items: x\n",
        "2:10 LOAD_ERR_YAML_VALIDATE `items` has to be a list, found a scalar",
    ),
    (
        "- list: l\n  items: [x, ~]\n",
        "2:14 LOAD_ERR_YAML_VALIDATE an entry of `items` is empty",
    ),
    (
        "- list: l\n  items: [x, [y]]\n",
        "2:14 LOAD_ERR_YAML_VALIDATE an entry of `items` has to be a scalar, found a list",
    ),
    (
        "- list: l\n  items: []\n  apend: true\n",
        "3:3 LOAD_UNKNOWN_KEY unknown key `apend` is ignored",
    ),
    (
        "- list: l\n  items: []\n  items: [x]\n",
        "3:3 LOAD_UNKNOWN_KEY duplicate key `items`; the first one is used",
    ),
    (
        "- list: l\n  items: []\n  [a]: b\n",
        "3:3 LOAD_UNKNOWN_KEY a key has to be a scalar, found a list",
    ),
    (
        "- list: l\n  items: []\n  append: maybe\n",
        "3:11 LOAD_ERR_YAML_VALIDATE `append` has to be true or false, found `maybe`",
    ),
    (
        "- required_engine_version: abc\n",
        "1:28 LOAD_ERR_YAML_VALIDATE `abc` is not a version such as 0.57.0",
    ),
    (
        "- required_engine_version: 0.99.0\n",
        "1:28 LOAD_ERR_VALIDATE the rules need engine version 0.99.0, this is 0.63.0",
    ),
    (
        "- required_engine_version: 64\n",
        "1:28 LOAD_ERR_VALIDATE the rules need engine version 0.64.0, this is 0.63.0",
    ),
    (
        "- required_engine_version: 1.0.0\n",
        "1:28 LOAD_ERR_VALIDATE the rules need engine version 1.0.0, this is 0.63.0",
    ),
    (
        "- required_plugin_versions: x\n",
        "1:29 LOAD_ERR_YAML_VALIDATE `required_plugin_versions` has to be a list, found a scalar",
    ),
    (
        "- required_plugin_versions: [{name: json}]\n",
        "1:30 LOAD_ERR_YAML_VALIDATE a plugin needs the key `version`",
    ),
    (
        "- required_plugin_versions: [{name: json, version: one}]\n",
        "1:30 LOAD_ERR_VALIDATE `one`, asked of plugin `json`, is not a version such as 0.2.0",
    ),
    (
        "- required_plugin_versions: [{name: json, version: 0.1.0}]\n",
        "1:30 LOAD_ERR_VALIDATE the rules need a missing plugin: json >= 0.1.0",
    ),
    (
        "- required_plugin_versions:\n  - name: a\n    version: 0.1.0\n    alternatives:\n      - name: b\n        version: 0.2.0\n",
        "2:5 LOAD_ERR_VALIDATE the rules need a missing plugin: a >= 0.1.0 or b >= 0.2.0",
    ),
    (
        "- required_plugin_versions:\n  - name: a\n    version: 0.1.0\n    alternatives:\n      - name: a\n        version: 0.2.0\n",
        "5:9 LOAD_ERR_VALIDATE plugin `a` is listed twice as an alternative",
    ),
    (
        "- required_plugin_versions: [{name: container, version: 99.0.0}]\n",
        "1:30 LOAD_ERR_VALIDATE the rules need a missing plugin: container >= 99.0.0 (this is 0.7.0)",
    ),
];

/// Invalid lines of a rule, with part of their problem.
const WRONG_VALUES: &[(&str, &str)] = &[
    ("  priority: loud\n", "unknown priority `loud`"),
    ("  priority: 9\n", "unknown priority `9`"),
    ("  tags: x\n", "`tags` has to be a list"),
    (
        "  enabled: 1\n",
        "`enabled` has to be true or false, found `1`",
    ),
    (
        "  capture_duration: long\n",
        "`capture_duration` has to be milliseconds, found `long`",
    ),
    (
        "  capture_duration: -1\n",
        "`capture_duration` has to be milliseconds, found `-1`",
    ),
    (
        "  source: audit\n",
        "LOAD_UNKNOWN_SOURCE no events of source `audit` are produced",
    ),
    (
        "  tag: [x]\n",
        "LOAD_UNKNOWN_KEY unknown key `tag` is ignored",
    ),
];

#[test]
fn wrong_yaml_is_refused_with_its_place() {
    for &(text, expected) in WRONG_SHAPES {
        let mut found = problems(&[text]);
        found.retain(|problem| !problem.contains("LOAD_UNUSED"));
        assert!(
            found
                .first()
                .is_some_and(|problem| problem.contains(expected)),
            "{text}\n{found:#?}"
        );
    }
    for &(line, expected) in WRONG_VALUES {
        let text = match line.contains("priority") {
            true => rule("R", "a.b = 1", "").replace("  priority: WARNING\n", line),
            false => rule("R", "a.b = 1", line),
        };
        let found = problems(&[&text]);
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{line}{found:#?}"
        );
    }
}

#[test]
fn requirements_that_hold_are_kept() {
    let text = "
- required_engine_version: 26
- required_engine_version: 0.57.0
- required_plugin_versions:
  - name: nothing
    version: 1.0.0
    alternatives:
      - name: container
        version: 0.2.0
";
    let ruleset = clean(&[text]);
    assert_eq!(
        ruleset.required_engine_version,
        Some(Version::new(0, 57, 0))
    );
    assert_eq!(ruleset.required_plugins[0].alternatives.len(), 2);
    let audit = rule("R", "a.b = 1", "  source: audit\n")
        + "- required_plugin_versions: [{name: json, version: 0.1.0}]\n";
    let loader = Loader::new()
        .with_source("audit")
        .with_plugin("json", Version::new(0, 7, 3));
    let (ruleset, diagnostics) = loader.add("a", &audit).finish();
    assert_eq!(diagnostics, []);
    assert_eq!(ruleset.rules[0].source, "audit");
}

#[test]
fn every_problem_of_every_file_is_reported_in_order() {
    let a = rule("A", "a.b = = 1", "") + &rule("B", "nothing", "") + "- foo: 1\n- macro: m\n";
    let b = rule("C", "(a.b", "") + "- list: [x]\n";
    let (_, diagnostics) = load(&[&a, &b]);
    let places: Vec<String> = diagnostics
        .iter()
        .map(|d| format!("{}:{}", d.location.file, d.location.line))
        .collect();
    assert_eq!(
        places,
        [
            "a.yaml:3",
            "a.yaml:8",
            "a.yaml:11",
            "a.yaml:12",
            "b.yaml:3",
            "b.yaml:6"
        ]
    );
    let (_, diagnostics) = Loader::new()
        .add_unreadable("x", "permission denied")
        .finish();
    assert_eq!(diagnostics[0].code, Code::FileRead);
}

#[test]
fn several_documents_and_comments_are_one_file() {
    let text = format!(
        "# c\n---\n{}---\n~\n---\n{}...\n",
        rule("A", "a.b = 1", ""),
        rule("B", "a.b = 2", "")
    );
    assert_eq!(clean(&[&text]).rules.len(), 2);
    assert_eq!(clean(&["", "# nothing\n", "---\n"]).rules.len(), 0);
    // Items before a syntax error are still checked.
    let (ruleset, diagnostics) = load(&[&format!("{}---\n- a: *b\n", rule("A", "a.b = 1", ""))]);
    assert_eq!((ruleset.rules.len(), diagnostics.len()), (1, 1));
}

/// Public rule files close a list at the indentation of its key, which strict parsers refuse.
#[test]
fn a_bracket_may_close_at_the_indentation_of_the_key() {
    let text = "- list: l\n  items: [\n    \"x\",\n    \"y\"\n  ]\n\n";
    assert_eq!(
        condition(&clean(&[text, &rule("R", "a.b in l", "")]), "R"),
        "a.b in (x, y)"
    );
}

#[test]
fn an_update_may_leave_its_source_empty() {
    let base = rule("R", "a.b = 1", "");
    let update = "- rule: R\n  append: true\n  source: ''\n  condition: or a.b = 2\n";
    let (ruleset, diagnostics) = load(&[&base, update]);
    assert!(
        !diagnostics.iter().any(Diagnostic::is_error),
        "{diagnostics:?}"
    );
    assert_eq!(condition(&ruleset, "R"), "a.b = 1 or a.b = 2");
}

#[test]
fn anchors_and_aliases_are_followed() {
    let text = "- list: l\n  items: &i [x, y]\n- list: k\n  items: *i\n";
    let ruleset = clean(&[text, &rule("R", "a.b in (k, l)", "")]);
    assert_eq!(condition(&ruleset, "R"), "a.b in (x, y, x, y)");
}

/// Positions shown for an error in a condition, by style of the scalar.
#[test]
fn errors_in_conditions_point_into_the_file() {
    for (condition, line, column) in [
        ("a.b ~ 1", 3, 18),
        ("  a.b ~ 1", 3, 20),
        ("'a.b ~ 1'", 3, 19),
        ("\"a.b ~ 1\"", 3, 19),
        ("'a.b = ''x'' and c.d ~ 1'", 3, 35),
        ("\"a.b = \\\"x\\\" and c.d ~ 1\"", 3, 35),
        ("\"a.b = \\x41 and c.d ~ 1\"", 3, 34),
        ("\"a.b = 1 \\\n    and c.d ~ 1\"", 4, 13),
        ("\"a.b = 1\n\n    and c.d ~ 1\"", 5, 13),
        ("a.b = 1\n    and\n    c.d ~ 1", 5, 9),
        ("&x a.b ~ 1", 3, 21),
        ("!!str 'a.b ~ 1'", 3, 25),
        (">\n    a.b = 1 and\n    c.d ~ 1", 5, 9),
        (">-\n    a.b = 1\n\n\n    and c.d ~ 1", 7, 13),
        (">\n    (a.b = 1\n      and c.d ~ 1)\n", 5, 15),
        (">2\n      a.b = 1\n    and c.d ~ 1", 5, 13),
        ("|\n    a.b = 1 and\n    c.d ~ 1", 5, 9),
        ("|+\n\n    a.b = 1 and\n\n    c.d ~ 1\n\n", 7, 9),
        (">\n    a.b = \u{e4}\u{f6} and\n    c.d \u{fc} 1", 5, 9),
        (">\n    a.b = \"x\n    y\" and c.d ~ 1", 5, 16),
        (">\n    a.b = 1 and   \n   \n    c.d ~ 1", 6, 9),
    ] {
        let text = rule("R", condition, "");
        for text in [text.replace('\n', "\r\n"), text] {
            let (_, diagnostics) = load(&[&text]);
            assert_eq!(diagnostics.len(), 1, "{text}\n{diagnostics:#?}");
            let at = &diagnostics[0].location;
            assert_eq!(
                (at.line, at.column),
                (line, column),
                "{text:?}\n{diagnostics:#?}"
            );
            assert_eq!(diagnostics[0].code, Code::CompileCondition);
        }
    }
}

#[test]
fn a_byte_order_mark_shifts_no_position() {
    let text = format!(
        "\u{feff}{}",
        rule("R", ">\n    a.b = 1 and\n    c.d ~ 1", "")
    );
    let (_, diagnostics) = load(&[&text]);
    let at = &diagnostics[0].location;
    assert_eq!((at.line, at.column), (5, 9), "{diagnostics:?}");
}

/// Quadratic work here would take minutes.
#[test]
fn long_lines_and_many_unknown_names_take_no_time() {
    let items = vec!["\u{e4}bc"; 100_000].join(", ");
    let text = format!("- list: l\n  items: [{items}]\n");
    assert_eq!(load(&[&text]).0.lists[0].items.len(), 100_000);
    let mut text = String::new();
    for n in 0..5_000 {
        writeln!(text, "- macro: m{n}\n  condition: unknown{n}").unwrap();
    }
    assert_eq!(load(&[&text]).1.len(), 5_000);
}

#[test]
fn errors_in_appended_text_point_into_its_file() {
    let base = rule("R", ">\n    a.b = 1", "");
    let update = "# c\n- rule: R\n  condition: and c.d ~ 1\n  override: {condition: append}\n";
    let (_, diagnostics) = load(&[&base, update]);
    let at = &diagnostics[0].location;
    assert_eq!((&*at.file, at.line, at.column), ("b.yaml", 3, 22));
    let shown = diagnostics[0].render(Some(update));
    assert!(
        shown.contains("\n 3 |   condition: and c.d ~ 1\n   |                      ^"),
        "{shown}"
    );
}

#[test]
fn limits_stop_bombs() {
    // YAML: nine aliases of nine aliases of ..
    let mut bomb = "- &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        writeln!(bomb, "- &a{level} [{aliases}]").unwrap();
    }
    assert!(
        problems(&[&bomb])
            .concat()
            .contains("after following aliases")
    );
    // A few aliases of one huge text.
    let huge = format!("- &a {}\n", "x".repeat(1 << 20)) + &"- *a\n".repeat(1000);
    assert!(
        problems(&[&huge])
            .concat()
            .contains("after following aliases")
    );
    // Macros and lists that double at each step.
    let mut macros = "- macro: m0\n  condition: a.b = 1\n".to_owned();
    let mut lists = "- list: l0\n  items: [x]\n".to_owned();
    for level in 1..40 {
        let last = level - 1;
        writeln!(macros, "- macro: m{level}\n  condition: m{last} or m{last}").unwrap();
        writeln!(lists, "- list: l{level}\n  items: [l{last}, l{last}]").unwrap();
    }
    assert!(problems(&[&macros]).concat().contains("checks and values"));
    assert!(problems(&[&lists]).concat().contains("values together"));
    // Depth: of YAML, of macros in macros, of lists in later lists.
    let deep = "[".repeat(2000);
    assert!(problems(&[&deep]).concat().contains("LOAD_ERR_YAML_PARSE"));
    let deep: String = (0..2000).map(|n| " ".repeat(n) + "-\n").collect();
    assert!(problems(&[&deep]).concat().contains("LOAD_ERR_YAML_PARSE"));
    let mut macros = "- macro: m0\n  condition: a.b = 1\n".to_owned();
    let mut lists = String::new();
    for level in 1..1000 {
        writeln!(macros, "- macro: m{level}\n  condition: not m{}", level - 1).unwrap();
        writeln!(lists, "- list: l{}\n  items: [l{level}]", level - 1).unwrap();
    }
    lists.push_str("- list: l999\n  items: [x]\n");
    assert!(problems(&[&macros]).concat().contains("nested deeper"));
    assert!(problems(&[&lists]).concat().contains("in a row"));
    let large = " ".repeat(MAX_FILE_BYTES + 1);
    assert!(problems(&[&large]).concat().contains("the limit is"));
}

#[test]
fn the_stock_rules_load_without_a_problem() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let path = format!("{root}/shared/reference/upstream/falco_rules.yaml");
    let Ok(text) = std::fs::read_to_string(&path) else {
        testing::skip!("needs Falco's stable rules beside the repository", || Ok(
            format!("cannot read {path}")
        ));
    };
    let (ruleset, diagnostics) = Loader::new().add("falco_rules.yaml", &text).finish();
    assert!(
        !diagnostics.iter().any(Diagnostic::is_error),
        "{diagnostics:#?}"
    );
    let count = |key: &str| {
        let mut names: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(key)).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    assert_eq!(ruleset.rules.len(), 25);
    assert_eq!(ruleset.macros.len(), count("- macro: "));
    assert_eq!(ruleset.lists.len(), count("- list: "));
    for rule in &ruleset.rules {
        let printed = rule.condition.to_string();
        let again = crate::condition::parser::parse(&printed, crate::condition::ast::SourceId(0));
        assert_eq!(again.unwrap().to_string(), printed, "{}", rule.name);
    }
}

proptest! {
    #[test]
    fn any_text_loads_or_is_refused(text in "\\PC{0,200}") {
        let _ = load(&[&text]);
    }

    #[test]
    fn pieces_of_rule_files_load_or_are_refused(
        parts in prop::collection::vec(prop::sample::select(&[
            "- rule: R\n", "- macro: m\n", "- list: l\n", "  condition: >\n", "  condition: ", "    a.b = 1\n",
            "m", " and ", " or not ", "l", "  items: [l, m, x]\n", "  override:\n", "    condition: append\n",
            "    items: replace\n", "  append: true\n", "  output: o\n", "  desc: d\n", "  priority: INFO\n",
            "  exceptions:\n", "    - name: e\n", "      fields: [a.b, c.d]\n", "      fields: a.b\n",
            "      comps: [in, =]\n", "      values: [[x, y], [[z], l]]\n", "      values: [x]\n", "\n", "'", "\"",
            "&a ", "*a", "---\n", "\t", "  enabled: false\n", "?", "\u{85}", "\r", "\u{feff}",
        ][..]), 0..30),
    ) {
        let text = parts.concat();
        let (ruleset, diagnostics) = load(&[&text, &text]);
        for diagnostic in &diagnostics {
            prop_assert!(diagnostic.location.line > 0);
            prop_assert!(!diagnostic.render(Some(&text)).is_empty());
        }
        for rule in &ruleset.rules {
            rule.condition.walk(&mut |expr| {
                assert!(!matches!(expr.kind, ExprKind::Macro(_)));
                assert_ne!(ruleset.locate(expr.span).line, 0);
            });
        }
    }
}

#[test]
fn a_file_that_takes_the_place_of_a_builtin_macro_is_warned_of() {
    const BUILTIN: &str = "- list: shells\n  items: [sh, bash]\n\
        - macro: opened\n  condition: evt.type = open and proc.name in (shells)\n\
        - rule: r\n  desc: d\n  condition: opened\n  output: o\n  priority: ERROR\n";
    let warned = |own: &str| -> Vec<String> {
        let loader = Loader::new()
            .with_builtin("builtin")
            .add("builtin", BUILTIN);
        let (ruleset, diagnostics) = loader.add("own.yaml", own).finish();
        assert_eq!(ruleset.rules.len(), 1, "{diagnostics:?}");
        let found = diagnostics
            .iter()
            .filter(|found| found.code == Code::ReplacedBuiltin);
        found
            .map(|found| format!("{found}; {}", found.help.as_deref().unwrap_or_default()))
            .collect()
    };
    assert_eq!(
        warned("- macro: opened\n  condition: evt.type = openat\n- list: shells\n  items: [zsh]\n"),
        [
            "own.yaml:1:3: warning[LOAD_REPLACED_BUILTIN]: macro opened: takes the place of the macro of the built-in \
             rules, which use this one now; give it another name; or, to change the built-in rules, write \
             `override: {condition: replace}`",
            "own.yaml:3:3: warning[LOAD_REPLACED_BUILTIN]: list shells: takes the place of the list of the built-in \
             rules, which use this one now; give it another name; or, to change the built-in rules, write \
             `override: {items: replace}`",
        ]
    );
    for own in [
        // The same in other words changes nothing.
        "- macro: opened\n  condition: >\n    evt.type = open\n    and proc.name in (shells)\n- list: shells\n  items: [bash, sh]\n",
        // Who overrides or appends knows the other one.
        "- macro: opened\n  condition: evt.type = openat\n  override:\n    condition: replace\n",
        "- macro: opened\n  condition: or evt.type = openat\n  append: true\n",
        "- list: shells\n  items: [zsh]\n  override:\n    items: append\n",
        "- macro: mine\n  condition: evt.type = openat\n",
    ] {
        assert!(warned(own).is_empty(), "{own}: {:?}", warned(own));
    }
    // Among files of the user the later one holds, as in Falco.
    let loader = Loader::new().with_builtin("builtin").add("a", BUILTIN);
    let (_, diagnostics) = loader.add("b", "- list: shells\n  items: [zsh]\n").finish();
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
}

#[test]
fn each_of_several_builtin_files_is_warned_of() {
    const BUILTIN: &str = "- list: shells\n  items: [sh, bash]\n\
        - rule: r\n  desc: d\n  condition: evt.type = open and proc.name in (shells)\n  output: o\n  priority: ERROR\n";
    const MORE: &str = "- list: more\n  items: [a]\n\
        - rule: s\n  desc: d\n  condition: evt.type = open and proc.name in (more)\n  output: o\n  priority: ERROR\n";
    const OWN: &str = "- list: shells\n  items: [zsh]\n- list: more\n  items: [b]\n";
    let loader = Loader::new().with_builtin("more").with_builtin("builtin");
    let loader = loader.add("builtin", BUILTIN).add("more", MORE);
    let (_, diagnostics) = loader.add("own.yaml", OWN).finish();
    let warned_of: Vec<_> = diagnostics
        .iter()
        .map(|found| (found.code, found.location.line))
        .collect();
    assert_eq!(
        warned_of,
        [(Code::ReplacedBuiltin, 1), (Code::ReplacedBuiltin, 3)]
    );
}

#[test]
fn a_rule_that_a_later_item_enables_is_enabled_by_its_name() {
    let base = rule("R", "a.b = 1", "  enabled: true\n");
    let is_by_name = |updates: &[&str]| {
        let texts = [&[&*base], updates].concat();
        let (ruleset, _) = load(&texts);
        ruleset.rule("R").unwrap().is_enabled_by_name
    };
    let enable = "- rule: R\n  enabled: true\n  override: {enabled: replace}\n";
    let disable = "- rule: R\n  enabled: false\n  override: {enabled: replace}\n";
    assert!(!is_by_name(&[]), "a definition names no level");
    assert!(is_by_name(&[enable]));
    assert!(is_by_name(&["- rule: R\n  enabled: true\n"]));
    assert!(!is_by_name(&[enable, disable]));
    assert!(!is_by_name(&[enable, &base]), "a new definition");
}
