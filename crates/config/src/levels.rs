//! Levels of rules: which rules they turn off, and which built-in rules have to be read although their level is off.

use std::path::{Path, PathBuf};

use rules::{Level, Rule};

use crate::Selection;
use crate::rule_files::{BUILTIN_NAME, Loaded, MORE, RuleFile};

/// Returns true if the file changes a built-in rule of level hunting, such as by an exception, or a macro or list of these
/// rules. It has to be known then, even if the level is off.
pub(crate) fn changes_hunting(file: &RuleFile) -> bool {
    let Ok(text) = &file.text else {
        return false;
    };
    let is_change = ["override:", "append:"]
        .iter()
        .any(|key| text.contains(key));
    let mut names = ["- rule: ", "- macro: ", "- list: "]
        .into_iter()
        .flat_map(hunting_names);
    let changes = is_change && names.any(|name| text.contains(name));
    &*file.name != BUILTIN_NAME && (changes || text.split("rule:").skip(1).any(switches_hunting))
}

/// Returns true if this is the rest of an item that enables or disables a rule of level hunting in the old notation, which is
/// `enabled` alone. A definition has a condition, and needs no other rule.
fn switches_hunting(rest: &str) -> bool {
    let ends = ["macro:", "list:"]
        .into_iter()
        .filter_map(|next| rest.find(next));
    let item = &rest[..ends.min().unwrap_or(rest.len())];
    let is_switch = item.contains("enabled:") && !item.contains("condition:");
    is_switch && hunting_names("- rule: ").any(|name| item.contains(name))
}

