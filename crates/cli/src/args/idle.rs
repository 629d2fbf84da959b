//! Options that do nothing without another one, which may be in the environment or the configuration as well.

use std::fs;
use std::path::Path;

use agent::options::Detection;
use config::{Config, Request};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use super::{Collector, Responses};

/// Options that were given and mean nothing without a collector, or without responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Idle {
    collector: Option<&'static str>,
    responses: Option<&'static str>,
}

impl Idle {
    /// Looks at the options of a verb.
    pub(crate) fn of(collector: &Collector, responses: Option<&Responses>) -> Self {
        Self {
            collector: collector.idle(),
            responses: responses.and_then(Responses::idle),
        }
    }

    /// Refuses an option that has no effect with the settings of `detection`, which has those of the environment: who
    /// gives `--bundle-key` believes that bundles come.
    ///
    /// The configuration is read once more for this. A pipe, such as that of `-c <(generated)`, gives its text once, and
    /// belongs to the reader that decides what is watched: with one, such an option is not refused, and does nothing.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`], also if the configuration cannot be read.
    pub(crate) fn check(self, detection: &Detection) -> Result<(), Failure> {
        let is_stream = |file: &Path| fs::metadata(file).is_ok_and(|meta| !meta.is_file());
        if self == Self::default() || detection.config.as_deref().is_some_and(is_stream) {
            return Ok(());
        }
        let request = Request {
            layers: &detection.layers,
            file: detection.config.as_deref(),
            options: &detection.options,
            mode: detection.manner,
            ..Request::default()
        };
        self.check_with(&request.load()?.config)
    }

    fn check_with(self, config: &Config) -> Result<(), Failure> {
        let refused = |option: &str, missing: &str, help: &str| {
            let message = format!("cannot use {option}: there is no {missing}");
            Err(Failure::new(Exit::BadInput, message).help(help))
        };
        if let Some(option) = self.collector
            && !config.outputs.collector.enabled
        {
            let help = "name one by --collector URL, TOLLGATE_COLLECTOR, or collector_output of the configuration";
            return refused(option, "collector", help);
        }
        if let Some(option) = self.responses
            && config.responses.files.is_empty()
        {
            let help =
                "name a file by --responses FILE, or by responses_files of the configuration";
            return refused(option, "response file", help);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_refused_only_if_no_source_has_what_it_needs() {
        let collector = Collector {
            bundle_key: Some("web.pub".into()),
            ..Collector::default()
        };
        let responses = Responses {
            responses_dry_run: true,
            ..Responses::default()
        };
        let said = |idle: Idle, config: &Config| match idle.check_with(config) {
            Ok(()) => String::new(),
            Err(failure) => {
                assert_eq!(failure.exit, Exit::BadInput);
                failure.render()
            }
        };
        let mut config = Config::default();
        let of_both = Idle::of(&collector, Some(&responses));
        let text = said(of_both, &config);
        assert!(
            text.contains("cannot use --bundle-key: there is no collector"),
            "{text}"
        );
        assert!(text.contains("help: name one by --collector"), "{text}");
        config.outputs.collector.enabled = true;
        let text = said(of_both, &config);
        assert!(text.contains("cannot use --responses-dry-run"), "{text}");
        config.responses.files.push("r.yaml".into());
        assert_eq!(said(of_both, &config), "");
        let of_none = Idle::of(&Collector::default(), Some(&Responses::default()));
        assert_eq!(of_none, Idle::default());
        // Without such an option nothing is read: this one could not be.
        let with = |path: &str| Detection {
            config: Some(path.into()),
            ..Detection::default()
        };
        assert!(of_none.check(&with("/no/such/file")).is_ok());
        assert!(of_both.check(&with("/no/such/file")).is_err());
        // It can be read once only, as a pipe.
        assert!(of_both.check(&with("/dev/null")).is_ok());
    }
}
