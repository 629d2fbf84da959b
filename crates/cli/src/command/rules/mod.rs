//! `tollgate rules`: checks, lists, explains and tests rules.

pub(crate) mod convert;
pub(crate) mod coverage;
pub(crate) mod silence;

use std::path::PathBuf;

use diagnostics::failure::Outcome;
use rule_tools::cost::CostOptions;
use rule_tools::explain::ExplainOptions;
use rule_tools::test::TestOptions;
use rule_tools::{ListFormat, ResponseFiles, RuleFiles};

use crate::args::{AddedRules, PluginConfig, Rules};

/// Runs the verb.
pub(crate) fn execute(verb: Rules) -> Outcome {
    match verb {
        Rules::Check(args) => {
            let responses = ResponseFiles {
                files: args.responses,
                accepted: args.accept_partial,
            };
            let rules = with_plugins(args.files, args.added, args.plugins);
            rule_tools::check::execute(&rules, &responses, args.json)
        }
        Rules::List(args) => {
            let files = with_plugins(args.files, args.added, args.plugins);
            rule_tools::list::execute(&files, args.rule.as_deref(), args.json)
        }
        Rules::Fields(args) => {
            rule_tools::fields::execute(args.class.as_deref(), format(args.json, args.markdown))
        }
        Rules::Events(args) => rule_tools::events::execute(format(args.json, args.markdown)),
        Rules::Explain(args) => rule_tools::explain::execute(&ExplainOptions {
            rules: with_plugins(args.files, args.added, args.plugins),
            call: args.call,
            event: args.event,
            alert: args.alert,
            number: args.number,
            rule: args.rule,
            json: args.json,
        }),
        Rules::Test(args) => rule_tools::test::execute(&TestOptions {
            files: args.files,
            rules: with_plugins(args.rules, args.added, args.plugins),
            json: args.json,
        }),
        Rules::Silence(args) => rule_tools::silence::execute(&args.into()),
        Rules::Coverage(args) => coverage::execute(args),
        Rules::Convert(args) => convert::execute(args),
        Rules::Lint(args) => {
            let files = with_plugins(args.files, args.added, args.plugins);
            rule_tools::lint::execute(&files, &args.engines, args.json)
        }
        Rules::Cost(args) => rule_tools::cost::execute(&CostOptions {
            rules: of(args.files, args.added),
            capture: args.capture,
            engine: args.engine,
            figures: args.figures,
            json: args.json,
        }),
    }
}

fn of(named: Vec<PathBuf>, added: AddedRules) -> RuleFiles {
    RuleFiles {
        named,
        added: added.add_rules,
        level: added.level,
        ..RuleFiles::default()
    }
}

fn with_plugins(named: Vec<PathBuf>, added: AddedRules, plugins: PluginConfig) -> RuleFiles {
    RuleFiles {
        config: plugins.config,
        settings: plugins.options,
        ..of(named, added)
    }
}

fn format(json: bool, markdown: bool) -> ListFormat {
    match (json, markdown) {
        (true, _) => ListFormat::Json,
        (false, true) => ListFormat::Markdown,
        (false, false) => ListFormat::Text,
    }
}
