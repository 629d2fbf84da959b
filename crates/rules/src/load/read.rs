//! Conversion of one YAML node into one item: keys, types, and the keys that `override` names.

use std::collections::BTreeSet;

use super::SYSCALL_SOURCE;
use super::item::{
    Change, ENGINE_KEYS, EXCEPTION_KEYS, Entry, ExceptionItem, Item, ItemKind, Key, LIST_KEYS,
    ListItem, MACRO_KEYS, MacroItem, PLUGIN_KEYS, RULE_KEYS, RuleItem, RuleUpdate,
};
use super::reader::{ReadResult, Reader};
use crate::condition::{is_identifier, is_list_name};
use crate::diagnostic::{Code, Location, closest};
use crate::ruleset::PluginRequirement;
use crate::version::{Version, number};
use yaml::SourceText;
use yaml::{Kind, Node};

/// Returns the location of a text with a NUL character, which no value of an event contains.
fn nul(node: &Node) -> Option<Location> {
    match &node.kind {
        Kind::Scalar(text) => text.text().contains('\0').then(|| node.location.clone()),
        Kind::Sequence(items) => items.iter().find_map(nul),
        Kind::Mapping(pairs) => pairs
            .iter()
            .find_map(|(key, value)| nul(key).or_else(|| nul(value))),
        _ => None,
    }
}

pub(super) fn read_item(node: &Node) -> ReadResult {
    let mut reader = Reader::new(node);
    let Kind::Mapping(pairs) = &node.kind else {
        let message = format!(
            "expected an item, a mapping with keys, found {}",
            node.describe()
        );
        reader.fail(&node.location, message);
        return reader.finish(None, None);
    };
    reader.pairs = pairs;
    if let Some(location) = nul(node) {
        reader.fail(&location, "the text contains a NUL character".to_owned());
    }
    // The order of these tests decides the type of an item with two of these keys.
    if let Some(value) = reader.get("required_engine_version") {
        let item = reader.engine_version(value);
        reader.check_keys(ENGINE_KEYS);
        return reader.finish(item, None);
    }
    if let Some(value) = reader.get("required_plugin_versions") {
        let item = reader.plugins(value);
        reader.check_keys(PLUGIN_KEYS);
        return reader.finish(item, None);
    }
    for (kind, keys) in [
        (ItemKind::List, LIST_KEYS),
        (ItemKind::Macro, MACRO_KEYS),
        (ItemKind::Rule, RULE_KEYS),
    ] {
        if reader.get(kind.word()).is_some() {
            let name = reader.required_string(kind.word());
            reader.context = name
                .as_ref()
                .map_or_else(String::new, |n| format!("{} {n}", kind.word()));
            let item = name.clone().and_then(|name| match kind {
                ItemKind::List => reader.list(name),
                ItemKind::Macro => reader.macro_item(name),
                ItemKind::Rule => reader.rule(name),
            });
            reader.check_keys(keys);
            return reader.finish(item, name.map(|name| (kind, name)));
        }
    }
    reader.unknown_item();
    reader.finish(None, None)
}

/// The keys that `override` names.
#[derive(Default)]
struct Overrides {
    append: BTreeSet<&'static str>,
    replace: BTreeSet<&'static str>,
}

impl Overrides {
    fn is_empty(&self) -> bool {
        self.append.is_empty() && self.replace.is_empty()
    }
}

impl<'n> Reader<'n> {
    // Items.

    fn engine_version(&mut self, value: &Node) -> Option<Item> {
        let text = self.scalar("required_engine_version", value)?;
        // A bare number dates from before versions had three parts: 26 is 0.26.0.
        let version = match number(text.text()) {
            Some(minor) => Some(Version::new(0, minor, 0)),
            None => Version::parse(text.text()),
        };
        if version.is_none() {
            let message = format!("`{}` is not a version such as 0.57.0", text.text());
            self.fail(&value.location, message);
        }
        Some(Item::EngineVersion(version?, value.location.clone()))
    }

    fn plugins(&mut self, value: &'n Node) -> Option<Item> {
        let entries = self.sequence("required_plugin_versions", value)?;
        let requirements = entries
            .iter()
            .filter_map(|entry| self.plugin(entry))
            .collect();
        Some(Item::Plugins(requirements))
    }

