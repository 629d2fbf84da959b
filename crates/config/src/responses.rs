//! `responses_files` and `responses`: which alerts start which actions.

use std::path::PathBuf;

use outputs::ThrottleRate;
use yaml::key::Key;

use crate::model::Config;

/// `responses_files` and `responses`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseSettings {
    /// `responses_files`: response files, in the order in which they are merged.
    pub files: Vec<PathBuf>,
    /// An action of these files withholds calls from processes. Whoever reads the files sets it.
    pub may_deny: bool,
    /// An action of these files records events. Set likewise.
    pub may_capture: bool,
    /// `responses.dry_run`: report actions and do none.
    pub dry_run: bool,
    /// `responses.accept_partial`: refused actionners whose actions are left out.
    pub accept_partial: Vec<String>,
    /// `responses.rate` and `responses.max_burst`: rate limit of all rules together.
    pub total: ThrottleRate,
    /// `responses.rule_rate` and `responses.rule_max_burst`: rate limit of each rule.
    pub each: ThrottleRate,
}

impl Default for ResponseSettings {
    fn default() -> Self {
        let rate = |per_second, max_burst| ThrottleRate {
            per_second,
            max_burst,
        };
        Self {
            files: Vec::new(),
            may_deny: false,
            may_capture: false,
            dry_run: false,
            accept_partial: Vec::new(),
            total: rate(20.0, 100),
            each: rate(5.0, 25),
        }
    }
}

/// The keys.
#[rustfmt::skip]
pub(crate) const KEYS: &[Key<Config>] = &[
    Key::texts("responses.accept_partial", |config| &mut config.responses.accept_partial),
    Key::boolean("responses.dry_run", |config| &mut config.responses.dry_run),
    Key::other("responses.max_burst", "integer", |config, node| {
        node.small().map(|burst| config.responses.total.max_burst = burst)
    }),
    Key::number("responses.rate", |config| &mut config.responses.total.per_second),
    Key::other("responses.rule_max_burst", "integer", |config, node| {
        node.small().map(|burst| config.responses.each.max_burst = burst)
    }),
    Key::number("responses.rule_rate", |config| &mut config.responses.each.per_second),
    Key::other("responses_files", "array", |config, node| {
        let files = node.texts()?;
        config.responses.files = files.into_iter().map(PathBuf::from).collect();
        Ok(())
    }),
];
