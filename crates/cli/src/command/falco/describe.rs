//! `-L` and `-l`: descriptions of rules, macros and lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config::rule_files::NoSink;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use plugin::{Catalogue, LoadedPlugin};
use rules::describe::{Parts, compiled_text};
use rules::load::SYSCALL_SOURCE;
use rules::ruleset::{ConditionSource, List, Macro, Output};
use rules::{Engine, EngineOptions, Rule, Ruleset};
use serde_json::{Value, json};

/// Prefix of the names of macros that are compiled as rules.
const MACRO: &str = "macro ";

/// Returns the JSON that Falco prints, for all rules or one.
pub(super) fn describe(
    ruleset: &Ruleset,
    options: &EngineOptions,
    plugins: &Catalogue,
    only: Option<&str>,
) -> Result<Value, Failure> {
    if let Some(name) = only
        && ruleset.rule(name).is_none()
    {
        let message = format!("cannot describe rule `{name}`: it is not loaded");
        return Err(Failure::new(Exit::BadInput, message).help("-L shows all"));
    }
    let describer = Describer::new(ruleset, options, plugins);
    let wanted = |rule: &&Rule| only.is_none_or(|name| *rule.name == *name);
    let rules = ruleset.rules.iter().filter(wanted);
    let rules: Vec<_> = rules.map(|rule| describer.rule(rule)).collect();
    if only.is_some() {
        return Ok(json!({ "rules": rules }));
    }
    let plugins = ruleset.required_plugins.iter().map(|plugin| {
        let other =
            |(name, version): &(String, _)| json!({ "name": name, "version": text(version) });
        let mut all = plugin.alternatives.iter().map(other);
        let mut first = all.next().unwrap_or_else(|| json!({}));
        first["alternatives"] = all.collect();
        first
    });
    let version = ruleset.required_engine_version;
    Ok(json!({
        "required_engine_version": version.map_or_else(|| "0.0.0".to_owned(), |version| version.to_string()),
        "required_plugin_versions": plugins.collect::<Vec<_>>(),
        "rules": rules,
        "macros": ruleset.macros.iter().map(|item| describer.item(item)).collect::<Vec<_>>(),
        "lists": ruleset.lists.iter().map(list).collect::<Vec<_>>(),
    }))
}

fn text(value: &impl std::fmt::Display) -> String {
    value.to_string()
}

/// Compiles rules and macros to find the events that they can match and the fields of their outputs.
struct Describer<'c> {
    /// Compiled rules of system calls, then those of each source of a plugin.
    engines: Vec<Engine>,
    catalogue: &'c Catalogue,
    events: BTreeMap<Arc<str>, Vec<&'static str>>,
    outputs: BTreeMap<Arc<str>, String>,
}

impl<'c> Describer<'c> {
    fn new(ruleset: &Ruleset, options: &EngineOptions, catalogue: &'c Catalogue) -> Self {
        let mut all = ruleset.clone();
        all.select(true, |_| true);
        let rule = |item: &Macro| Rule {
            name: format!("{MACRO}{}", item.name).into(),
            condition: item.condition.clone(),
            written: ConditionSource::default(),
            output: Output {
                text: String::new(),
                source: item.condition.span.source,
            },
            desc: String::new(),
            priority: rules::Priority::Debug,
            source: SYSCALL_SOURCE.to_owned(),
            tags: BTreeSet::new(),
            enabled: true,
            is_enabled_by_name: false,
            warn_evttypes: false,
            skip_if_unknown_filter: true,
            exceptions: Vec::new(),
            capture: false,
            capture_duration_ms: 0,
            count: None,
            risk: None,
            appended: None,
            location: item.location.clone(),
        };
        all.rules.extend(ruleset.macros.iter().map(rule));
        let options = EngineOptions {
            priority: rules::Priority::Debug,
            recorder: None,
            ..options.clone()
        };
        // Errors were printed when the rules were loaded.
        let (engine, _) = Engine::new(&all, &options, Box::new(NoSink));
        let (plan, _) = engine.plan();
        let explained = engine.explain(&plan).rules.into_iter();
        let outputs = all.rules.iter().map(|rule| {
            let output = rules::engine::output_text(rule, &options.append_output);
            (Arc::clone(&rule.name), output)
        });
        let of_plugins = catalogue.sources().map(|(_, fields)| {
            let options = EngineOptions {
                source: Some(Arc::clone(fields)),
                ..options.clone()
            };
            Engine::new(&all, &options, Box::new(NoSink)).0
        });
        Self {
            engines: of_plugins.chain([engine]).collect(),
            catalogue,
            events: explained.map(|rule| (rule.name, rule.kinds)).collect(),
            outputs: outputs.collect(),
        }
    }

