//! Shows which system calls the rules need, why a rule matches an event, or what an alert means.

use std::path::PathBuf;
use std::sync::Arc;

use abi::Syscall;
use config::rule_files;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::{Need, Plan, Stage, StdioWatch};
use rules::plan::{CallExplanation, Explanation, RuleExplanation};
use rules::{Engine, EngineOptions, Level};
use serde_json::{Value, json};

use crate::{RuleFiles, alert_explanation, event_explanation};

/// What to explain: the calls that rules need, one event, or one alert.
#[derive(Debug)]
pub struct ExplainOptions {
    /// The rules.
    pub rules: RuleFiles,
    /// The only call to show.
    pub call: Option<String>,
    /// File with the event to explain: fields as YAML, an alert as JSON, or a capture; `-` is the standard input.
    pub event: Option<PathBuf>,
    /// File with an alert as JSON to explain to who got it; `-` is the standard input.
    pub alert: Option<PathBuf>,
    /// Number of the event in a capture, or of the alert.
    pub number: Option<u64>,
    /// The only rule to explain the event by.
    pub rule: Option<String>,
    /// Print JSON.
    pub json: bool,
}

/// Prints which calls the rules need and why, why rules do or do not match an event, or what an alert means.
///
/// # Errors
///
/// The rules have errors, or there is no such call, event, alert or rule.
pub fn execute(args: &ExplainOptions) -> Outcome {
    let mut rules = args.rules.clone();
    if args.alert.is_some() {
        // An alert of a rule that is off elsewhere can come from where it is on.
        rules.level = rules.level.or(Some(Level::Forensic));
    }
    let mut with_plugins = rules.load()?;
    let of_plugins = with_plugins.compile_sources();
    let mut loaded = with_plugins.loaded;
    if let Some(path) = &args.event {
        loaded.compile(&EngineOptions::default(), rule_files::NoSink);
        loaded.usable()?;
        return event_explanation::explain(args, &loaded, path);
    }
    if let Some(path) = &args.alert {
        loaded.compile(&EngineOptions::default(), rule_files::NoSink);
        loaded.usable()?;
        return alert_explanation::explain(&loaded, path, args.number, args.json);
    }
    let (engine, plan) = loaded.compile(&EngineOptions::default(), rule_files::NoSink);
    loaded.usable()?;
    let mut explanation = engine.explain(&plan);
    if let Some(name) = &args.call {
        keep_call(&mut explanation, &plan, name)?;
    }
    terminal::print(&if args.json {
        let mut json = json_explanation(&engine, &explanation);
        json["sources"] = of_plugins.iter().map(json_source).collect();
        format!("{json}\n")
    } else {
        let with_rules = args.call.is_none();
        let mut text = text_explanation(&explanation, with_rules);
        if with_rules {
            text.extend(of_plugins.iter().map(text_source));
        }
        text
    })
}

fn keep_call(explanation: &mut Explanation, plan: &Plan, name: &str) -> Result<(), Failure> {
    let fail =
        |cause: &str| Failure::new(Exit::BadInput, format!("cannot explain `{name}`: {cause}"));
    let Some(call) = Syscall::from_name(name) else {
        let failure = fail("no such system call");
        return Err(match Syscall::suggest(name) {
            Some(similar) => failure.help(format!("did you mean `{}`?", similar.name())),
            None => failure.help("`tollgate rules explain` shows all planned calls"),
        });
    };
    if !plan.calls.contains_key(&call) {
        return Err(fail("no rule needs it, so it runs at full speed")
            .help("`tollgate rules explain` shows all planned calls"));
    }
    explanation.calls.retain(|planned| planned.call == call);
    Ok(())
}

fn text_explanation(explanation: &Explanation, with_rules: bool) -> String {
    let mut out =
        String::from("System calls that the rules need; all other calls run at full speed\n");
    for call in &explanation.calls {
        out.push_str(&text_call(call));
    }
    let watched = match explanation.stdio {
        StdioWatch::Off => None,
        StdioWatch::Sockets => Some("a process that has a socket"),
        StdioWatch::Any => Some("the process"),
    };
    if let Some(watched) = watched {
        out.push_str(&format!(
            "\ndup is not trapped. Calls that close descriptor 0, 1 or 2 are trapped instead; after one, \
            {watched} is trapped until all three are open again\n",
        ));
    }
    if with_rules {
        out.push_str("\nRULES, and from when each comparison can be decided\n");
        for rule in &explanation.rules {
            out.push_str(&text_rule(rule));
        }
    }
    out
}