    fn plugin(&mut self, node: &'n Node) -> Option<PluginRequirement> {
        let mut entries = vec![node];
        if let Some(alternatives) = self.mapping("a plugin", node)?.get("alternatives") {
            entries.extend(self.sequence("alternatives", alternatives)?);
        }
        let mut alternatives: Vec<(String, Version)> = Vec::new();
        for entry in entries {
            let keys = self.mapping("a plugin", entry)?;
            let mut part = |key| match keys.get(key) {
                Some(value) => self.scalar(key, value).map(|text| text.text().to_owned()),
                None => {
                    self.fail(&entry.location, format!("a plugin needs the key `{key}`"));
                    None
                }
            };
            let (name, text) = (part("name")?, part("version")?);
            let Some(version) = Version::parse(&text) else {
                let message =
                    format!("`{text}`, asked of plugin `{name}`, is not a version such as 0.2.0");
                self.fail_with(Code::Validate, &entry.location, message);
                return None;
            };
            if alternatives.iter().any(|(other, _)| *other == name) {
                let message = format!("plugin `{name}` is listed twice as an alternative");
                self.fail_with(Code::Validate, &entry.location, message);
                return None;
            }
            alternatives.push((name, version));
        }
        Some(PluginRequirement {
            alternatives,
            location: node.location.clone(),
        })
    }

    fn list(&mut self, name: String) -> Option<Item> {
        if !is_list_name(&name) {
            self.warn(
                Code::InvalidListName,
                format!("no condition can spell the name `{name}`"),
            )
            .help = Some("leave out blanks, quotes, parentheses, commas and `=`".to_owned());
        }
        let items = self
            .required("items")
            .and_then(|node| self.texts("items", node));
        let change = self.change(LIST_KEYS, "items");
        let item = ListItem {
            name,
            items: items?,
            location: self.location.clone(),
        };
        Some(Item::List { item, change })
    }

    fn macro_item(&mut self, name: String) -> Option<Item> {
        if !is_identifier(&name) {
            self.warn(
                Code::InvalidMacroName,
                format!("no condition can spell the name `{name}`"),
            )
            .help = Some("begin with a letter; use letters, digits and `_` only".to_owned());
        }
        let condition = self.required_text("condition");
        let change = self.change(MACRO_KEYS, "condition");
        let item = MacroItem {
            name,
            condition: condition?,
            location: self.location.clone(),
        };
        Some(Item::Macro { item, change })
    }

    /// Returns true if a macro or list extends an earlier one, by `append` or by `override`.
    /// Returns what a list or macro does to the one that was there before. `key` has its value.
    fn change(&mut self, keys: &'static [Key], key: &str) -> Change {
        let flag = self.append_flag();
        let overrides = self.overrides(keys);
        self.check_both(flag, &overrides);
        match (
            flag || overrides.append.contains(key),
            overrides.replace.contains(key),
        ) {
            (true, _) => Change::Append,
            (false, true) => Change::Replace,
            (false, false) => Change::Define,
        }
    }

    fn rule(&mut self, name: String) -> Option<Item> {
        let append = self.append_flag();
        let overrides = self.overrides(RULE_KEYS);
        self.check_both(append, &overrides);
        if !overrides.is_empty() {
            return Some(self.override_rule(&name, &overrides));
        }
        if append {
            return Some(self.append_rule(name));
        }
        let defines = ["condition", "output", "desc", "priority"];
        if defines.iter().all(|key| self.get(key).is_none()) {
            return self.enable_rule(name);
        }
        self.define_rule(name)
    }

    fn override_rule(&mut self, name: &str, overrides: &Overrides) -> Item {
        for key in overrides.append.iter().chain(&overrides.replace) {
            if self.get_pair(key).is_none() {
                let message = format!("`override` names `{key}`, which is not given");
                self.fail_at_item(message);
            }
        }
        // In the order in which Falco looks at them, which reports only the first.
        let keys = RULE_KEYS.iter().filter(|key| key.append || key.replace);
        let keys: BTreeSet<_> = keys.map(|key| key.name).collect();
        for key in keys {
            let named = overrides.append.contains(key) || overrides.replace.contains(key);
            if let Some((node, _)) = self.get_pair(key).filter(|_| !named) {
                let help = format!("add `{key}: replace` under `override`, or drop `{key}`");
                let message = format!("`{key}` is given but not named under `override`");
                self.fail(&node.location, message).help = Some(help);
            }
        }
        let append = (!overrides.append.is_empty())
            .then(|| Box::new(self.rule_update(name.to_owned(), &overrides.append, true)));
        let replace = (!overrides.replace.is_empty())
            .then(|| Box::new(self.rule_update(name.to_owned(), &overrides.replace, false)));
        Item::UpdateRule { append, replace }
    }

    /// Reads a rule with the legacy `append: true`, which uses only the condition and the exceptions.
    fn append_rule(&mut self, name: String) -> Item {
        let keys = ["condition", "exceptions"]
            .into_iter()
            .filter(|key| self.get(key).is_some());
        let keys: BTreeSet<_> = keys.collect();
        if keys.is_empty() {
            let message = "an appended rule needs a condition or exceptions".to_owned();
            self.fail_with(Code::Validate, &self.location.clone(), message);
        }
        let mut update = self.rule_update(name, &keys, true);
        update.source = self.optional_source();
        Item::UpdateRule {
            append: Some(Box::new(update)),
            replace: None,
        }
    }

