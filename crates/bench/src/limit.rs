//! Limits that fail a run: `--fail-if 'index<0.9'`.

use std::str::FromStr;

use crate::Error;
use crate::plan::{NATIVE, NATIVE_AGAIN};
use crate::summary::{Index, Row, Summary};

/// A limit: a figure, the rows it applies to, and the values that break it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    text: String,
    figure: Figure,
    /// `None`: every subject other than native.
    subject: Option<String>,
    workload: Option<String>,
    is_upper: bool,
    number: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Speed divided by native speed, over all workloads of a group.
    Index,
    /// Time divided by native time, for each workload.
    Ratio,
    /// Lost events.
    Drops,
    /// Invalid samples.
    Invalid,
}

const FIGURES: [(&str, Figure); 4] = [
    ("index", Figure::Index),
    ("ratio", Figure::Ratio),
    ("drops", Figure::Drops),
    ("invalid", Figure::Invalid),
];

/// A broken limit, and the figure that breaks it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BrokenLimit {
    pub(crate) subject: String,
    /// The workload; `None` for an index.
    pub(crate) workload: Option<String>,
    pub(crate) said: String,
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fail = |reason: String| Error::Option {
            option: format!("--fail-if {text}"),
            reason,
        };
        let form = "expected FIGURE<NUMBER or FIGURE>NUMBER, as in 'index<0.9', 'ratio:notify>2' or \
                    'ratio:notify:open_close>6'";
        let at = text.find(['<', '>']).ok_or_else(|| fail(form.to_owned()))?;
        let (left, right) = text.split_at(at);
        let number = right[1..].trim();
        let number = number
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .ok_or_else(|| fail(format!("`{number}` is not a number; {form}")))?;
        let mut words = left.trim().splitn(3, ':').map(str::trim);
        // Splitting gives at least one part.
        let name = words.next().unwrap_or_default();
        let figure = FIGURES
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                let names = FIGURES.map(|(name, _)| name);
                let near = workload::nearest(name, names.into_iter());
                let hint = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
                fail(format!(
                    "no such figure: `{name}`; {hint}expected one of {}",
                    names.join(", ")
                ))
            })?;
        let mut named = || {
            words
                .next()
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
        };
        Ok(Self {
            text: text.to_owned(),
            figure: figure.1,
            subject: named(),
            workload: named(),
            is_upper: right.starts_with('>'),
            number,
        })
    }
}

impl Limit {
    /// Returns what breaks the limit: a figure beyond it, or a figure that is unknown because samples failed,
    /// since the limit is then not known to hold.
    ///
    /// # Errors
    ///
    /// If the summary has no row that the limit applies to: such a limit would never fail.
    pub(crate) fn broken(&self, summary: &Summary) -> Result<Vec<BrokenLimit>, Error> {
        let figures = self.figures(summary);
        if figures.is_empty() {
            let subjects: Vec<&str> = summary.rows.iter().map(|row| &*row.subject).collect();
            let near = self
                .subject
                .as_ref()
                .and_then(|name| workload::nearest(name, subjects.into_iter()));
            let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            return Err(Error::Option {
                option: format!("--fail-if {}", self.text),
                reason: format!("the results have no such figure{hint}"),
            });
        }
        Ok(figures
            .into_iter()
            .filter_map(|figure| self.check(figure))
            .collect())
    }

    /// Returns the broken limit if a figure breaks this one.
    fn check(&self, figure: Found) -> Option<BrokenLimit> {
        let said = match figure.value {
            Ok(value) if self.is_upper && value > self.number => report::number(value),
            Ok(value) if !self.is_upper && value < self.number => report::number(value),
            Ok(_) => return None,
            Err(why) => format!("not known: {why}"),
        };
        Some(BrokenLimit {
            said: format!(
                "{}: {} of {}{} is {said}",
                self.text,
                self.name(),
                figure.subject,
                figure
                    .workload
                    .as_ref()
                    .map_or_else(String::new, |name| format!(", {name},")),
            ),
            subject: figure.subject,
            workload: figure.workload,
        })
    }

