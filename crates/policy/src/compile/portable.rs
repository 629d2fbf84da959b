//! A classifier as data for another process, which takes over from the one that compiled the policy.

use std::collections::BTreeMap;

use abi::{Capabilities, Syscall};
use serde::{Deserialize, Serialize};

use super::denial_classifier::{DenialClassifier, Ruleset};
use super::landlock::DeniedPath;
use crate::pattern::Pattern;

/// A [`DenialClassifier`] in basic types: calls by name, patterns as text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PortableClassifier {
    holes: Vec<(String, String, u64)>,
    only: Vec<(String, String, u64)>,
    /// Earlier builds left none. Their agents ignore it, and Landlock denies these files.
    #[serde(default)]
    own: Vec<(String, String, u64)>,
    ports: Vec<(String, u16, u16)>,
    mounts: Vec<(String, String)>,
    any_ruleset: Option<String>,
    domains: Vec<String>,
    capabilities: Vec<(String, u64)>,
    of_any_user: bool,
    handled: u64,
    ruleset: Option<LoadedRuleset>,
}

/// The ruleset in the kernel.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct LoadedRuleset {
    denied: Vec<(String, String, u64)>,
    granted: BTreeMap<String, u64>,
}

/// A part of a classifier that this version of the program does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this version does not know {what} `{text}` of the policy in force")]
pub struct UnknownPart {
    /// The kind of part.
    what: &'static str,
    /// The part.
    text: String,
}

impl From<&DenialClassifier> for PortableClassifier {
    fn from(classifier: &DenialClassifier) -> Self {
        let by_pattern = |entries: &[(String, Pattern, u64)]| {
            let entries = entries.iter();
            entries
                .map(|(rule, path, rights)| (rule.clone(), path.text().to_owned(), *rights))
                .collect()
        };
        let mounts = classifier.mounts.iter();
        let capabilities = classifier.capabilities.iter();
        let ruleset = classifier.ruleset.as_ref().map(|ruleset| {
            let denied = ruleset.denied.iter();
            LoadedRuleset {
                denied: denied
                    .map(|(rule, hole)| (rule.clone(), hole.path.clone(), hole.rights))
                    .collect(),
                granted: ruleset.granted.clone(),
            }
        });
        Self {
            holes: by_pattern(&classifier.holes),
            only: by_pattern(&classifier.only),
            own: by_pattern(&classifier.own),
            ports: classifier.ports.clone(),
            mounts: mounts
                .map(|(rule, call)| (rule.clone(), call.name().to_owned()))
                .collect(),
            any_ruleset: classifier.any_ruleset.clone(),
            domains: classifier.domains.clone(),
            capabilities: capabilities
                .map(|(rule, set)| (rule.clone(), set.0))
                .collect(),
            of_any_user: classifier.of_any_user,
            handled: classifier.handled,
            ruleset,
        }
    }
}

impl TryFrom<PortableClassifier> for DenialClassifier {
    type Error = UnknownPart;

    fn try_from(portable: PortableClassifier) -> Result<Self, UnknownPart> {
        let ruleset = portable.ruleset.map(|ruleset| {
            let denied = ruleset.denied.into_iter();
            Ruleset {
                denied: denied
                    .map(|(rule, path, rights)| (rule, DeniedPath { path, rights }))
                    .collect(),
                granted: ruleset.granted,
            }
        });
        let capabilities = portable.capabilities.into_iter();
        Ok(Self {
            holes: by_pattern(portable.holes)?,
            only: by_pattern(portable.only)?,
            own: by_pattern(portable.own)?,
            ports: portable.ports,
            mounts: portable
                .mounts
                .into_iter()
                .map(|(rule, name)| Ok((rule, call(name)?)))
                .collect::<Result<_, _>>()?,
            any_ruleset: portable.any_ruleset,
            domains: portable.domains,
            capabilities: capabilities
                .map(|(rule, set)| (rule, Capabilities(set)))
                .collect(),
            of_any_user: portable.of_any_user,
            handled: portable.handled,
            ruleset,
        })
    }
}

fn by_pattern(
    entries: Vec<(String, String, u64)>,
) -> Result<Vec<(String, Pattern, u64)>, UnknownPart> {
    let entries = entries.into_iter();
    let parsed = entries.map(|(rule, text, rights)| match Pattern::parse(&text) {
        Ok(pattern) => Ok((rule, pattern, rights)),
        Err(_) => Err(UnknownPart {
            what: "the pattern",
            text,
        }),
    });
    parsed.collect()
}

fn call(name: String) -> Result<Syscall, UnknownPart> {
    Syscall::from_name(&name).ok_or(UnknownPart {
        what: "the call",
        text: name,
    })
}
