//! The built-in rules: `data/builtin.txt` and `data/runtime-default.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use abi::capability;

use crate::enforcer::EnforcerKind;
use crate::operation::read_note;
use crate::restriction::{Restriction, read_restriction};

/// A built-in rule.
#[derive(Debug, PartialEq)]
pub struct Builtin {
    /// Name of the rule.
    pub name: String,
    /// Alternative names.
    pub aliases: Vec<String>,
    /// The list of a policy that the rule belongs to.
    pub class: Class,
    /// One-line description of what the rule denies.
    pub about: String,
    /// The restrictions that the rule consists of.
    pub restrictions: Vec<Restriction>,
    /// Known bypasses, by enforcer.
    pub weak: BTreeMap<EnforcerKind, Vec<String>>,
    /// Legitimate behaviour that the rule breaks.
    pub breaks: Vec<String>,
    /// Set if everybody knows the names of the files, so that listing their folders reveals nothing.
    pub names_are_public: bool,
}

/// The lists of built-in rules in a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// `hardeningRules`
    Hardening,
    /// `attackProtectionRules`
    Attack,
    /// `vulMitigationRules`
    Vulnerability,
}

impl Class {
    /// The key of a policy that lists rules of this class.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Hardening => "hardeningRules",
            Self::Attack => "attackProtectionRules",
            Self::Vulnerability => "vulMitigationRules",
        }
    }
}

/// Placeholder that expands to one rule for each capability.
const EACH_CAPABILITY: &str = "disable-cap-*";

static RULES: LazyLock<Vec<Builtin>> = LazyLock::new(|| {
    read(include_str!("../data/builtin.txt")).expect("a unit test reads the same file")
});

static BASE: LazyLock<Vec<Builtin>> = LazyLock::new(|| {
    read(include_str!("../data/runtime-default.txt")).expect("a unit test reads the same file")
});

/// Every built-in rule, in the order of the data file.
#[must_use]
pub fn all() -> &'static [Builtin] {
    &RULES
}

/// The rules that container runtimes apply by default.
#[must_use]
pub fn base() -> &'static [Builtin] {
    &BASE
}

/// Finds a rule by name or alias; `_` equals `-`, and case is ignored.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    let name = name.to_lowercase().replace('_', "-");
    all()
        .iter()
        .find(|rule| rule.name == name || rule.aliases.contains(&name))
}

/// The name of the rule most similar to `name`.
#[must_use]
pub fn suggest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('_', "-");
    let names = all()
        .iter()
        .flat_map(|rule| std::iter::once(&rule.name).chain(&rule.aliases));
    yaml::closest(&name, names.map(String::as_str))
}

fn read(text: &str) -> Result<Vec<Builtin>, String> {
    let mut rules: Vec<Builtin> = Vec::new();
    let mut blocks: Vec<Vec<(usize, &str)>> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match blocks.last_mut() {
            Some(block) if !line.starts_with("rule ") => block.push((number, line)),
            _ => blocks.push(vec![(number, line)]),
        }
    }
    for block in blocks {
        if block[0].1 == format!("rule {EACH_CAPABILITY}") {
            for number in 0..=capability::LAST {
                let name = capability::name(number).ok_or("a capability without a name")?;
                let short = name.trim_start_matches("CAP_").to_lowercase();
                rules.push(read_rule(&block, &short)?);
            }
        } else {
            rules.push(read_rule(&block, "")?);
        }
    }
    Ok(rules)
}

/// Reads one block of the data file. `capability` replaces a `*` that stands alone or ends a name.
fn read_rule(block: &[(usize, &str)], capability: &str) -> Result<Builtin, String> {
    let mut rule = Builtin {
        name: String::new(),
        aliases: Vec::new(),
        class: Class::Hardening,
        about: String::new(),
        restrictions: Vec::new(),
        weak: BTreeMap::new(),
        breaks: Vec::new(),
        names_are_public: false,
    };
    for &(number, line) in block {
        let line = match capability {
            "" => line.to_owned(),
            name if line.starts_with("rule ") => line.replace('*', &name.replace('_', "-")),
            name => line.replace('*', name),
        };
        add(&mut rule, &line).map_err(|problem| format!("line {}: {problem}", number + 1))?;
    }
    if rule.about.is_empty() || rule.restrictions.is_empty() {
        return Err(format!("the rule {} is not complete", rule.name));
    }
    Ok(rule)
}

fn add(rule: &mut Builtin, line: &str) -> Result<(), String> {
    let (key, value) = line.split_once(' ').ok_or("a line without a value")?;
    match key {
        "rule" => {
            let mut names = value.split(' ').map(str::to_owned);
            rule.name = names.next().unwrap_or_default();
            rule.aliases = names.collect();
        }
        "in" => {
            let (class, about) = value.split_once(' ').ok_or("nothing follows the class")?;
            rule.class = match class {
                "hardening" => Class::Hardening,
                "attack" => Class::Attack,
                "vulnerability" => Class::Vulnerability,
                _ => return Err(format!("no such class: `{class}`")),
            };
            rule.about = about.to_owned();
        }
        "weak" => {
            let (enforcer, text) = read_note(value)?;
            rule.weak.entry(enforcer).or_default().push(text);
        }
        "names" if value == "public" => rule.names_are_public = true,
        "breaks" => rule.breaks.push(value.to_owned()),
        _ => rule.restrictions.extend(read_restriction(line)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_98_rules_and_4_other_names_all_different() {
        let rules = read(include_str!("../data/builtin.txt")).unwrap();
        assert_eq!(rules.len(), 98);
        let names: BTreeSet<_> = rules
            .iter()
            .flat_map(|rule| std::iter::once(&rule.name).chain(&rule.aliases))
            .collect();
        assert_eq!(names.len(), 102);
        let count = |class| rules.iter().filter(|rule| rule.class == class).count();
        assert_eq!(count(Class::Hardening), 62);
        assert_eq!(count(Class::Attack), 31);
        assert_eq!(count(Class::Vulnerability), 5);
    }

    #[test]
    fn the_base_reads() {
        let base = read(include_str!("../data/runtime-default.txt")).unwrap();
        assert_eq!(base.len(), 6);
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        for name in [
            "disable-cap-net-raw",
            "DISABLE_CAP_NET_RAW",
            "Disable-Cap_Net-Raw",
        ] {
            assert_eq!(find(name).unwrap().name, "disable-cap-net-raw");
        }
        assert_eq!(find("disable-ipv4").unwrap().name, "disable-inet");
        assert_eq!(find("disable-cap-privilege"), None);
        assert_eq!(
            suggest("disable-cap-privilege"),
            Some("disable-cap-privileged")
        );
    }

    #[test]
    fn privileged_capabilities_are_27() {
        let Restriction::Capabilities(set) =
            find("disable-cap-privileged").unwrap().restrictions[0]
        else {
            panic!("it is about capabilities");
        };
        assert_eq!(set.0.count_ones(), 27);
    }

    #[test]
    fn mistakes_in_the_file_are_named_with_their_line() {
        for (text, part) in [
            ("rule a\nin nowhere x", "line 2: no such class: `nowhere`"),
            ("rule a\nin attack x\nfile q /x", "line 3: `q` is unknown"),
            ("rule a\nin attack x\nsmell q", "line 3: `smell` is unknown"),
            ("rule a\nin attack x", "not complete"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
