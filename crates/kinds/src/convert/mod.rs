//! Policies of other programs as policies of this one: KubeArmor's, profiles of the Security Profiles Operator, and vArmor's
//! models of behaviour. [`to_profile_model`] writes such a model.
//!
//! Each rule of a source is carried as a whole, in part, or refused, with the reason. Nothing is left out in silence:
//! a key that is not known is a refusal, too.

mod kubearmor;
mod made_profiles;
mod model_writer;
mod profile_model;
mod security_profiles;
mod source;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::{Target, yaml_text};
use source::Source;

pub use model_writer::to_profile_model;

/// How a rule is carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// As a whole.
    Whole,
    /// In part: what is different.
    Partly(String),
    /// Not at all: why.
    Refused(String),
}

impl Carried {
    /// The grade in a word, and what is different or why.
    #[must_use]
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Whole => ("whole", ""),
            Self::Partly(different) => ("partial", different),
            Self::Refused(cause) => ("refused", cause),
        }
    }
}

/// A rule of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedRule {
    /// Where it is in the source, such as `spec.file.matchPaths[0]`.
    pub source: String,
    /// Line in the file.
    pub line: u32,
    /// The rules that it becomes, by their names in the policy; empty if it is refused, or only decides which rules there are.
    pub becomes: Vec<String>,
    /// How it is carried over.
    pub carried: Carried,
}

/// A policy of another program, converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    /// Kind of the source.
    pub kind: String,
    /// Name of the source.
    pub name: String,
    /// A VarmorPolicy, or only its part `policy` if nothing says which workloads it is for.
    pub object: Value,
    /// Each rule of the source.
    pub rules: Vec<ConvertedRule>,
}

impl Conversion {
    /// The rules that are refused and not accepted by name, each with the reason.
    pub fn refused<'c>(
        &'c self,
        accepted: &'c [String],
    ) -> impl Iterator<Item = (&'c ConvertedRule, &'c str)> {
        self.rules.iter().filter_map(|rule| match &rule.carried {
            Carried::Refused(cause) if !accepted.contains(&rule.source) => {
                Some((rule, cause.as_str()))
            }
            _ => None,
        })
    }

    /// The rules that are refused and not accepted, each with the next step, for people.
    #[must_use]
    pub fn problems(&self, file: &str, accepted: &[String]) -> String {
        let problem = |(rule, cause): (&ConvertedRule, &str)| {
            let (line, name) = (rule.line, &rule.source);
            format!(
                "{file}:{line}: error: cannot carry `{name}` over: {cause}\nhelp: leave it out: --accept-partial '{name}'\n"
            )
        };
        self.refused(accepted).map(problem).collect()
    }

    /// The policy as YAML, with a comment for each rule that is left out.
    #[must_use]
    pub fn yaml(&self) -> String {
        let text = yaml_text::stream(std::slice::from_ref(&self.object));
        let (mark, rest) = text.split_at("---\n".len());
        let comment = |line: &str| format!("# {}\n", yaml::quote::comment(line));
        let mut out = mark.to_owned();
        out.push_str(&comment(&format!(
            "Converted from {} {}.",
            self.kind, self.name
        )));
        for (rule, cause) in self.refused(&[]) {
            out.push_str(&comment(&format!("Left out: {}: {cause}", rule.source)));
        }
        out + rest
    }

    /// Returns true if nothing of the source could be carried over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|rule| rule.becomes.is_empty())
    }
}

/// What a source does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The enforcers of the policy; `None` for all that its rules can use.
    pub enforcers: Option<String>,
    /// The workloads. It replaces what the source says of them.
    pub target: Option<Target>,
}

/// A file cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct ConvertError {
    /// Name of the file.
    pub file: String,
    /// Line.
    pub line: u32,
    /// What is wrong.
    pub problem: String,
}

