//! The box of `tollgate guard`: runs a coding agent, build or package install in it, and reports every denial.
//!
//! [`options::BoxOptions`] and the machine make a `Layout`, which is written as a policy; `agent` runs the command
//! under it.

mod caches;
mod explain;
mod layout;
mod learn;
mod loaders;
pub mod options;
mod places;
mod tools;

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::path::Path;

use agent::confine::{self, Optional, PolicyStrictness};
use agent::guard::{GuardSpec, POLICY_NAME};
use agent::in_place;
use agent::options::{Detection, Interception};
use agent::policy_files;
use agent::spec::{AgentSpec, StartMode};
use config::OnAgentDeath;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::Target;
use event::EngineKind;
use policy::Policy;
use policy::compile::{Grade, NarrowedPolicy};

pub use self::explain::explain;
use self::layout::Layout;
pub use self::learn::learn;
use self::options::Guard;

/// Has the C library ask name servers over TCP: datagrams are refused.
const RESOLVER: &str = "RES_OPTIONS=use-vc";

/// Runs a command in a box.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The box cannot be composed here, some layer cannot enforce it, or the command cannot be run.
pub fn execute(args: Guard) -> Outcome {
    if args.command.is_empty() {
        return Err(
            Failure::new(Exit::BadInput, "cannot guard: no command is given")
                .help("put it after `--`: tollgate guard -- CMD"),
        );
    }
    let program = args.command.first().map(Path::new);
    let mut layout = Layout::of(&args.options, program)?;
    let is_nested = probe::has_listener();
    let mut text = layout.policy(is_nested);
    let mut rules = enforced_rules(&text)?;
    if is_nested {
        return nested(&text, &strictness(rules), args.command);
    }
    let report = args.report_fd.map(take_report).transpose()?;
    // Nothing is left behind for a command that does not start.
    if caches::make(args.options.preset, program) {
        layout = Layout::of(&args.options, program)?;
        text = layout.policy(is_nested);
        rules = enforced_rules(&text)?;
    }
    let guard = GuardSpec {
        policy: text,
        report,
        options: layout.options(),
        wide: layout.wide.clone(),
        ask: args.ask,
        environment: layout.peers.is_some().then(|| RESOLVER.to_owned()),
    };
    agent::run(spec(guard, strictness(rules), args.command))
}

fn strictness(accept_partial: Vec<String>) -> PolicyStrictness {
    PolicyStrictness {
        audit: false,
        accept_partial,
    }
}

/// Moves the descriptor to another number, where the command does not have it.
fn take_report(number: i32) -> Result<i32, Failure> {
    let refused = |error: sys::SyscallError| {
        Failure::new(
            Exit::BadInput,
            format!("cannot use descriptor {number} of --report-fd: {error}"),
        )
        .help(format!("open it before, as in: {number}>denials.jsonl"))
    };
    let copy = sys::fd::duplicate_number(number).map_err(refused)?;
    if number > 2 {
        sys::fd::close_number(number);
    }
    Ok(copy.into_raw_fd())
}

/// Returns the rules of the policy, all of which some layer has to enforce: a rule that none does is an error.
fn enforced_rules(text: &str) -> Result<Vec<String>, Failure> {
    let policy = available(&read(text)?);
    for rule in &policy.rules {
        if policy.grade(rule) == Grade::None {
            let message = format!(
                "cannot guard a command: nothing here enforces `{}`",
                rule.id
            );
            return Err(Failure::new(Exit::Unsupported, message).help(
                "`tollgate doctor` shows which enforcers work here, and how to get the others",
            ));
        }
    }
    Ok(policy.rules.iter().map(|rule| rule.id.clone()).collect())
}

/// Returns the policy for the enforcers that work here.
///
/// Preconditions: the process has one thread.
fn available(policy: &Policy) -> NarrowedPolicy {
    let policy = Policy {
        enforcers: enforce::available(policy.enforcers).0,
        ..policy.clone()
    };
    policy_files::narrowed(&policy, &policy_files::machine())
}

fn read(text: &str) -> Result<Policy, Failure> {
    let mut file = policy_files::parse(POLICY_NAME, text);
    match (
        file.policies.pop(),
        file.diagnostics.iter().any(policy::Diagnostic::is_error),
    ) {
        (Some(policy), false) => Ok(policy),
        _ => Err(Failure::new(
            Exit::BadInput,
            format!("cannot guard a command: {}", file.render().trim_end()),
        )
        .help("an option above names something that no policy can say")),
    }
}

fn spec(guard: GuardSpec, how: PolicyStrictness, command: Vec<OsString>) -> AgentSpec {
    AgentSpec {
        detection: Detection {
            quiet: true,
            without_rules: true,
            stats_interval: 5000,
            ..Detection::default()
        },
        confine: Optional {
            policy: None,
            how,
            guard: Some(guard),
        },
        interception: Interception {
            engine: Some(EngineKind::Notify),
            ..Interception::default()
        },
        // What the policy refuses stays refused, and nothing else is.
        on_agent_death: OnAgentDeath::Continue,
        agent_timeout: 1000,
        mode: StartMode::Command,
        takes_over: None,
        command,
    }
}

/// Runs a command in a box inside another: one listener watches a process, and it is the outer one's. So files,
/// programs and calls are denied by both boxes, and the outer one alone decides on peers and reports.
fn nested(text: &str, how: &PolicyStrictness, command: Vec<OsString>) -> Outcome {
    terminal::complain(
        "tollgate guard: inside another monitor: this box denies files, programs and calls without a report; \
         connections are those that the outer one allows, and none if this box allows no host\n",
    );
    let file = policy_files::parse(POLICY_NAME, text);
    let prepared = confine::prepare_file(file, how, Target::Here)?;
    in_place::become_command(&command, &prepared.confinement)
}