/// Formats the rules of a source of plugins, which need no system call, and the fields that they ask the plugins for.
fn text_source((source, engine): &(String, Arc<Engine>)) -> String {
    let mut out = format!("\nRULES of source {source}, evaluated on each of its events\n\n");
    for (rule, _) in engine.matches() {
        out.push_str(&format!("  rule      {rule}\n"));
    }
    for field in engine.plugin_fields() {
        out.push_str(&format!("  field     {field}\n"));
    }
    out
}

fn json_source((source, engine): &(String, Arc<Engine>)) -> Value {
    let fields = engine.plugin_fields();
    json!({
        "source": source,
        "rules": engine.matches().map(|(rule, _)| rule).collect::<Vec<_>>(),
        "fields": fields.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn text_call(call: &CallExplanation) -> String {
    let mut out = format!("\n{}\n", call.call.name());
    if call.predicate.is_empty() {
        out.push_str("  when      always\n");
    }
    for (at, group) in call.predicate.iter().enumerate() {
        let word = if at == 0 { "when" } else { "or" };
        out.push_str(&format!("  {word:8}  {group}\n"));
    }
    let strings = if call.strings { "strings, " } else { "" };
    out.push_str(&format!(
        "  needs     {strings}{}\n",
        result_words(call.result)
    ));
    for rule in &call.rules {
        out.push_str(&format!("  for rule  {rule}\n"));
    }
    for reason in &call.other_reasons {
        out.push_str(&format!("  because   {reason}\n"));
    }
    if let Some(note) = &call.note {
        out.push_str(&format!("  note      {note}\n"));
    }
    out
}

fn result_words(need: Need) -> &'static str {
    match need {
        Need::Never => "no result",
        Need::IfUndecided => "the result, if a rule depends on it",
        Need::Always => "the result",
    }
}

fn result_word(need: Need) -> &'static str {
    match need {
        Need::Never => "never",
        Need::IfUndecided => "if_undecided",
        Need::Always => "always",
    }
}

fn text_rule(rule: &RuleExplanation) -> String {
    let mut out = format!("\n{}\n  events    {}\n", rule.name, rule.kinds.join(", "));
    if let Some(weight) = rule.weight {
        let silent = if rule.is_silent { ", no alert" } else { "" };
        out.push_str(&format!("  risk      {weight}{silent}\n"));
    }
    for (name, weight) in &rule.signals {
        out.push_str(&format!("  sums      {weight:3}  {name}\n"));
    }
    for (stage, atom) in &rule.atoms {
        out.push_str(&format!("  {:8}  {atom}\n", stage_word(*stage)));
    }
    out
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Registers => "at once",
        Stage::Strings => "strings",
        Stage::Descriptor => "descr.",
        Stage::Entry => "process",
        Stage::Exit => "result",
    }
}

fn json_explanation(engine: &Engine, explanation: &Explanation) -> Value {
    let calls: Vec<_> = explanation
        .calls
        .iter()
        .map(|call| {
            json!({
                "call": call.call.name(),
                "always": call.predicate.is_empty(),
                "any_of": call.predicate,
                "strings": call.strings,
                "result": result_word(call.result),
                "rules": call.rules,
                "other_reasons": call.other_reasons,
                "note": call.note,
            })
        })
        .collect();
    let rules: Vec<_> = explanation
        .rules
        .iter()
        .map(|rule| {
            let atoms: Vec<_> = rule
                .atoms
                .iter()
                .map(|(stage, atom)| json!({ "stage": stage_word(*stage), "atom": atom }))
                .collect();
            let signals = rule.signals.iter();
            let signals: Vec<_> = signals
                .map(|(name, weight)| json!({ "rule": &**name, "weight": weight }))
                .collect();
            json!({
                "name": &*rule.name,
                "events": rule.kinds,
                "atoms": atoms,
                "risk": rule.weight,
                "silent": rule.is_silent,
                "signals": signals,
            })
        })
        .collect();
    json!({
        "calls": calls,
        "rules": rules,
        "watch_stdio": match explanation.stdio {
            StdioWatch::Off => "off",
            StdioWatch::Sockets => "sockets",
            StdioWatch::Any => "any",
        },
        "rules_evaluated": engine.matches().count(),
    })
}