/// Returns the names in [`MORE`] after a start of a line, such as `- rule: `.
fn hunting_names(start: &'static str) -> impl Iterator<Item = &'static str> {
    MORE.lines()
        .filter_map(move |line| line.strip_prefix(start))
}

/// Returns true if the selection enables one of the built-in rules of level hunting by its name, or all by their tag. A
/// pattern does not: `*` means the rules that are read.
pub(crate) fn enables_hunting(selection: &Selection) -> bool {
    let tag = selection.tag.as_deref();
    let is_tag = tag.is_some_and(|tag| *tag == Level::Hunting.tag());
    let mut names = hunting_names("- rule: ");
    selection.enable && (is_tag || names.any(|name| selection.rule.as_deref() == Some(name)))
}

/// Returns true if the selection would enable built-in rules of level hunting, if these were read.
pub(crate) fn would_enable_hunting(selection: &Selection) -> bool {
    let mut names = hunting_names("- rule: ");
    selection.enable && names.any(|name| selection.names(name))
}

/// Returns the selections that disable the rules of the levels above this one.
pub(crate) fn selections(level: Level) -> Vec<Selection> {
    let above = Level::ALL.into_iter().filter(|other| *other > level);
    let disable = |level: Level| Selection {
        enable: false,
        rule: None,
        tag: Some(level.tag()),
        implied: true,
    };
    above.map(disable).collect()
}

impl Loaded {
    /// Returns a line for each file of these paths, or below them, with rules that are off because of their levels.
    #[must_use]
    pub fn level_warnings<'p>(&self, paths: impl Iterator<Item = &'p PathBuf>) -> Vec<String> {
        let paths: Vec<_> = paths.collect();
        let is_named = |file: &&RuleFile| {
            let file = Path::new(&*file.name);
            paths.iter().any(|path| file.starts_with(path))
        };
        let warning = |file: &RuleFile| {
            let off = self.ruleset.rules.iter().filter(|rule| {
                rule.location.file == file.name && self.off_by_level.contains(&rule.name)
            });
            let levels: Vec<Level> = off.map(Rule::level).collect();
            let level = levels.iter().max()?;
            let (rules, are, them) = match levels.len() {
                1 => ("rule", "is", "it"),
                _ => ("rules", "are", "them"),
            };
            let (count, file) = (levels.len(), &file.name);
            Some(format!(
                "{count} {rules} of {file} {are} off: level {level}; --level {level} turns {them} on"
            ))
        };
        self.files
            .iter()
            .filter(is_named)
            .filter_map(warning)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rules::EngineOptions;
    use tempfile::TempDir;

    use super::*;
    use crate::Config;
    use crate::rule_files::{self, NoSink, RuleSources};

    const HUNTING: &str = "Read ssh information";

    /// Loads the built-in rules and a file of this text at level stable.
    fn with(text: &str, selections: Vec<Selection>) -> (TempDir, Loaded, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.yaml");
        fs::write(&own, text).unwrap();
        let mut config = Config {
            added_rules: vec![own],
            rules: self::selections(Level::Stable),
            ..Config::default()
        };
        config.rules.extend(selections);
        let mut loaded = rule_files::load_read(config.rule_sources().read());
        let idle = loaded.select(&config.rules);
        let idle = idle.iter().map(|selection| selection.complaint()).collect();
        loaded.usable().unwrap();
        (dir, loaded, idle)
    }

    fn enable(rule: &str) -> Selection {
        Selection {
            enable: true,
            rule: Some(rule.to_owned()),
            tag: None,
            implied: false,
        }
    }

    /// Returns whether the rule is on; `None` if it is not read.
    fn state(loaded: &Loaded, name: &str) -> Option<bool> {
        loaded.ruleset.rule(name).map(|rule| rule.enabled)
    }

    #[test]
    fn levels_that_are_off_are_not_read_or_are_disabled() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.yaml");
        let rule = "- {rule: NAME, desc: d, condition: evt.type = open, output: o, priority: INFO, tags: [TAG]}\n";
        let text = ["level_hunting", "level_forensic", "level_stable", "x"]
            .map(|tag| rule.replace("NAME", tag).replace("TAG", tag));
        fs::write(&own, text.concat()).unwrap();
        let at = |level: Level, named: Vec<PathBuf>, added: Vec<PathBuf>| {
            let sources = RuleSources {
                named,
                added,
                level,
                ..RuleSources::default()
            };
            let mut loaded = sources.load();
            let (engine, _) = loaded.compile(&EngineOptions::default(), NoSink);
            loaded.usable().unwrap();
            (loaded.ruleset.rules.len(), engine.matches().count())
        };
        let counts = |level: Level| {
            [
                at(level, vec![], vec![]),
                at(level, vec![], vec![own.clone()]),
                at(level, vec![own.clone()], vec![]),
            ]
        };
        let [(stable, on), beside, named] = counts(Level::Stable);
        assert_eq!(
            (on, beside, named),
            (stable, (stable + 4, stable + 2), (4, 2))
        );
        let [(hunting, on), beside, named] = counts(Level::Hunting);
        assert!(hunting > stable + 30, "{hunting}");
        assert_eq!(
            (on, beside, named),
            (hunting, (hunting + 4, hunting + 3), (4, 3))
        );
        assert_eq!(counts(Level::Forensic)[2], (4, 4));
    }

    #[test]
    fn an_exception_to_a_hunting_rule_loads_while_the_level_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.yaml");
        let text = "- rule: Read ssh information\n  exceptions:\n    - name: mine\n      fields: [proc.name]\n      comps: [in]\n      \
                    values: [[backup]]\n  override: {exceptions: append}\n";
        fs::write(&own, text).unwrap();
        for (level, is_on) in [(Level::Stable, false), (Level::Hunting, true)] {
            let sources = RuleSources {
                added: vec![own.clone()],
                level,
                ..RuleSources::default()
            };
            let loaded = sources.load();
            assert_eq!(loaded.render(loaded.diagnostics.iter()), "");
            let rule = loaded.ruleset.rule("Read ssh information").unwrap();
            assert_eq!((rule.enabled, rule.level()), (is_on, Level::Hunting));
        }
    }

    #[test]
    fn falco_has_no_levels() {
        let request = crate::Request {
            mode: crate::CompatMode::Falco,
            ..crate::Request::default()
        };
        let config = request.load().unwrap().config;
        assert!(config.ignores_levels);
        assert_eq!(config.rule_sources().level, Level::Forensic);
        let config = crate::Request::default().load().unwrap().config;
        assert!(!config.ignores_levels);
        assert_eq!(config.rule_sources().level, Level::Stable);
    }

    #[test]
    fn a_macro_and_a_list_of_hunting_rules_can_be_appended_to_while_the_level_is_off() {
        for text in [
            "- list: lookaround_tools\n  items: [mine]\n  override: {items: append}\n",
            "- list: lookaround_tools\n  items: [mine]\n  append: true\n",
            "- macro: peer_chosen\n  condition: or proc.name = mine\n  override: {condition: append}\n",
        ] {
            let (_dir, loaded, _) = with(text, Vec::new());
            assert_eq!(state(&loaded, HUNTING), Some(false), "{text}");
        }
    }

    #[test]
    fn a_hunting_rule_that_is_enabled_by_its_name_is_on() {
        let replace = |enabled: bool| {
            format!("- rule: {HUNTING}\n  enabled: {enabled}\n  override: {{enabled: replace}}\n")
        };
        let (_dir, loaded, _) = with(&replace(true), Vec::new());
        assert_eq!(state(&loaded, HUNTING), Some(true));
        assert_eq!(state(&loaded, "DB program spawned process"), Some(false));
        let (_dir, loaded, _) = with(&replace(false), Vec::new());
        assert_eq!(state(&loaded, HUNTING), Some(false));
        let old = format!(
            "- rule: {HUNTING}\n  enabled: true\n- macro: m\n  condition: evt.type = open\n"
        );
        let (_dir, loaded, _) = with(&old, Vec::new());
        assert_eq!(state(&loaded, HUNTING), Some(true));
        let (_dir, loaded, idle) = with("[]", vec![enable(HUNTING)]);
        assert_eq!((state(&loaded, HUNTING), idle.len()), (Some(true), 0));
        assert_eq!(state(&loaded, "DB program spawned process"), Some(false));
        let mut disabled = enable(HUNTING);
        disabled.enable = false;
        let (_dir, loaded, _) = with(&replace(true), vec![disabled]);
        assert_eq!(state(&loaded, HUNTING), Some(false));
    }

    #[test]
    fn a_new_definition_of_a_hunting_rule_does_not_read_the_others() {
        let text = format!(
            "- rule: {HUNTING}\n  desc: d\n  condition: evt.type = open\n  output: o\n  priority: INFO\n  enabled: true\n"
        );
        let (_dir, loaded, _) = with(&text, Vec::new());
        assert_eq!(state(&loaded, HUNTING), Some(true));
        assert_eq!(state(&loaded, "DB program spawned process"), None);
    }

    #[test]
    fn a_selection_whose_rules_are_not_read_names_the_level() {
        let (_dir, loaded, idle) = with("[]", vec![enable("Read ssh*"), enable("none")]);
        assert_eq!(state(&loaded, HUNTING), None);
        let [hunting, none] = &idle[..] else {
            panic!("{idle:?}");
        };
        assert!(hunting.contains("--level hunting"), "{hunting}");
        assert!(!none.contains("level"), "{none}");
    }

    #[test]
    fn a_named_file_whose_rules_are_off_by_their_level_is_warned_of() {
        let rule = "- {rule: NAME, desc: d, condition: evt.type = open, output: o, priority: INFO, tags: [TAG]}\n";
        let text = ["level_hunting", "level_forensic", "x"]
            .map(|tag| rule.replace("NAME", tag).replace("TAG", tag));
        let (dir, loaded, _) = with(&text.concat(), Vec::new());
        let own = dir.path().join("own.yaml");
        let warnings = |path: &PathBuf| loaded.level_warnings(std::iter::once(path));
        let expected = format!(
            "2 rules of {} are off: level forensic; --level forensic turns them on",
            own.display()
        );
        assert_eq!(warnings(&own), [&*expected]);
        assert_eq!(warnings(&dir.path().to_owned()), [&*expected]);
        assert!(warnings(&dir.path().join("other.yaml")).is_empty());
        let (dir, loaded, _) = with(&text.concat(), vec![enable("level_*")]);
        let own = dir.path().join("own.yaml");
        assert!(loaded.level_warnings(std::iter::once(&own)).is_empty());
    }
}