/// Converts each document of a file.
///
/// # Errors
///
/// If the file is no YAML, or has a document of another kind.
pub fn convert(file: &str, text: &str, options: &Options) -> Result<Vec<Conversion>, ConvertError> {
    let wrong = |line, problem: String| ConvertError {
        file: file.to_owned(),
        line,
        problem,
    };
    let (documents, problem) = yaml::read(&file.into(), text);
    if let Some(problem) = problem {
        return Err(wrong(problem.location.line, problem.message));
    }
    if documents.is_empty() {
        return Err(wrong(1, "the file is empty".to_owned()));
    }
    let each = documents.iter().map(|document| {
        let source = Source::root(document);
        let word = |key: &str| source.get(key).and_then(|source| source.text());
        let version = word("apiVersion").unwrap_or_default();
        let (group, kind) = (
            version.split('/').next().unwrap_or_default(),
            word("kind").unwrap_or_default(),
        );
        let plan = match (group, kind.as_str()) {
            ("security.kubearmor.com", "KubeArmorPolicy") => kubearmor::convert(&source, options),
            ("security.kubearmor.com", "KubeArmorHostPolicy" | "KubeArmorClusterPolicy") => {
                return Err(wrong(
                    source.line(),
                    format!(
                        "{kind} is not converted: it chooses nodes or namespaces, which a policy of pods cannot. Write a \
                         KubeArmorPolicy for each namespace"
                    ),
                ));
            }
            ("security-profiles-operator.x-k8s.io", "SeccompProfile") => {
                security_profiles::seccomp(&source, options)
            }
            ("security-profiles-operator.x-k8s.io", "AppArmorProfile") => {
                security_profiles::apparmor(&source, options)
            }
            ("crd.varmor.org", "ArmorProfileModel") => profile_model::convert(&source, options),
            ("", "") if source.get("policy").is_some() => {
                let problem = "it is a policy in tollgate's form already, and `tollgate policy check` checks it";
                return Err(wrong(source.line(), problem.to_owned()));
            }
            _ => {
                let known = "KubeArmorPolicy (security.kubearmor.com), SeccompProfile and AppArmorProfile \
                             (security-profiles-operator.x-k8s.io), and ArmorProfileModel (crd.varmor.org)";
                let problem = format!("`{version}` `{kind}` is none of {known}");
                return Err(wrong(source.line(), problem));
            }
        };
        Ok(plan.finish(kind, &source))
    });
    each.collect()
}

/// What a source becomes.
#[derive(Debug, Default)]
struct Plan {
    /// The part `policy`.
    policy: Map<String, Value>,
    target: Option<Target>,
    rules: Vec<ConvertedRule>,
}

impl Plan {
    fn add(&mut self, source: &Source<'_>, becomes: Vec<String>, carried: Carried) {
        self.rules.push(ConvertedRule {
            source: source.path().to_owned(),
            line: source.line(),
            becomes,
            carried,
        });
    }

    fn refuse(&mut self, source: &Source<'_>, cause: impl Into<String>) {
        self.add(source, Vec::new(), Carried::Refused(cause.into()));
    }

    /// The items of a list. What is there and no list is refused.
    fn list<'n>(&mut self, source: &Source<'n>, key: &str) -> Vec<Source<'n>> {
        match source.get(key) {
            Some(list) if !list.is_list() => {
                self.refuse(&list, "it is no list");
                Vec::new()
            }
            _ => source.items(key),
        }
    }

    /// Returns the text of a scalar; refuses a list or a mapping.
    fn word(&mut self, source: &Source<'_>) -> Option<String> {
        let word = source.text();
        if word.is_none() {
            self.refuse(source, "it is no text");
        }
        word
    }

    /// Refuses every key that is not one of these.
    fn refuse_unknown(&mut self, source: &Source<'_>, known: &[&str]) {
        if !source.is_mapping() {
            self.refuse(source, "it is no mapping");
        }
        for key in source.keys() {
            let Some(name) = key.name() else { continue };
            if !known.contains(&name) {
                let near = yaml::closest(name, known.iter().copied());
                let cause = match near {
                    Some(near) => format!("this key is not known; did you mean `{near}`?"),
                    None => "this key is not known".to_owned(),
                };
                self.refuse(&key, cause);
            }
        }
    }

    fn finish(self, kind: String, source: &Source<'_>) -> Conversion {
        let text = |key: &str| {
            let metadata = source.get("metadata")?;
            metadata.get(key)?.text()
        };
        let name = text("name").unwrap_or_default();
        let policy = Value::Object(self.policy);
        let object = match &self.target {
            None => json!({ "policy": policy }),
            Some(target) => {
                let mut metadata = json!({ "name": name });
                if let Some(namespace) = text("namespace") {
                    metadata["namespace"] = json!(namespace);
                }
                json!({
                    "apiVersion": "crd.varmor.org/v1beta1",
                    "kind": "VarmorPolicy",
                    "metadata": metadata,
                    "spec": { "target": target, "policy": policy },
                })
            }
        };
        Conversion {
            kind,
            name,
            object,
            rules: self.rules,
        }
    }
}

#[cfg(test)]
mod kind_tests {
    use super::*;

    #[test]
    fn a_policy_that_is_one_already_says_so() {
        let said = |text: &str| {
            convert("web.yaml", text, &Options::default())
                .unwrap_err()
                .problem
        };
        let problem = said("policy:\n  enforcer: Seccomp\n");
        assert!(
            problem.contains("already") && problem.contains("tollgate policy check"),
            "{problem}"
        );
        assert!(said("other: 1\n").contains("is none of KubeArmorPolicy"));
    }
}