    fn events(&self, name: &str) -> &[&'static str] {
        self.events.get(name).map_or(&[], Vec::as_slice)
    }

    fn events_of(&self, rule: &Rule) -> &[&'static str] {
        match rule.source.as_str() {
            SYSCALL_SOURCE => self.events(&rule.name),
            _ => &["asyncevent", "pluginevent"],
        }
    }

    fn output_fields(&self, rule: &Rule) -> Vec<&str> {
        let mut engines = self.engines.iter();
        let found = engines.find_map(|engine| engine.output_fields(&rule.name));
        // A disabled rule is in no engine.
        found.unwrap_or_default()
    }

    /// Returns the plugins that a rule uses: the one that makes its events, and those whose fields it names.
    fn plugins(&self, rule: &Rule, condition_fields: &[&str], output_fields: &[&str]) -> Vec<&str> {
        let without_argument = |field: &&str| {
            field
                .split_once('[')
                .map_or(*field, |(name, _)| name)
                .to_owned()
        };
        let all = condition_fields.iter().chain(output_fields);
        let fields: BTreeSet<String> = all.map(without_argument).collect();
        if rule.source == SYSCALL_SOURCE {
            let is_container =
                |field: &&str| field.starts_with("container.") || field.starts_with("k8s.");
            let uses_container = condition_fields.iter().any(is_container);
            return uses_container.then_some("container").into_iter().collect();
        }
        let of_source = self.catalogue.plugins_of(&rule.source).into_iter();
        let is_used = |plugin: &&LoadedPlugin| {
            let known = &plugin.description;
            known.source == rule.source
                || known
                    .fields
                    .iter()
                    .any(|known| fields.contains(&known.name))
        };
        of_source
            .filter(is_used)
            .map(|plugin| plugin.description.name.as_str())
            .collect()
    }

    fn rule(&self, rule: &Rule) -> Value {
        let parts = Parts::of(&rule.condition);
        let of_exceptions = |part: fn(&rules::ruleset::Exception) -> &[String]| {
            let all = rule.exceptions.iter().flat_map(part);
            all.cloned().collect::<BTreeSet<_>>()
        };
        let names = rule.exceptions.iter().map(|exception| &exception.name);
        let output_fields = self.output_fields(rule);
        let condition_fields: Vec<_> = parts.fields.iter().map(String::as_str).collect();
        json!({
            "info": {
                "name": &*rule.name,
                "condition": rule.written.condition,
                "priority": rule.priority.name(),
                "output": rule.output.text,
                "description": rule.desc,
                "enabled": rule.enabled,
                "source": rule.source,
                "capture": rule.capture,
                "capture_duration": rule.capture_duration_ms,
                "tags": rule.tags,
            },
            "details": {
                "macros": rule.written.macros,
                "lists": rule.written.lists,
                "condition_operators": parts.operators,
                "condition_fields": parts.fields,
                "output_fields": output_fields,
                "exception_fields": of_exceptions(|exception| &exception.fields),
                "exception_names": names.collect::<BTreeSet<_>>(),
                "exception_operators": of_exceptions(|exception| &exception.comps),
                "events": self.events_of(rule),
                "condition_compiled": compiled_text(&rule.condition),
                "output_compiled": self.outputs.get(&rule.name),
                "plugins": self.plugins(rule, &condition_fields, &output_fields),
            },
        })
    }

    fn item(&self, item: &Macro) -> Value {
        let parts = Parts::of(&item.condition);
        json!({
            "info": { "name": &*item.name, "condition": item.written.condition },
            "details": {
                "used": item.used,
                "macros": item.written.macros,
                "lists": item.written.lists,
                "condition_operators": parts.operators,
                "condition_fields": parts.fields,
                "events": self.events(&format!("{MACRO}{}", item.name)),
                "condition_compiled": compiled_text(&item.condition),
                "plugins": [],
            },
        })
    }
}

