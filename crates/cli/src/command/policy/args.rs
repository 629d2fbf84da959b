//! The command line of `tollgate policy`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use policy::EnforcerKind;

/// `tollgate policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// List the built-in rules, and how well each enforcer carries them
    List(List),
    /// Check policy files
    Check(Check),
    /// Show what each rule of a policy compiles to, and how good that is
    Explain(Explain),
    /// Say which built-in rules a recorded workload can live with
    Advise(Advise),
    /// List what BPF and AppArmor confine by now
    Loaded(Loaded),
    /// Exchange a policy that is in force, for processes that run already
    Replace(Replace),
}

/// `tollgate policy loaded`.
#[derive(Args, Debug)]
pub(crate) struct Loaded {
    /// Remove first what confines nobody any more
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy replace`.
///
/// What BPF and AppArmor carry is exchanged at one moment each, for all processes that were confined by a
/// policy of this name. Seccomp, Landlock and Caps cannot be exchanged: a process can only tighten them
/// for itself.
#[derive(Args, Debug)]
pub(crate) struct Replace {
    /// The policy file; its name is that of the policy in force
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) accept: Accept,
}

/// `tollgate policy list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only these rules, in full
    #[arg(value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "rules")]
    pub(crate) markdown: bool,
}

/// `tollgate policy check`.
///
/// The exit status is 2 if a file is wrong, and 3 if it is right but no enforcer that it chooses can
/// carry one of its rules.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Policy files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// A policy file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only this enforcer, whether the policy chooses it or not
    #[arg(long, value_parser = enforcer_parser())]
    pub(crate) enforcer: Option<EnforcerKind>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy advise`.
#[derive(Args, Debug)]
pub(crate) struct Advise {
    /// What `tollgate learn --model` wrote
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// What is to carry the rules, such as AppArmorBPFSeccomp; Auto is all
    #[arg(long, value_name = "ENFORCERS", default_value = agent::learn::ENFORCERS,
          value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: policy::Enforcers,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the user does without.
#[derive(Args, Debug)]
pub(crate) struct Accept {
    /// Use the policy although no enforcer carries this rule at all, which is an error, or only in
    /// part, which is a warning; repeatable
    #[arg(long = "accept-partial", value_name = "RULE")]
    pub(crate) rules: Vec<String>,
}

/// Takes the id of an enforcer.
fn enforcer_parser() -> impl TypedValueParser<Value = EnforcerKind> {
    let values = EnforcerKind::ALL.map(|kind| PossibleValue::new(kind.id()).help(kind.about()));
    PossibleValuesParser::new(values)
        .map(|id| EnforcerKind::from_id(&id).expect("only ids are possible values"))
}
