//! `tollgate doctor`: shows what works on this host, and how to fix what does not.

mod verdict;

use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal::{self, Colour};
use probe::{Finding, Support};
use serde_json::{Value, json};

use self::verdict::{Fix, Verdict};

use crate::args::Doctor;
use crate::help::{self, wrapped};

/// Width of the longest answer.
const WORD: usize = "partial".len();

/// Runs the verb.
pub(crate) fn execute(args: &Doctor) -> Outcome {
    let mut findings = probe::all(capture::ebpf::probe);
    findings.extend(enforce::probe::all());
    findings.extend(super::runtime::findings());
    let blocked = blockers(&findings).next().is_some() && !probe::ptrace_works(&findings);
    let verdict = Verdict::new(&findings, rustix::process::geteuid().is_root());
    terminal::print(&if args.json {
        format!("{}\n", json_report(&findings, &verdict))
    } else {
        let colour = terminal::wants_colour();
        let columns = help::terminal_columns();
        format!(
            "{}\n{}",
            summary(&findings, &verdict, columns),
            text_report(&findings, colour, columns)
        )
    })?;
    Ok(if blocked { Exit::Unsupported } else { Exit::Ok })
}

/// Describes the engine that replaces `notify`.
fn substitute(findings: &[Finding]) -> &'static str {
    if probe::ptrace_works(findings) {
        "The engine ptrace works here, but is slower: `tollgate run --engine ptrace -- CMD`.\n"
    } else {
        "The engine ptrace does not work here either.\n"
    }
}

/// Returns the findings that keep the engine `notify` from working.
fn blockers(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings
        .iter()
        .filter(|finding| finding.notify_needs_it && !finding.support.is_usable())
}

/// Formats the verdict and the fixes, each a line that can be pasted into a shell where it is a command.
fn summary(findings: &[Finding], verdict: &Verdict, columns: Option<usize>) -> String {
    let mut out = format!("{}\n", wrapped(&verdict.text(), 0, columns));
    let fixes = Fix::of(findings);
    if !fixes.is_empty() {
        out.push_str("\nwhat helps here, in this order:\n");
    }
    for fix in fixes {
        out.push_str(&format!("  {}\n", fix.line()));
    }
    out
}

fn text_report(findings: &[Finding], colour: bool, columns: Option<usize>) -> String {
    let width = findings
        .iter()
        .map(|finding| finding.name.len())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        let (word, paint, text, _) = parts(&finding.support);
        let word = format!("{word:WORD$}");
        let word = if colour {
            terminal::paint(&word, paint)
        } else {
            word
        };
        let text = wrapped(text, width + WORD + 4, columns);
        out.push_str(&format!("{:width$}  {word}  {text}\n", finding.name));
    }
    out.push('\n');
    let blockers: Vec<_> = blockers(findings).map(|finding| finding.name).collect();
    if blockers.is_empty() {
        out.push_str("The engine notify works here: `tollgate run -- CMD`.\n");
    } else {
        out.push_str(&format!(
            "The engine notify does not work here because of: {}.\n",
            blockers.join(", ")
        ));
        out.push_str(substitute(findings));
    }
    out
}

fn parts(support: &Support) -> (&'static str, Colour, &str, Option<&str>) {
    match support {
        Support::Yes { seen } => ("yes", Colour::Good, seen, None),
        Support::Partial { why, fix } => ("partial", Colour::Doubtful, why, fix.as_deref()),
        Support::No { why, fix } => ("no", Colour::Bad, why, fix.as_deref()),
    }
}

fn json_report(findings: &[Finding], verdict: &Verdict) -> Value {
    let probes: Vec<_> = findings
        .iter()
        .map(|finding| {
            let (word, _, text, fix) = parts(&finding.support);
            json!({
                "name": finding.name,
                "purpose": finding.purpose,
                "support": word,
                "detail": text,
                "fix": fix,
                "required_for_notify": finding.notify_needs_it,
            })
        })
        .collect();
    let fixes: Vec<_> = Fix::of(findings).iter().map(Fix::json).collect();
    json!({
        "verdict": verdict.json(),
        "fixes": fixes,
        "notify": blockers(findings).next().is_none(),
        "ptrace": probe::ptrace_works(findings),
        "probes": probes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &'static str, notify_needs_it: bool, support: Support) -> Finding {
        Finding {
            name,
            purpose: "p",
            notify_needs_it,
            support,
        }
    }

    fn findings() -> Vec<Finding> {
        vec![
            finding(
                "one",
                true,
                Support::Yes {
                    seen: "seen".into(),
                },
            ),
            finding(
                "longer",
                false,
                Support::No {
                    why: "w".into(),
                    fix: Some("f".into()),
                },
            ),
            finding(
                "two",
                true,
                Support::Partial {
                    why: "half".into(),
                    fix: None,
                },
            ),
        ]
    }

    #[test]
    fn the_table_lines_up_and_ends_with_the_engine() {
        assert_eq!(
            text_report(&findings(), false, None),
            "one     yes      seen\nlonger  no       w\n\
             two     partial  half\n\nThe engine notify works here: `tollgate run -- CMD`.\n"
        );
        assert!(text_report(&findings(), true, None).contains("\u{1b}[32myes    \u{1b}[0m"));
    }

    #[test]
    fn long_texts_are_broken_between_words_below_their_column() {
        let long = Support::Yes {
            seen: "a text that is too long for the line".into(),
        };
        let report = text_report(&[finding("one", true, long)], false, Some(40));
        let expected = "one  yes      a text that is too long\n              for the line\n\n";
        assert!(report.starts_with(expected), "{report}");
    }

    #[test]
    fn a_missing_requirement_is_named() {
        let mut findings = findings();
        findings[1].notify_needs_it = true;
        assert!(text_report(&findings, false, None).contains("because of: longer.\n"));
        let verdict = Verdict::new(&findings, true);
        let report = json_report(&findings, &verdict);
        assert_eq!(report["notify"], false);
        assert_eq!(report["probes"][1]["fix"], "f");
        assert_eq!(report["verdict"]["text"], verdict.text());
        let summary = summary(&findings, &verdict, None);
        assert!(summary.starts_with(&verdict.text()), "{summary}");
        assert!(
            summary.contains("\n  f    # watch a command: longer\n"),
            "{summary}"
        );
    }
}
