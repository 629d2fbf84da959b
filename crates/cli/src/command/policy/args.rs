//! The command line of `tollgate policy`.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use policy::EnforcerKind;

/// `tollgate policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Write a starting policy with comments
    Init(Init),
    /// List the built-in rules and which enforcers support them
    List(List),
    /// Check policy files for errors
    Check(Check),
    /// Show what each rule compiles to, and what it leaves open
    Explain(Explain),
    /// Convert policies of KubeArmor and of the Security Profiles Operator, and models of vArmor
    Convert(Convert),
    /// Show which built-in rules a recorded workload does not break
    Advise(Advise),
    /// List the policies that BPF and AppArmor enforce now
    Loaded(Loaded),
    /// Replace a policy for the processes that it confines
    Replace(Replace),
}

/// `tollgate policy init`.
#[derive(Args, Debug)]
#[command(
    after_help = "The policy starts without a warning on this machine: rules that are enforced only partially \
                  are listed in its key acceptPartial. Begin with `tollgate enforce --audit`, which denies \
                  nothing."
)]
pub(crate) struct Init {
    /// File to write; - is stdout
    #[arg(value_name = "FILE", default_value = "policy.yaml")]
    pub(crate) file: PathBuf,
    /// What the policy is for: command (no mounts, namespaces, password file), service (no shell, no changes in
    /// /etc), build (no ssh keys, no setuid files), untrusted (no network)
    #[arg(long, value_enum, default_value_t = Kind::Command)]
    pub(crate) kind: Kind,
    /// Enforcers that the policy is written for, such as SeccompLandlockCapsBPF
    #[arg(long, value_name = "ENFORCERS", default_value = agent::learn::ENFORCERS,
          value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: policy::Enforcers,
    /// Replace FILE if it exists
    #[arg(long)]
    pub(crate) force: bool,
}

/// What a starting policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    // Without doc comments: clap would print them in `--help` and not in `help policy init`.
    Command,
    Service,
    Build,
    Untrusted,
}

/// `tollgate policy loaded`.
#[derive(Args, Debug)]
pub(crate) struct Loaded {
    /// Remove policies that confine no process before listing
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy replace`.
#[derive(Args, Debug)]
#[command(
    after_help = "BPF and AppArmor each replace the policy atomically, for all processes that a policy of \
                  this name confines. Seccomp, Landlock and Caps keep the old policy: the kernel lets a \
                  process only tighten them for itself."
)]
pub(crate) struct Replace {
    /// Policy file; its policy has the name of the one to replace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) accept: Accept,
}

/// `tollgate policy list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Show only these rules, in full [default: all, one a line]
    #[arg(value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print a Markdown table
    #[arg(long, conflicts_with = "rules")]
    pub(crate) markdown: bool,
}

/// `tollgate policy check`.
#[derive(Args, Debug)]
#[command(
    after_help = "The exit status is 2 if a file has an error, and 3 if it has none but no enforcer that it \
                  chooses supports one of its rules."
)]
pub(crate) struct Check {
    /// Policy files to check
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Show the gaps of rules that are enforced only partially [default: one line a rule]
    #[arg(long)]
    pub(crate) long: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Policy file to explain
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Show only this enforcer, even if the policy does not choose it, with its profile [default: those of
    /// the policy]
    #[arg(
        long,
        value_parser = enforcer_parser(),
        hide_possible_values = true,
        value_name = ENFORCERS.as_str()
    )]
    pub(crate) enforcer: Option<EnforcerKind>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Show what each rule compiles to and its gaps; --enforcer implies it [default: one line a rule]
    #[arg(long)]
    pub(crate) long: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate policy convert`.
#[derive(Args, Debug)]
#[command(
    after_help = "Reads KubeArmorPolicy, SeccompProfile, AppArmorProfile and ArmorProfileModel, prints VarmorPolicies, and \
                  on stderr how each rule is converted and enforced. Without workloads, it prints only the part \
                  `policy`. If a rule cannot be converted, nothing is printed and the exit status is 3."
)]
pub(crate) struct Convert {
    /// File to convert
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Enforcers of the policy, such as BPFSeccomp [default: all that its rules can use]
    #[arg(long, value_name = "ENFORCERS", value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: Option<policy::Enforcers>,
    /// Workload that the policy is for
    #[arg(long, value_name = "KIND/NAME", value_parser = workload)]
    pub(crate) target: Option<(String, String)>,
    /// Labels of the pods that the policy is for; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, conflicts_with = "target")]
    pub(crate) selector: Vec<(String, String)>,
    /// Read a file that `tollgate learn --model` wrote, and print it as vArmor's ArmorProfileModel of this policy
    #[arg(long, value_name = "NAMESPACE/POLICY", value_parser = policy_name,
          conflicts_with_all = ["enforcer", "target", "selector"])]
    pub(crate) to_model: Option<(String, String)>,
    /// Merge this model, which was recorded of another replica or on another machine; repeatable
    #[arg(long, value_name = "MODEL", requires = "to_model")]
    pub(crate) merge: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) accept: LeaveOut,
    /// Print JSON: the policies and how each rule is converted
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rules that need not be converted.
#[derive(Args, Debug)]
pub(crate) struct LeaveOut {
    /// Rules to leave out, by their path in the document.
    #[arg(
        long = "accept-partial",
        value_name = "RULE",
        help = "Leave RULE out, which cannot be converted, such as spec.file.matchPaths[0]; repeatable"
    )]
    pub(crate) rules: Vec<String>,
}

/// Kinds of workloads that policies are for.
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Pod"];

fn workload(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(_, name)| !name.is_empty());
    match parts {
        Some((kind, name)) if WORKLOADS.contains(&kind) => Ok((kind.to_owned(), name.to_owned())),
        _ => Err(format!(
            "expected KIND/NAME with one of {} as KIND",
            WORKLOADS.join(", ")
        )),
    }
}

fn policy_name(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/POLICY".to_owned()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `tollgate policy advise`.
#[derive(Args, Debug)]
pub(crate) struct Advise {
    /// File written by `tollgate learn --model`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Enforcers to use, such as AppArmorBPFSeccomp; Auto is all
    #[arg(long, value_name = "ENFORCERS", default_value = agent::learn::ENFORCERS,
          value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: policy::Enforcers,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rules that need not be enforced fully.
#[derive(Args, Debug)]
pub(crate) struct Accept {
    /// Accept that RULE is enforced only partially, or not at all, on this machine; repeatable
    #[arg(long = "accept-partial", value_name = "RULE")]
    pub(crate) rules: Vec<String>,
}

/// The ids of enforcers, formatted as a choice in a help text.
static ENFORCERS: LazyLock<String> =
    LazyLock::new(|| EnforcerKind::ALL.map(EnforcerKind::id).join("|"));

/// Returns a parser for the id of an enforcer.
fn enforcer_parser() -> impl TypedValueParser<Value = EnforcerKind> {
    let values = EnforcerKind::ALL.map(|kind| PossibleValue::new(kind.id()).help(kind.about()));
    PossibleValuesParser::new(values)
        .map(|id| EnforcerKind::from_id(&id).expect("only ids are possible values"))
}
