//! Checks rules of artefacts as they would be loaded: after the built-in rules, among those of the folder.

use std::path::{Path, PathBuf};

use artifact::{Candidate, Checker};
use config::rule_files::{Loaded, NoSink, RuleSources, is_builtin};
use diagnostics::failure::Failure;
use rules::{Code, EngineOptions, Level};

/// The check of `tollgate rules check`, and the tests of `tollgate rules test`.
#[derive(Debug)]
pub(super) struct RuleCheck;

impl Checker for RuleCheck {
    fn check(&self, candidates: &[Candidate]) -> Result<(), String> {
        let folder = candidates
            .iter()
            .find_map(|candidate| candidate.path.parent());
        check(candidates, folder)
    }
}

/// Checks rules among those of a folder, if one is given.
pub(super) fn check(candidates: &[Candidate], folder: Option<&Path>) -> Result<(), String> {
    let sources = together(candidates, folder)?;
    // At the highest level, so that no rule is left out.
    let mut all = sources.clone();
    all.level = Level::Forensic;
    let mut loaded = all.load();
    loaded.compile(&EngineOptions::default(), NoSink);
    loaded.usable().map_err(|failure| text(&failure))?;
    for candidate in candidates {
        check_sources(candidate, &loaded)?;
    }
    for candidate in candidates {
        run_tests(candidate, &sources)?;
    }
    Ok(())
}

/// Refuses rules of sources that only plug-ins have. No plug-in is loaded here, so nothing of such a rule is checked; it
/// could be nonsense, and the watch that loads the plug-in would be the first to say so.
fn check_sources(candidate: &Candidate, loaded: &Loaded) -> Result<(), String> {
    let file = candidate.path.display().to_string();
    let is_unknown = |code: Code| code == Code::UnknownSource;
    let mut found = loaded.diagnostics.iter();
    match found.find(|it| is_unknown(it.code) && *it.location.file == *file) {
        None => Ok(()),
        Some(it) => Err(format!(
            "{} of {} cannot be checked: only `source: syscall` is known here, and no plug-in is loaded; line {}: {}",
            it.context, candidate.name, it.location.line, it.message
        )),
    }
}

fn text(failure: &Failure) -> String {
    failure.message().to_owned()
}

/// Returns the rules as they will be loaded.
fn together(candidates: &[Candidate], folder: Option<&Path>) -> Result<RuleSources, String> {
    let present = RuleSources {
        folder: folder.map(Path::to_owned),
        ..RuleSources::default()
    };
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    let is_old = |path: &Path| {
        let old = |it: &Candidate| it.path == path || it.replaces.as_deref() == Some(path);
        candidates.iter().any(old)
    };
    for file in present.read() {
        let path = PathBuf::from(&*file.name);
        if is_builtin(&file.name) || is_old(&path) {
            continue;
        }
        let cannot = |cause: String| format!("cannot read {}: {cause}", file.name);
        files.push((path, file.text.map_err(cannot)?));
    }
    for candidate in candidates {
        files.push((candidate.path.clone(), candidate.rules.clone()));
    }
    // As the folder lists them.
    files.sort();
    let given = files
        .into_iter()
        .map(|(path, text)| (path.display().to_string(), text));
    Ok(RuleSources {
        given: given.collect(),
        ..RuleSources::default()
    })
}

/// Runs the tests of an artefact, in a folder that only this user can read.
fn run_tests(candidate: &Candidate, sources: &RuleSources) -> Result<(), String> {
    if candidate.tests.is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir().map_err(|error| format!("cannot run the tests: {error}"))?;
    let cannot =
        |path: &Path, error: std::io::Error| format!("cannot write {}: {error}", path.display());
    for test in &candidate.tests {
        let path = folder.path().join(&test.path);
        let above = path.parent().unwrap_or(folder.path());
        std::fs::create_dir_all(above).map_err(|error| cannot(above, error))?;
        std::fs::write(&path, &test.bytes).map_err(|error| cannot(&path, error))?;
    }
    // The reader of a message has the tests elsewhere.
    let here = format!("{}/", folder.path().display());
    let named = |text: &str| text.replace(&here, "tests/");
    let mut faults = Vec::new();
    for suite in candidate.tests.iter().filter(|test| test.is_suite()) {
        let path = folder.path().join(&suite.path);
        let found = rule_tools::test::faults_of(&path, folder.path(), sources);
        faults.extend(found.map_err(|failure| named(&text(&failure)))?);
    }
    if faults.is_empty() {
        return Ok(());
    }
    let faults = named(&faults.join("\n  "));
    Err(format!("tests of {} fail:\n  {faults}", candidate.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_cannot_be_read_is_named_without_the_folder_it_was_unpacked_to() {
        let candidate = Candidate {
            name: "mine".to_owned(),
            path: "mine.yaml".into(),
            replaces: None,
            rules: "- {rule: R, desc: d, condition: evt.type = open, output: o, priority: INFO}\n"
                .to_owned(),
            tests: vec![artifact::TestFile {
                path: "mine_test.yaml".into(),
                bytes: b"tests: [{odd: 1}]\n".to_vec(),
            }],
        };
        let problem = check(&[candidate], None).expect_err("the test is wrong");
        assert!(problem.contains("tests/mine_test.yaml"), "{problem}");
        let temporary = std::env::temp_dir().display().to_string();
        assert!(!problem.contains(&temporary), "{problem}");
    }

    #[test]
    fn rules_of_the_sources_of_plugins_are_refused_by_name() {
        let rule = "- {rule: R, desc: d, condition: evt.type = x, output: o, priority: INFO, source: SOURCE}\n";
        let mut candidate = Candidate {
            name: "audit".to_owned(),
            path: "artifact-00-audit.yaml".into(),
            replaces: None,
            rules: rule.replace("SOURCE", "k8s_audit"),
            tests: Vec::new(),
        };
        let problem = check(&[candidate.clone()], None).expect_err("no plug-in is loaded");
        assert!(
            problem.contains("rule R of audit") && problem.contains("`k8s_audit`"),
            "{problem}"
        );
        candidate.rules = rule.replace("SOURCE", "syscall").replace("= x", "= open");
        check(&[candidate], None).expect("it is good");
    }
}
