//! Exceptions for an alert, without files: what a page shows.

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use serde_json::Value;

use super::alert::Alert;
use super::evaluation::RulesUnderTest;
use super::exception::rule_file;
use super::{options, variant};
use crate::RuleFiles;

/// An exception that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// What it compares.
    pub condition: String,
    /// A similar event that the rule still detects; `None` if the exception silences the rule altogether.
    pub still_detected: Option<String>,
    /// The rule file with it.
    pub file: String,
}

/// Proposes exceptions to the rule of an alert in JSON, the best first. Each silences the alert.
///
/// # Errors
///
/// The alert or the rules cannot be used, or no exception fits.
pub fn propose(alert: &str, rules: &RuleFiles) -> Result<Vec<Proposed>, Failure> {
    let cannot = |cause: String| {
        Failure::new(Exit::BadInput, format!("cannot read the alert: {cause}"))
            .help("give one alert as JSON")
    };
    let object: Value = serde_json::from_str(alert).map_err(|error| cannot(error.to_string()))?;
    let alert = Alert::of(&object).map_err(cannot)?;
    let under_test = RulesUnderTest::load(rules.sources()?.read(), &alert.rule)?;
    let event = under_test.event(&alert)?;
    let variants = variant::detected(&alert, &event, &under_test);
    let options = options(&alert, &event, &under_test, &variants)?;
    let proposed = options.into_iter().map(|option| Proposed {
        condition: option.candidate.condition(),
        still_detected: option.left.map(|left| variants[left].title.to_string()),
        file: rule_file(&alert, &option.candidate, "tests"),
    });
    Ok(proposed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\
- rule: Read it
  desc: d
  condition: evt.type = openat and fd.name = /etc/shadow
  output: opened %fd.name by %proc.exepath
  priority: WARNING
";

    #[test]
    fn an_exception_names_the_program_and_keeps_the_rule() {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, RULES).expect("it is written");
        let rules = RuleFiles {
            named: vec![file],
            level: Some(rules::Level::Forensic),
            ..RuleFiles::default()
        };
        let alert = r#"{"rule":"Read it","output":"o","output_fields":
            {"evt.type":"openat","fd.name":"/etc/shadow","proc.exepath":"/bin/cat"}}"#;
        let proposed = propose(alert, &rules).expect("an exception");
        assert!(proposed[0].condition.contains("/bin/cat"), "{proposed:?}");
        assert!(proposed[0].file.contains("exceptions"), "{proposed:?}");
        let other = propose(r#"{"rule":"x","output_fields":{}}"#, &rules);
        assert!(other.is_err());
    }
}
