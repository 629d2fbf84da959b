//! Creates the channels of the configured outputs.

use std::time::Duration;

use config::Config;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::{Channel, Common};

use crate::journal;

/// Opens everything that can be opened before the first alert, so that a mistake is an error at the
/// start.
pub(super) fn open(config: &Config) -> Result<Vec<Box<dyn Channel>>, Failure> {
    let common = Common {
        json: config.json_output,
        timeout: timeout(config),
        prints_to: config.outputs.stdout.others,
    };
    for warning in config.outputs.exposures() {
        journal::warn(&warning);
    }
    config
        .outputs
        .open(&common)
        .map_err(|error| Failure::from_error(Exit::BadInput, &*error.source).help(error.help))
}

/// Returns the time limit of a channel for one alert.
pub(super) fn timeout(config: &Config) -> Duration {
    Duration::from_millis(config.output_timeout_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(config: &Config) -> String {
        match open(config) {
            Ok(_) => panic!("opened {config:?}"),
            Err(failure) => failure.render(),
        }
    }

    #[test]
    fn a_url_of_another_kind_is_an_error_with_a_next_step() {
        let mut config = Config::default();
        config.outputs.http.enabled = true;
        config.outputs.http.url = "localhost".to_owned();
        let text = message(&config);
        assert!(text.contains("it has to start with http://"), "{text}");
        assert!(text.contains("help: "), "{text}");
    }
}
