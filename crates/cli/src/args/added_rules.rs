//! Rule files beside those that a verb names.

use std::path::PathBuf;

use clap::Args;

/// Rule files beside those that a verb names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AddedRules {
    /// Also load rules from this file or folder, which can change the other rules; repeatable
    #[arg(long, value_name = "RULES")]
    pub(crate) add_rules: Vec<PathBuf>,
}
