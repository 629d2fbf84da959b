//! The response files of the verbs that watch.

use std::path::PathBuf;

use clap::Args;
use config::path_value;

use super::RESPONSES;

/// The response files of a verb that watches.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Responses {
    /// Start the actions that FILE names for alerts, in the format of Falco Talon; repeatable
    #[arg(long, value_name = "FILE", help_heading = RESPONSES)]
    pub(crate) responses: Vec<PathBuf>,
    /// Report what responses would do, and do nothing
    #[arg(long, help_heading = RESPONSES)]
    pub(crate) responses_dry_run: bool,
}

impl Responses {
    /// Returns an option that was given and means nothing without responses.
    pub(crate) fn idle(&self) -> Option<&'static str> {
        self.responses_dry_run.then_some("--responses-dry-run")
    }

    /// Returns configuration keys, as `-o` sets them. The files replace those of the configuration.
    pub(crate) fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        for (position, file) in self.responses.iter().enumerate() {
            // An agent that takes over runs in another working directory.
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let key = match position {
                0 => "responses_files".to_owned(),
                _ => format!("responses_files[{position}]"),
            };
            options.push(format!("{key}={}", path_value(&file)));
        }
        if self.responses_dry_run {
            options.push("responses.dry_run=true".to_owned());
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_replace_those_of_the_configuration() {
        let args = Responses {
            responses: vec!["/a b.yaml".into(), "/c.yaml".into()],
            responses_dry_run: true,
        };
        let expected = [
            "responses_files=/a b.yaml",
            "responses_files[1]=/c.yaml",
            "responses.dry_run=true",
        ];
        assert_eq!(args.options(), expected);
        assert!(Responses::default().options().is_empty());
    }
}
