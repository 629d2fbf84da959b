//! Label selectors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A test on labels. An empty selector matches everything.
///
/// ```
/// use std::collections::BTreeMap;
/// let selector: kinds::LabelSelector = serde_json::from_str(
///     r#"{"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}"#,
/// ).unwrap();
/// assert!(selector.matches(&BTreeMap::from([("app".to_owned(), "web".to_owned())])));
/// assert!(!selector.matches(&BTreeMap::new()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must be there with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further tests, all of which must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A test on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// The test.
    pub operator: Operator,
    /// Values of [`Operator::In`] and [`Operator::NotIn`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The test of a [`Requirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is absent.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Returns true if an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Like [`LabelSelector::matches`], with the value of a label by its key.
    pub fn matches_by<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let has = |(key, value): (&String, &String)| label(key) == Some(value);
        let holds = |test: &Requirement| {
            let value = label(&test.key);
            let listed = value.is_some_and(|value| test.values.iter().any(|one| one == value));
            match test.operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(has) && self.match_expressions.iter().all(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_is_tested_with_the_label_listed_other_and_absent() {
        let labels = |value: Option<&str>| -> BTreeMap<String, String> {
            value
                .map(|value| ("k".to_owned(), value.to_owned()))
                .into_iter()
                .collect()
        };
        for (operator, listed, other, absent) in [
            (Operator::In, true, false, false),
            (Operator::NotIn, false, true, true),
            (Operator::Exists, true, true, false),
            (Operator::DoesNotExist, false, false, true),
        ] {
            let selector = LabelSelector {
                match_expressions: vec![Requirement {
                    key: "k".to_owned(),
                    operator,
                    values: vec!["a".to_owned(), "b".to_owned()],
                }],
                ..LabelSelector::default()
            };
            assert_eq!(selector.matches(&labels(Some("b"))), listed, "{operator:?}");
            assert_eq!(selector.matches(&labels(Some("c"))), other, "{operator:?}");
            assert_eq!(selector.matches(&labels(None)), absent, "{operator:?}");
        }
    }
}
