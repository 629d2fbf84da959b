//! The table of tiers, and what it counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Sums of the lines that cargo and libtest print.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// The program whose tests are printed now.
    program: String,
    /// Failed tests, each with its program.
    failures: Vec<String>,
}

impl Sums {
    /// Counts a line.
    pub(super) fn note(&mut self, line: &str) {
        let trimmed = line.trim_start();
        if let Some(program) = trimmed
            .strip_prefix("Running ")
            .or(trimmed.strip_prefix("Doc-tests "))
        {
            // After the source comes the file in the target folder.
            let source = program.split(" (").next().unwrap_or(program);
            program_name(source).clone_into(&mut self.program);
        }
        if let Some(sums) = line.strip_prefix("test result: ") {
            self.passed += number(sums, "passed");
            self.failed += number(sums, "failed");
            self.ignored += number(sums, "ignored");
        } else if let Some((name, outcome)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
            && outcome.starts_with("FAILED")
        {
            let reason = outcome.trim_start_matches("FAILED");
            self.failures
                .push(format!("{}: {name}{reason}", self.program));
        }
    }
}

/// Returns a short name of a program from what cargo prints of it.
fn program_name(source: &str) -> &str {
    source
        .trim_start_matches("unittests ")
        .trim_start_matches("tests/")
        .trim_end_matches(".rs")
}

/// Returns the number before a word; 0 if it is not there.
fn number(sums: &str, word: &str) -> usize {
    let mut words = sums
        .split([' ', ';', '.'])
        .filter(|word| !word.is_empty())
        .peekable();
    while let Some(first) = words.next() {
        if words.peek() == Some(&word) {
            // libtest writes numbers there alone.
            return first.parse().unwrap_or(0);
        }
    }
    0
}

/// Skips by reason: whole tests, and parts of tests.
pub(super) type Skips = BTreeMap<String, (usize, usize)>;

/// Counts the lines of a file of skips by their reasons.
pub(super) fn skips(text: &str) -> Skips {
    let mut found = Skips::new();
    let mut lines: Vec<&str> = text.lines().collect();
    // A function that several tests call reports its skip for each of them.
    lines.sort_unstable();
    lines.dedup();
    for line in lines {
        let mut columns = line.split('\t');
        let (Some(extent), Some(_), Some(reason)) =
            (columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        let (tests, parts) = found.entry(reason.to_owned()).or_default();
        *(if extent == "test" { tests } else { parts }) += 1;
    }
    found
}

/// A tier that has ended.
#[derive(Debug)]
pub(super) struct Row {
    /// The target of the Makefile.
    pub(super) tier: String,
    /// What its tests said.
    pub(super) sums: Sums,
    /// What its tests skipped.
    pub(super) skips: Skips,
    /// How long it took.
    pub(super) took: Duration,
    /// Why the tier failed.
    pub(super) problem: Option<String>,
}

impl Row {
    /// Returns true if the tier or one of its tests failed.
    pub(super) fn has_failed(&self) -> bool {
        self.problem.is_some() || self.sums.failed > 0
    }

    /// Returns whole tests that were skipped. Each of them ended as one that passes.
    fn skipped(&self) -> usize {
        self.skips.values().map(|(tests, _)| tests).sum()
    }

    fn cells(&self) -> [String; 6] {
        let skipped = self.skipped();
        let ran = (self.sums.passed + self.sums.failed).saturating_sub(skipped);
        let result = match &self.problem {
            Some(problem) => format!("failed: {problem}"),
            None if self.has_failed() => "failed".to_owned(),
            None => "ok".to_owned(),
        };
        [
            self.tier.clone(),
            ran.to_string(),
            self.sums.failed.to_string(),
            (skipped + self.sums.ignored).to_string(),
            format!("{:.1}", self.took.as_secs_f64() / 60.0),
            result,
        ]
    }
}

const HEADS: [&str; 6] = [
    "tier",
    "tests run",
    "failed",
    "skipped",
    "minutes",
    "result",
];

/// Returns the table, the failed tests, and the reasons of skips.
pub(super) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEADS.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    lines.push(total(rows));
    let widths: [usize; 6] =
        std::array::from_fn(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        let [first, middle @ .., last] = line;
        text += &format!("{first:<width$}", width = widths[0]);
        for (cell, width) in middle.iter().zip(&widths[1..]) {
            text += &format!("  {cell:>width$}");
        }
        text += &format!("  {last}\n");
    }
    text += &reasons(rows);
    text
}

fn total(rows: &[Row]) -> [String; 6] {
    let sum = |at: usize| {
        let cells = rows.iter().map(|row| row.cells()[at].parse::<f64>());
        cells.map(|cell| cell.unwrap_or(0.0)).sum::<f64>()
    };
    let failed = rows.iter().filter(|row| row.has_failed()).count();
    let result = match failed {
        0 => "ok".to_owned(),
        1 => "1 tier failed".to_owned(),
        failed => format!("{failed} tiers failed"),
    };
    [
        "total".to_owned(),
        format!("{:.0}", sum(1)),
        format!("{:.0}", sum(2)),
        format!("{:.0}", sum(3)),
        format!("{:.1}", sum(4)),
        result,
    ]
}

fn reasons(rows: &[Row]) -> String {
    let mut text = String::new();
    let failures: Vec<_> = rows
        .iter()
        .flat_map(|row| row.sums.failures.iter().map(move |test| (&row.tier, test)))
        .collect();
    if !failures.is_empty() {
        text += "failed:\n";
    }
    for (tier, test) in failures {
        text += &format!("    {tier}: {test}\n");
    }
    let skips: Vec<_> = rows
        .iter()
        .flat_map(|row| {
            row.skips
                .iter()
                .map(move |(reason, counts)| (&row.tier, reason, counts))
        })
        .collect();
    if !skips.is_empty() {
        text += "skipped:\n";
    }
    for (tier, reason, (tests, parts)) in skips {
        let counts = match (tests, parts) {
            (tests, 0) => format!("{tests} tests"),
            (0, parts) => format!("{parts} parts of tests"),
            (tests, parts) => format!("{tests} tests, {parts} parts of tests"),
        };
        writeln!(text, "    {tier}: {counts}: {reason}").expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
     Running unittests src/lib.rs (target/debug/deps/abi-0123)

running 2 tests
test a ... ok
test b ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running tests/keeper.rs (target/debug/deps/keeper-0123)
test c ... FAILED (ran over 3s; killed: 7 sleep)

test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 5.01s
";

    fn row(tier: &str, printed: &str, skipped: &str, problem: Option<&str>) -> Row {
        let mut sums = Sums::default();
        printed.lines().for_each(|line| sums.note(line));
        Row {
            tier: tier.to_owned(),
            sums,
            skips: skips(skipped),
            took: Duration::from_secs(90),
            problem: problem.map(str::to_owned),
        }
    }

    #[test]
    fn the_table_has_sums_failures_and_reasons() {
        let skipped = "test\te2e::a\tneeds d\tx\ntest\te2e::b\tneeds d\tx\ntest\te2e::b\tneeds d\tx\npart\te2e::c\tneeds e\tx\n";
        let rows = [
            row("build", "", "", None),
            row("test-slow", PRINTED, skipped, Some("exit status 2")),
        ];
        assert_eq!(
            table(&rows),
            "\
tier       tests run  failed  skipped  minutes  result
build              0       0        0      1.5  ok
test-slow          4       1        3      1.5  failed: exit status 2
total              4       1        3      3.0  1 tier failed
failed:
    test-slow: keeper: c (ran over 3s; killed: 7 sleep)
skipped:
    test-slow: 2 tests: needs d
    test-slow: 1 parts of tests: needs e
"
        );
    }

    #[test]
    fn a_failed_test_fails_a_tier_whose_command_succeeds() {
        assert!(row("a", PRINTED, "", None).has_failed());
        assert!(!row("a", "test result: ok. 1 passed; 0 failed;", "", None).has_failed());
    }
}
