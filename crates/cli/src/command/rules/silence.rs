//! The command line of `tollgate rules silence`.

use std::path::PathBuf;

use clap::Args;
use diagnostics::failure::Failure;
#[cfg(feature = "bench")]
use generator::test::RulePlayed;
use rule_tools::RuleFiles;
use rule_tools::silence::{OwnAction, SilenceOptions};
use rules::Level;

const CHOICE: &str = "Choice options";
const RULES: &str = "Rule options";
const OUTPUT: &str = "Output options";

/// `tollgate rules silence`.
#[derive(Args, Debug)]
#[command(after_help = "\
Proposes exceptions to the rule of an alert, narrowest first. On a terminal it asks which one to write. The \
file is an append to the rule in Falco's format, with a test in the folder `tests` beside it. Existing files \
are never changed: delete both files to undo it.

An exception is written only if it silences the alert, and the rule still detects the same done by another \
program, and its own action, which the event generator performs (`tollgate generate list`). --force drops the \
last two conditions.")]
pub(crate) struct Silence {
    /// Alert in JSON, as --json or Falco writes it; - is standard input
    #[arg(value_name = "ALERT", default_value = "-")]
    pub(crate) alert: PathBuf,
    /// Take alert N of several in ALERT
    #[arg(long, value_name = "N", help_heading = CHOICE, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) number: Option<u64>,
    /// Write candidate N [default: ask on a terminal, else 1, the narrowest]
    #[arg(long, value_name = "N", help_heading = CHOICE, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) choose: Option<u64>,
    /// Count what each candidate would also silence in FILE, a capture (scap) or alerts in JSON; repeatable
    #[arg(long, value_name = "FILE", help_heading = CHOICE)]
    pub(crate) against: Vec<PathBuf>,
    /// Write the candidate even if it silences the rule altogether
    #[arg(long, help_heading = CHOICE)]
    pub(crate) force: bool,
    /// Load rules from this file or folder instead; repeatable [default: the built-in rules and
    /// /etc/tollgate/rules.d]
    #[arg(short = 'r', long = "rules", value_name = "RULES", help_heading = RULES)]
    pub(crate) rules: Vec<PathBuf>,
    /// Also load rules from this file or folder, which can change the other rules; repeatable
    #[arg(long, value_name = "RULES", help_heading = RULES)]
    pub(crate) add_rules: Vec<PathBuf>,
    /// Write to FILE, which must not exist [default: a new file in /etc/tollgate/rules.d]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// List the candidates, and write nothing
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

impl From<Silence> for SilenceOptions {
    fn from(args: Silence) -> Self {
        Self {
            alert: args.alert,
            number: args.number,
            choose: args.choose,
            against: args.against,
            force: args.force,
            rules: RuleFiles {
                named: args.rules,
                added: args.add_rules,
                // An alert of any level can be silenced.
                level: Some(Level::Forensic),
                ..RuleFiles::default()
            },
            output: args.output,
            dry_run: args.dry_run,
            json: args.json,
            play,
        }
    }
}

/// Plays the action of a rule by the event generator.
#[cfg(feature = "bench")]
fn play(rule: &str, texts: &[&str]) -> Result<OwnAction, Failure> {
    Ok(match generator::test::play_for_rule(rule, texts)? {
        RulePlayed::NoAction => OwnAction::None,
        RulePlayed::Detected { action } => OwnAction::Detected {
            action: action.to_owned(),
        },
        RulePlayed::Missed { action } => OwnAction::Missed {
            action: action.to_owned(),
        },
        RulePlayed::NotPlayed { action, reason } => OwnAction::NotPlayed {
            action: action.to_owned(),
            reason,
        },
    })
}

/// Plays nothing: this build has no event generator.
#[cfg(not(feature = "bench"))]
#[expect(clippy::unnecessary_wraps, reason = "the generator can fail")]
fn play(_rule: &str, _texts: &[&str]) -> Result<OwnAction, Failure> {
    Ok(OwnAction::NoGenerator)
}