    fn name(&self) -> &'static str {
        let of = |(_, figure): &&(&str, Figure)| *figure == self.figure;
        FIGURES.iter().find(of).map_or("figure", |(name, _)| name)
    }

    fn is_about(&self, subject: &str) -> bool {
        match &self.subject {
            Some(name) => name == subject,
            None => ![NATIVE, NATIVE_AGAIN].contains(&subject),
        }
    }

    fn figures(&self, summary: &Summary) -> Vec<Found> {
        if self.figure == Figure::Index {
            return self.indices(summary);
        }
        (summary.rows.iter())
            .filter(|row| self.is_about(&row.subject))
            .filter(|row| {
                self.workload
                    .as_ref()
                    .is_none_or(|name| *name == row.workload)
            })
            .filter_map(|row| {
                let value = match self.figure {
                    Figure::Index => return None,
                    Figure::Ratio => ratio(summary, row),
                    // Most subjects do not count lost events.
                    Figure::Drops => Ok(row.drops? as f64),
                    Figure::Invalid => Ok(row.invalid as f64),
                };
                Some(Found {
                    subject: row.subject.clone(),
                    workload: Some(row.workload.clone()),
                    value,
                })
            })
            .collect()
    }

    fn indices(&self, summary: &Summary) -> Vec<Found> {
        (summary.indices.iter())
            .filter(|index| self.is_about(&index.subject))
            .filter(|index| {
                self.workload
                    .as_ref()
                    .is_none_or(|group| *group == index.group)
            })
            .map(|index| Found {
                subject: index.subject.clone(),
                workload: None,
                value: whole(index),
            })
            .collect()
    }
}

/// The value of a figure, or the reason why there is none.
struct Found {
    subject: String,
    workload: Option<String>,
    value: Result<f64, String>,
}

fn ratio(summary: &Summary, row: &Row) -> Result<f64, String> {
    let ratio = row.ratio.ok_or_else(|| {
        let whose = [NATIVE, &row.subject].map(|subject| {
            let mut rows = summary.rows.iter();
            rows.find(|other| other.subject == subject && other.workload == row.workload)
        });
        let failed = whose.into_iter().flatten().find(|row| row.n == 0);
        match failed {
            Some(Row {
                subject, invalid, ..
            }) => format!("0 of {invalid} samples of {subject} are valid"),
            None => format!("no round has valid samples of {NATIVE} and {}", row.subject),
        }
    });
    Ok(ratio?.estimate)
}

/// Returns an index over all workloads of its group. An index over fewer would hide those that fail.
fn whole(index: &Index) -> Result<f64, String> {
    match index.ratio {
        Some(ratio) if index.failed == 0 => Ok(ratio.estimate),
        _ => Err(format!(
            "{} of {} workloads have no valid samples",
            index.failed,
            index.failed + index.workloads
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{summarise, tests::recording};

    fn broken(limit: &str) -> Vec<BrokenLimit> {
        let summary = summarise(&recording(2));
        limit.parse::<Limit>().unwrap().broken(&summary).unwrap()
    }

    #[test]
    fn limits_are_held_against_their_figures() {
        assert_eq!(broken("index<0.9").len(), 1);
        assert!(broken("index<0.4").is_empty());
        assert_eq!(broken("ratio > 1.5")[0].workload.as_deref(), Some("w"));
        assert!(broken("ratio:slow:w>3").is_empty());
        assert!(broken("invalid>0").is_empty());
        // A limit applies to native only if it names native.
        assert!(broken("ratio:native-again>1.5").is_empty());
    }

    #[test]
    fn what_failed_breaks_every_limit_about_it() {
        let mut recording = recording(2);
        for sample in &mut recording.samples {
            if sample.subject == "slow" {
                sample.invalid = Some("exit status 1".to_owned());
            }
        }
        let summary = summarise(&recording);
        for limit in ["index<0.4", "ratio>99", "ratio:slow:w>99"] {
            let broken = limit.parse::<Limit>().unwrap().broken(&summary).unwrap();
            assert_eq!(broken.len(), 1, "{limit}");
            assert!(broken[0].said.contains(" is not known: "), "{broken:?}");
        }
    }

    #[test]
    fn limits_that_mean_nothing_are_refused() {
        let complaint = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        assert!(complaint("idnex<0.9").contains("did you mean `index`?"));
        assert!(complaint("index=0.9").contains("expected FIGURE<NUMBER"));
        assert!(complaint("index<fast").contains("`fast` is not a number"));
        let limit: Limit = "ratio:slwo>1".parse().unwrap();
        let error = limit
            .broken(&summarise(&recording(2)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean `slow`?"), "{error}");
    }
}
