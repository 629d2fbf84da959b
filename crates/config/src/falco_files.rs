//! Problems of rule files in the number and the order in which Falco finds them.
//!
//! Falco loads one file after the other. It reads a file up to its first error; if there is none, it compiles
//! everything read so far, also that of earlier files, up to the first error. Unused items come last.

use std::collections::HashMap;

use rules::Code;
use rules::diagnostic::Diagnostic;

use crate::rule_files::{self, Environment, Loaded, RuleFile};

/// Returns the problems of each file. `compile` compiles the rules of each source.
pub fn problems(
    files: &[RuleFile],
    environment: &Environment,
    compile: impl Fn(&mut Loaded),
) -> Vec<Vec<Diagnostic>> {
    let of_file = |index| step(&files[..=index], environment, &compile);
    (0..files.len()).map(of_file).collect()
}

/// Returns the problems that loading the last of the files finds.
fn step(
    files: &[RuleFile],
    environment: &Environment,
    compile: impl Fn(&mut Loaded),
) -> Vec<Diagnostic> {
    let mut loader = rule_files::loader(environment).stopping_at_errors();
    let mut earlier = 0;
    for file in files {
        earlier = loader.problems().len();
        loader = rule_files::add(loader, file);
    }
    let mut found = loader.problems()[earlier..].to_vec();
    if found.iter().any(Diagnostic::is_error) {
        return up_to_error(found);
    }
    let rules: HashMap<String, usize> = loader
        .rule_names()
        .enumerate()
        .map(|(at, name)| (format!("rule {name}"), at))
        .collect();
    let (ruleset, built) = loader.build();
    let mut loaded = Loaded::new(files.to_vec(), ruleset, built);
    loaded.is_per_rule = true;
    compile(&mut loaded);
    found.extend(compiled(loaded.diagnostics, &rules));
    up_to_error(found)
}

/// Orders the problems that compilation found as Falco finds them.
fn compiled(mut found: Vec<Diagnostic>, rules: &HashMap<String, usize>) -> Vec<Diagnostic> {
    found.retain(|problem| problem.code.is_falcos());
    let order = |problem: &Diagnostic| match problem.code {
        Code::UnusedMacro => usize::MAX - 1,
        Code::UnusedList => usize::MAX,
        // Lists and macros come before all rules. Of each rule, the problems are in order.
        _ => rules.get(&problem.context).map_or(0, |rule| rule + 1),
    };
    found.sort_by_key(order);
    let mut kept: Vec<Diagnostic> = Vec::new();
    for problem in found {
        let of_rule = kept.iter().filter(|known| known.context == problem.context);
        let is_hidden = of_rule.into_iter().any(|known| {
            // A rule that is left out is not compiled further; a field is warned of once.
            known.code == Code::UnknownFilter
                || known.code == Code::UnsafeNaCheck && problem.code == Code::UnsafeNaCheck
                || known.code == problem.code
                    && known.message == problem.message
                    && known.code == Code::DeprecatedItem
        });
        let is_unused = matches!(problem.code, Code::UnusedMacro | Code::UnusedList);
        if !is_hidden || is_unused {
            kept.push(problem);
        }
    }
    if kept.iter().any(Diagnostic::is_error) {
        kept.retain(|it| !matches!(it.code, Code::UnusedMacro | Code::UnusedList));
    }
    kept
}

/// Returns the problems up to the first error.
fn up_to_error(mut found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    found.retain(|problem| problem.code.is_falcos());
    if let Some(error) = found.iter().position(Diagnostic::is_error) {
        found.truncate(error + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::EngineOptions;

    fn codes(texts: &[&str]) -> Vec<Vec<&'static str>> {
        let files: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| RuleFile {
                name: format!("{at}.yaml").into(),
                text: Ok((*text).to_owned()),
            })
            .collect();
        let compile = |loaded: &mut Loaded| {
            loaded.compile(&EngineOptions::default(), rule_files::NoSink);
        };
        let found = problems(&files, &Environment::default(), compile);
        let codes = |found: Vec<Diagnostic>| found.into_iter().map(|it| it.code.name()).collect();
        found.into_iter().map(codes).collect()
    }

    fn rule(name: &str, condition: &str, output: &str) -> String {
        format!(
            "- rule: {name}\n  desc: d\n  condition: {condition}\n  output: '{output}'\n  priority: INFO\n"
        )
    }

    #[test]
    fn a_file_has_one_error_and_what_was_found_before() {
        let unknown = rule("A", "evt.type = open", "o") + "  colour: red\n";
        let broken = "- rule: B\n  desc: d\n  output: o\n  priority: x\n  colour: red\n";
        let also = "- rule: C\n  desc: d\n";
        assert_eq!(
            codes(&[&format!("{unknown}{broken}{also}")]),
            [["LOAD_UNKNOWN_KEY", "LOAD_ERR_YAML_VALIDATE"]]
        );
        let bad = rule("A", "no.such = 1 and no.more = 2", "%no.output");
        let worse = rule("B", "nothing", "o");
        let found = codes(&[&format!("- list: l\n  items: [a]\n{bad}{worse}")]);
        assert_eq!(found, [["LOAD_ERR_COMPILE_OUTPUT"]]);
        let syntax = format!("{unknown}- rule: [");
        assert_eq!(codes(&[&syntax]), [["LOAD_ERR_YAML_PARSE"]]);
    }

    #[test]
    fn a_field_in_a_macro_is_a_warning_of_each_rule() {
        let text = format!(
            "- macro: back\n  condition: evt.dir = < and evt.dir != >\n- list: l\n  items: [a]\n{}{}",
            rule("A", "evt.type = open and back", "o"),
            rule("B", "evt.type = open and back", "%evt.dir"),
        );
        assert_eq!(
            codes(&[&text]),
            [[
                "LOAD_DEPRECATED_ITEM",
                "LOAD_DEPRECATED_ITEM",
                "LOAD_DEPRECATED_ITEM",
                "LOAD_UNUSED_LIST"
            ]]
        );
    }

    #[test]
    fn later_files_are_compiled_with_earlier_ones() {
        let warned = rule("A", "evt.type = open and evt.dir = <", "o");
        let fine = rule("B", "evt.type = open", "o");
        assert_eq!(
            codes(&[&warned, &fine, "- rule: [", &fine]),
            [
                vec!["LOAD_DEPRECATED_ITEM"],
                vec!["LOAD_DEPRECATED_ITEM"],
                vec!["LOAD_ERR_YAML_PARSE"],
                vec!["LOAD_DEPRECATED_ITEM"],
            ]
        );
    }

    #[test]
    fn warnings_of_this_program_are_left_out() {
        let text = rule("A", "evt.type in (read, write)", "o");
        assert_eq!(codes(&[&text]), [Vec::<&str>::new()]);
        let mut loaded = rule_files::load_read(vec![RuleFile {
            name: "r.yaml".into(),
            text: Ok(text),
        }]);
        loaded.compile(&EngineOptions::default(), rule_files::NoSink);
        let own = loaded.diagnostics.iter().map(|it| it.code);
        assert_eq!(own.collect::<Vec<_>>(), [Code::DoubtfulCondition]);
    }
}
