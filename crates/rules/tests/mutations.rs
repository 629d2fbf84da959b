//! Randomly damaged rule files: nothing panics, and every problem has a line.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rules::{Alert, AlertSink, Engine, EngineOptions, Loader};

const DEFAULT: &str = include_str!("../../../rules/default.yaml");

/// Features that the built-in rules do not use.
const MORE: &str = r#"
- required_engine_version: 0.57.0
- required_plugin_versions:
  - name: container
    version: 0.2.0
    alternatives: [{name: other, version: 1.0.0}]
- list: shells
  items: [sh, "ba sh", 'z''sh', [a, b]]
- macro: opened
  condition: (evt.type in (open, openat) and evt.dir = < and fd.num >= 0)
- rule: All of it
  desc: >
    Many
    lines.
  condition: >
    opened and not (proc.aname[2] in (shells) or tolower(fd.name) startswith anyof ("/etc", /usr))
    and (fd.sip in ("10.0.0.0/8") or evt.arg.flags contains "\x4f" or proc.args pmatch (/a, /b))
  output: "file %fd.name %-20proc.name %toupper(user.name) %evt.arg[0] by %proc.aname[1]"
  priority: WARNING
  tags: [a, b]
  source: syscall
  enabled: true
  warn_evttypes: false
  skip-if-unknown-filter: true
  capture: true
  capture_duration: 100
  exceptions:
    - name: e
      fields: [proc.name, fd.name]
      comps: [in, startswith]
      values:
        - [[cat, dog], /tmp]
    - {name: one, fields: proc.exe, values: [/bin/a, /bin/b]}
- rule: All of it
  condition: and proc.name = x
  tags: [c]
  exceptions: [{name: e, values: [[mouse, /var]]}]
  override: {condition: append, tags: append, exceptions: append}
- macro: opened
  append: true
  condition: or evt.type = creat
- list: shells
  append: true
  items: [fish]
- rule: All of it
  enabled: false
"#;

struct NoSink;

impl AlertSink for NoSink {
    fn emit(&self, _: Alert) {}
}

/// xorshift64*, so that the damage is reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).expect("31 bits") % limit.max(1)
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// Rule items; each begins with `- ` in the first column.
fn items() -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for line in DEFAULT.lines().chain(MORE.lines()) {
        if line.starts_with("- ") || items.is_empty() {
            items.push(String::new());
        }
        let item = items.last_mut().expect("one was just pushed");
        item.push_str(line);
        item.push('\n');
    }
    items
}

const SNIPPETS: [&str; 32] = [
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ":",
    "- ",
    "  ",
    "\n",
    "\t",
    "#",
    "&a ",
    "*a",
    "|",
    ">",
    "!!binary ",
    "%",
    "\\",
    "\u{0}",
    "\u{feff}",
    "é",
    "not ",
    " and ",
    " or ",
    " in ",
    "append: true",
    "999999999999999999999",
    "-1",
    "null",
];

fn mutate(text: &mut String, words: &[&str], random: &mut Random) {
    let boundaries: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let at = random.of(&boundaries);
    match random.below(9) {
        0 => text.insert_str(at, random.of(&SNIPPETS)),
        1 => drop(text.remove(at)),
        2 => text.truncate(at),
        3 => text.insert_str(at, random.of(words)),
        4 => {
            // Another word in the place of the one there.
            let end = text[at..]
                .find([' ', '\n'])
                .map_or(text.len(), |length| at + length);
            text.replace_range(at..end, random.of(words));
        }
        _ => {
            let mut lines: Vec<&str> = text.lines().collect();
            let (one, other) = (random.below(lines.len()), random.below(lines.len()));
            match random.below(4) {
                0 => drop(lines.remove(one)),
                1 => lines.insert(other, lines[one]),
                2 => lines.swap(one, other),
                _ => {
                    let indented = format!("  {}", lines[one]);
                    lines[one] = &indented;
                    *text = lines.join("\n") + "\n";
                    return;
                }
            }
            *text = lines.join("\n") + "\n";
        }
    }
    if text.is_empty() {
        text.push('\n');
    }
}

/// Loads and compiles; returns the problems.
fn load(text: &str) -> Vec<rules::Diagnostic> {
    let (ruleset, mut diagnostics) = Loader::new().add("m.yaml", text).finish();
    let (engine, problems) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoSink));
    let (plan, costs) = engine.plan();
    let _ = engine.explain(&plan);
    diagnostics.extend(problems.into_iter().chain(costs));
    diagnostics
}

#[test]
fn ten_thousand_damaged_files_do_not_panic_and_every_problem_has_a_line() {
    let items = items();
    let all = format!("{DEFAULT}{MORE}");
    let words: Vec<&str> = all.split_whitespace().collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut good, mut bad) = (0, 0);
    for round in 0..10_000 {
        // Neighbours, so that macros meet the rules that name them.
        let first = random.below(items.len());
        let count = 1 + random.below(3);
        let mut text: String = items
            .iter()
            .cycle()
            .skip(first)
            .take(count)
            .cloned()
            .collect();
        for _ in 0..=random.below(4) {
            mutate(&mut text, &words, &mut random);
        }
        let result = catch_unwind(AssertUnwindSafe(|| load(&text)));
        let diagnostics = result.unwrap_or_else(|_| panic!("round {round} panicked on:\n{text}"));
        let lines = text.lines().count().max(1);
        for diagnostic in &diagnostics {
            let line = usize::try_from(diagnostic.location.line).expect("it fits");
            assert!(
                (1..=lines + 1).contains(&line),
                "round {round}: {diagnostic} in {lines} lines:\n{text}"
            );
            assert!(!diagnostic.message.is_empty(), "round {round}");
        }
        if diagnostics.iter().any(rules::Diagnostic::is_error) {
            bad += 1;
        } else {
            good += 1;
        }
    }
    // Damage that nothing notices would test nothing, and neither would damage that leaves nothing.
    assert!(good > 500 && bad > 2000, "good {good}, bad {bad}");
}