    fn rule_update(&mut self, name: String, keys: &BTreeSet<&str>, append: bool) -> RuleUpdate {
        let mut update = RuleUpdate::new(name, self.location.clone());
        for &key in keys {
            let Some(node) = self.get(key) else { continue };
            match key {
                "condition" => {
                    update.source = self.optional_source();
                    update.condition = self.scalar(key, node);
                }
                "output" => update.output = self.scalar(key, node).map(SourceText::trimmed),
                "desc" => update.desc = self.scalar(key, node).map(|t| t.text().to_owned()),
                "priority" => update.priority = self.priority(node),
                "tags" => update.tags = self.tags(node),
                "enabled" => update.enabled = self.boolean(key, node),
                "capture" => update.capture = self.boolean(key, node),
                "capture_duration" => update.capture_duration_ms = self.milliseconds(key, node),
                "count" => update.count = self.count(node),
                "risk" => update.risk = self.risk(node),
                "warn_evttypes" => update.warn_evttypes = self.boolean(key, node),
                "skip-if-unknown-filter" => {
                    update.skip_if_unknown_filter = self.boolean(key, node);
                }
                "exceptions" => update.exceptions = self.exceptions(node, append),
                other => unreachable!("`{other}` is in the table of keys but nothing reads it"),
            }
        }
        update
    }

    fn enable_rule(&mut self, name: String) -> Option<Item> {
        let Some(node) = self.get("enabled") else {
            let message = "a rule needs condition, output, desc and priority, or `override`, or \
                           `enabled` to switch an earlier rule";
            self.fail_at_item(message.to_owned());
            return None;
        };
        let enabled = self.boolean("enabled", node)?;
        self.warn(
            Code::DeprecatedItem,
            "`enabled` alone is an old notation".to_owned(),
        )
        .help = Some("add `override: {enabled: replace}`".to_owned());
        Some(Item::EnableRule {
            name,
            enabled,
            location: self.location.clone(),
        })
    }

    fn define_rule(&mut self, name: String) -> Option<Item> {
        // Reads all keys before it reports a missing one, so that one run shows every problem.
        let condition = self.required_text("condition");
        let output = self.required_text("output").map(SourceText::trimmed);
        let desc = self.required_string("desc");
        let priority = self
            .required("priority")
            .and_then(|node| self.priority(node));
        let source = match self.get("source") {
            Some(node) => self
                .scalar("source", node)
                .map(|text| text.text().to_owned()),
            None => Some(SYSCALL_SOURCE.to_owned()),
        };
        let mut flag = |key, default| match self.get(key) {
            Some(node) => self.boolean(key, node),
            None => Some(default),
        };
        let enabled = flag("enabled", true);
        let capture = flag("capture", false);
        let warn_evttypes = flag("warn_evttypes", true);
        let skip_if_unknown_filter = flag("skip-if-unknown-filter", false);
        let capture_duration = match self.get("capture_duration") {
            Some(node) => self.milliseconds("capture_duration", node),
            None => Some(0),
        };
        let (count, risk) = self.count_and_risk();
        let tags = self
            .get("tags")
            .map_or(Some(BTreeSet::new()), |node| self.tags(node));
        let exceptions = match self.get("exceptions") {
            Some(node) => self.exceptions(node, false),
            None => Some(Vec::new()),
        };
        Some(Item::Rule(Box::new(RuleItem {
            name,
            condition: condition?,
            appended: None,
            output: output?,
            desc: desc?,
            priority: priority?,
            source: source?,
            tags: tags?,
            enabled: enabled?,
            is_enabled_by_name: false,
            capture: capture?,
            capture_duration_ms: capture_duration?,
            count: count?,
            risk: risk?,
            warn_evttypes: warn_evttypes?,
            skip_if_unknown_filter: skip_if_unknown_filter?,
            exceptions: exceptions?,
            location: self.location.clone(),
        })))
    }

    fn unknown_item(&mut self) {
        let kinds = [
            "rule",
            "macro",
            "list",
            "required_engine_version",
            "required_plugin_versions",
        ];
        let keys: Vec<&str> = self
            .pairs
            .iter()
            .filter_map(|(key, _)| key.scalar())
            .map(SourceText::text)
            .collect();
        let near = keys
            .iter()
            .find_map(|key| closest(key, kinds).map(|kind| (*key, kind)));
        let first = keys
            .first()
            .map_or_else(String::new, |key| format!(" (first key `{key}`)"));
        let help = match near {
            Some((key, kind)) => format!("did you mean `{kind}` instead of `{key}`?"),
            None => format!("an item has one of the keys {}", kinds.join(", ")),
        };
        self.warn(
            Code::UnknownItem,
            format!("item of unknown kind{first} is ignored"),
        )
        .help = Some(help);
    }

