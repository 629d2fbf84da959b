//! What actions need, and why an agent may not have it.

use std::sync::Arc;

use outputs::HttpError;

use crate::act::capture::EventCapture;
use crate::act::quarantine::Quarantiner;
use crate::load::Action;
use crate::parameters::Operation;
use crate::responder::Settings;

/// What actions are done with that not every agent has.
#[derive(Clone)]
pub struct Means {
    /// Records events; or why nothing does.
    pub capture: Result<Arc<dyn EventCapture>, &'static str>,
    /// Cuts control groups off from the network; or why nothing does.
    pub quarantine: Result<Arc<dyn Quarantiner>, String>,
}

impl std::fmt::Debug for Means {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Means")
            .field("capture", &self.capture.as_ref().err())
            .field("quarantine", &self.quarantine.as_ref().err())
            .finish()
    }
}

/// Responses cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A web server cannot be used.
    #[error("cannot use the action `{action}` of the response rule `{rule}`")]
    Webhook {
        /// Name of the action.
        action: String,
        /// Name of the rule.
        rule: String,
        /// The cause.
        source: HttpError,
    },
    /// It cannot be done here.
    #[error("cannot use `{actionner}` of the response rule `{rule}`: not supported here: {why}")]
    Unsupported {
        /// The actionner.
        actionner: &'static str,
        /// Name of the rule.
        rule: String,
        /// The cause.
        why: String,
    },
    /// A capture cannot be written there.
    #[error("cannot use `host:capture` of the response rule `{rule}`: {folder} is no folder")]
    NoFolder {
        /// Name of the rule.
        rule: String,
        /// The folder.
        folder: String,
    },
    /// The pids of the engine mean other processes here.
    #[error(
        "cannot use `{actionner}` of the response rule `{rule}`: the engine reports pids of another kernel"
    )]
    ForeignPids {
        /// The actionner.
        actionner: &'static str,
        /// Name of the rule.
        rule: String,
    },
}

/// Checks that an action can be done here.
pub(crate) fn check(
    rule: &str,
    action: &Action,
    settings: &Settings,
    means: &Means,
) -> Result<(), PrepareError> {
    let actionner = action.act.actionner();
    let lack = match &action.act {
        Operation::Deny { .. } => settings.cannot_deny.map(str::to_owned),
        Operation::Quarantine { .. } => means.quarantine.as_ref().err().cloned(),
        Operation::Capture(_) => means.capture.as_ref().err().map(|why| (*why).to_owned()),
        _ => None,
    };
    if let Some(why) = lack {
        return Err(PrepareError::Unsupported {
            actionner: actionner.name(),
            rule: rule.to_owned(),
            why,
        });
    }
    match &action.act {
        Operation::Capture(options) if !options.folder.is_dir() => Err(PrepareError::NoFolder {
            rule: rule.to_owned(),
            folder: options.folder.display().to_string(),
        }),
        _ => Ok(()),
    }
}