fn list(list: &List) -> Value {
    let items: Vec<_> = list.items.iter().map(|item| item.text.to_lossy()).collect();
    json!({
        "info": { "name": &*list.name, "items": list.written },
        "details": {
            "used": list.used,
            "lists": list.lists,
            "items_compiled": items,
            "plugins": [],
        },
    })
}

/// Start and end of the second column.
const DESCRIPTION: usize = 51;
const WIDTH: usize = 110;

/// Formats the two columns that Falco prints.
pub(super) fn text_table(described: &Value) -> String {
    let mut out = two_columns("Rule", "Description") + &two_columns("----", "-----------");
    for rule in described["rules"].as_array().into_iter().flatten() {
        let text = |key: &str| rule["info"][key].as_str().unwrap_or_default();
        let description = wrap(text("description"), DESCRIPTION, WIDTH) + "\n";
        out.push_str(&two_columns(text("name"), &description));
    }
    out
}

fn two_columns(left: &str, right: &str) -> String {
    format!("{left:<50} {right}\n")
}

/// Wraps a text between two columns. Each word is followed by a blank.
pub(super) fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count() + 1;
        if length + word_length > width - indent && length > 0 {
            out.push_str(&format!("\n{:indent$}", ""));
            length = 0;
        }
        length += word_length;
        out.push_str(word);
        out.push(' ');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::Loader;

    const TEXT: &str = "- list: shells\n  items: [sh, bash]\n- list: all\n  items: [shells, zsh]\n\
        - macro: shell\n  condition: proc.name in (shells)\n\
        - rule: R\n  desc: d\n  condition: evt.type = open and shell\n  \
        output: p=%proc.name u=%user.name\n  priority: info\n  tags: [t]\n  exceptions:\n  \
        - name: e\n    fields: [fd.name]\n    comps: [startswith]\n    values: [[/x]]\n";

    fn described() -> Value {
        let (ruleset, _) = Loader::new().add("r.yaml", TEXT).finish();
        describe(
            &ruleset,
            &EngineOptions::default(),
            &Catalogue::default(),
            None,
        )
        .expect("it has rules")
    }

    #[test]
    fn rules_macros_and_lists_are_described_as_falco_does() {
        let all = described();
        let rule = &all["rules"][0];
        assert_eq!(rule["info"]["condition"], "evt.type = open and shell");
        assert_eq!(rule["info"]["priority"], "Informational");
        let details = &rule["details"];
        assert_eq!(details["macros"], json!(["shell"]));
        assert_eq!(
            details["condition_fields"],
            json!(["evt.type", "fd.name", "proc.name"])
        );
        assert_eq!(
            details["condition_operators"],
            json!(["=", "in", "startswith"])
        );
        assert_eq!(details["output_fields"], json!(["proc.name", "user.name"]));
        assert_eq!(details["exception_names"], json!(["e"]));
        assert_eq!(details["events"], json!(["open"]));
        assert_eq!(
            details["condition_compiled"],
            "((evt.type = open and proc.name in (sh, bash)) and not fd.name startswith /x)"
        );
        let shell = &all["macros"][0];
        assert_eq!(shell["details"]["lists"], json!(["shells"]));
        assert_eq!(shell["details"]["used"], true);
        let list = &all["lists"][1];
        assert_eq!(list["info"]["items"], json!(["zsh"]));
        assert_eq!(list["details"]["lists"], json!(["shells"]));
        assert_eq!(
            list["details"]["items_compiled"],
            json!(["sh", "bash", "zsh"])
        );
    }

    #[test]
    fn one_rule_is_described_alone_and_an_unknown_one_is_an_error() {
        let (ruleset, _) = Loader::new().add("r.yaml", TEXT).finish();
        let options = EngineOptions::default();
        let one =
            describe(&ruleset, &options, &Catalogue::default(), Some("R")).expect("it is there");
        assert!(one.get("macros").is_none());
        assert!(describe(&ruleset, &options, &Catalogue::default(), Some("S")).is_err());
    }

    #[test]
    fn text_has_two_columns() {
        let text = text_table(&described());
        assert!(
            text.starts_with("Rule                                               Description\n")
        );
        assert!(
            text.contains("\nR                                                  d \n"),
            "{text}"
        );
        assert_eq!(wrap("aa bb cc", 2, 8), "aa bb \n  cc ");
    }
}