    // Exceptions.

    /// Reads exceptions. With `append`, fields and comps may be omitted: they are those of the earlier
    /// exception.
    fn exceptions(&mut self, node: &'n Node, append: bool) -> Option<Vec<ExceptionItem>> {
        if node.is_null() {
            return Some(Vec::new());
        }
        let mut exceptions: Vec<ExceptionItem> = Vec::new();
        for entry in self.sequence("exceptions", node)? {
            let Some(exception) = self.exception(entry, append) else {
                continue;
            };
            if exceptions.iter().any(|other| other.name == exception.name) {
                let message = format!("exception `{}` is defined twice", exception.name);
                self.warn_at(Code::ExceptionNameNotUnique, &exception.location, message);
            }
            exceptions.push(exception);
        }
        Some(exceptions)
    }

    fn exception(&mut self, node: &'n Node, append: bool) -> Option<ExceptionItem> {
        let keys = self.mapping("an exception", node)?;
        self.check_keys_of(&keys, EXCEPTION_KEYS);
        let Some(name) = keys.get("name") else {
            self.fail(&node.location, "an exception needs a name".to_owned());
            return None;
        };
        let name = self.scalar("name", name)?.text().to_owned();
        let fields = match keys.get("fields") {
            Some(fields) => Some(self.entry("fields", fields)?),
            None if append => None,
            None => {
                self.fail(&node.location, format!("exception `{name}` needs fields"));
                return None;
            }
        };
        let comps = match keys.get("comps") {
            Some(comps) => Some(self.entry("comps", comps)?),
            None => None,
        };
        let mut values = Vec::new();
        match keys.get("values") {
            Some(node) => {
                for value in self.sequence("values", node)? {
                    values.extend(self.entry("values", value));
                }
            }
            None if append => {
                let message = format!("exception `{name}` is appended to without values");
                self.warn_at(Code::AppendNoValues, &node.location, message);
            }
            None => {}
        }
        Some(ExceptionItem {
            name,
            fields,
            comps,
            values,
            location: node.location.clone(),
        })
    }

    fn entry(&mut self, key: &str, node: &'n Node) -> Option<Entry> {
        match &node.kind {
            Kind::Sequence(items) => {
                let entries: Vec<Entry> = items
                    .iter()
                    .filter_map(|item| self.entry(key, item))
                    .collect();
                (entries.len() == items.len()).then(|| Entry::Many(entries, node.location.clone()))
            }
            _ => self.scalar(key, node).map(Entry::One),
        }
    }

    // Overrides.

    fn append_flag(&mut self) -> bool {
        let Some(node) = self.get("append") else {
            return false;
        };
        let append = self.boolean("append", node) == Some(true);
        if append {
            self.warn(
                Code::DeprecatedItem,
                "`append: true` is an old notation".to_owned(),
            )
            .help = Some("write `override: {condition: append}` (or `items: append`)".to_owned());
        }
        append
    }

    fn check_both(&mut self, append: bool, overrides: &Overrides) {
        if append && !overrides.is_empty() {
            let message = "`override` and `append: true` cannot be used together".to_owned();
            self.fail_at_item(message).help =
                Some("leave out `append` and name the key under `override`".to_owned());
        }
    }

    fn overrides(&mut self, keys: &'static [Key]) -> Overrides {
        let mut overrides = Overrides::default();
        let Some(node) = self.get("override") else {
            return overrides;
        };
        let Some(entries) = self.mapping("override", node) else {
            return overrides;
        };
        for (name, value) in entries {
            let Some(key) = keys
                .iter()
                .find(|key| key.name == name && (key.append || key.replace))
            else {
                let names = keys.iter().filter(|key| key.replace).map(|key| key.name);
                let help = closest(name, names.clone()).map_or_else(
                    || format!("keys that can be: {}", names.collect::<Vec<_>>().join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                let message = format!("`{name}` cannot be overridden");
                self.fail(&value.location, message).help = Some(help);
                continue;
            };
            match value.scalar().map(SourceText::text) {
                Some("append") if key.append => {
                    overrides.append.insert(key.name);
                }
                Some("replace") => {
                    overrides.replace.insert(key.name);
                }
                Some("append") => {
                    self.fail(&value.location, format!("`{name}` cannot be appended to"))
                        .help = Some(format!("use `{name}: replace`"));
                }
                _ => {
                    let allowed = if key.append {
                        "`append` or `replace`"
                    } else {
                        "`replace`"
                    };
                    let message = format!("the override of `{name}` has to be {allowed}");
                    self.fail(&value.location, message);
                }
            }
        }
        overrides
    }
}
