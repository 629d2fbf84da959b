//! The collector confines itself: its options become a policy, which the enforcers of this machine put in force before the
//! store is open and before any other thread runs.

mod calls;
mod needs;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use abi::capability;
use agent::{in_place, policy_files};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{Confinement, Line};
use policy::{EnforcerKind, Policy};
use probe::Support;
use serve::Address;

use self::calls::{HARDENING, KEPT, push_calls};
use self::needs::Needs;
use super::args::Serve;

/// Name of the policy in messages.
const POLICY_NAME: &str = "policy of tollgate serve";

const DOCTOR: &str =
    "`tollgate doctor` shows which enforcers work here; --no-confine starts without them";

/// Confines this process as its options allow, and returns what to say about it.
///
/// # Errors
///
/// A path cannot be named in a policy, or an enforcer that works here refuses its part.
pub(super) fn confine(args: &Serve, listen: &Address) -> Result<String, Failure> {
    if args.no_confine {
        return Ok(
            "tollgate: warning: the collector is not confined (--no-confine): whoever takes it has all rights of its user\n"
                .to_owned(),
        );
    }
    has_one_thread()?;
    let needs = Needs::of(args, listen)?;
    let policy = parse(&policy_of(&needs, held()?))?;
    let (works, missing) = enforce::available(policy.enforcers);
    let is_by_landlock = works.contains(EnforcerKind::Landlock);
    let policy = Policy {
        enforcers: works,
        ..policy
    };
    let policy = policy_files::narrowed(&policy, &policy_files::machine());
    let confinement = Confinement::prepare(&policy).map_err(|error| unconfined(&error))?;
    let report = confinement.report.clone();
    // Nothing is probed afterwards: the probes make processes.
    let missing: String = missing.iter().map(said_missing).collect();
    in_place::restrict(&confinement).map_err(|failure| failure.help(DOCTOR))?;
    let lacks = match is_by_landlock {
        true => enforce::restrict_server(needs.listens).map_err(|error| unconfined(&error))?,
        false => Vec::new(),
    };
    let alone: String = needs.alone.iter().map(|file| said_alone(file)).collect();
    let wide: String = needs.wide.iter().map(|folder| said_wide(folder)).collect();
    Ok([describe(&needs, &report, lacks), missing, alone, wide].concat())
}

/// Refuses to go on if there are threads that the policy would not reach.
fn has_one_thread() -> Result<(), Failure> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    match threads {
        Ok(1) => Ok(()),
        Err(error) => {
            let message =
                format!("cannot confine the collector: cannot read /proc/self/task: {error}");
            Err(Failure::new(Exit::Unsupported, message)
                .help("mount /proc, or start with --no-confine"))
        }
        Ok(number) => {
            let message = format!("cannot confine the collector: {number} threads run already");
            Err(Failure::new(Exit::Internal, message).help("report this as a defect"))
        }
    }
}

/// Returns true if this process has capabilities to lose.
fn held() -> Result<bool, Failure> {
    let sets = sys::credential::capabilities(0);
    let sets = sets.map_err(|error| unconfined(&error))?;
    Ok(sets.permitted.0 != 0)
}

fn unconfined(error: &dyn std::error::Error) -> Failure {
    let cause = Failure::from_error(Exit::Unsupported, error);
    let message = format!("cannot confine the collector: {}", cause.message());
    Failure::new(Exit::Unsupported, message).help(DOCTOR)
}

/// Compiles the text, all of whose rules may be enforced in part: what is not is reported by enforcer.
fn parse(text: &str) -> Result<Policy, Failure> {
    let mut file = policy_files::parse(POLICY_NAME, text);
    let is_wrong = file.diagnostics.iter().any(policy::Diagnostic::is_error);
    match file.policies.pop().filter(|_| !is_wrong) {
        Some(policy) => Ok(policy),
        None => {
            let message = format!("cannot confine the collector: {}", file.render().trim_end());
            Err(Failure::new(Exit::Internal, message)
                .help("report this as a defect; --no-confine starts without it"))
        }
    }
}

/// Writes the policy.
fn policy_of(needs: &Needs, has_capabilities: bool) -> String {
    let caps = if has_capabilities { "Caps" } else { "" };
    let mut text = format!(
        "# Made by `tollgate serve`.\npolicy:\n  enforcer: SeccompLandlock{caps}\n  mode: EnhanceProtect\n  \
         enhanceProtect:\n    privileged: true\n    hardeningRules:\n"
    );
    // Writing to a String cannot fail.
    for rule in HARDENING {
        let _ = writeln!(text, "    - {rule}");
    }
    if has_capabilities {
        let names = (0..=capability::LAST).filter_map(capability::name);
        let names = names.map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase());
        for name in names.filter(|name| !KEPT.contains(&name.as_str())) {
            let _ = writeln!(text, "    - disable-cap-{}", name.replace('_', "-"));
        }
    }
    let _ = writeln!(text, "    landlockRawRules:\n      only:");
    for (pattern, writes) in &needs.files {
        let words = if *writes { "read, write" } else { "read" };
        let pattern = pattern.replace('\'', "''");
        let _ = writeln!(
            text,
            "      - {{pattern: '{pattern}', permissions: [{words}]}}"
        );
    }
    push_network(&mut text, needs);
    push_calls(&mut text, needs);
    text
}

fn push_network(text: &mut String, needs: &Needs) {
    let _ = writeln!(text, "    bpfRawRules:\n      network:\n        sockets:");
    let _ = writeln!(text, "        - {{protocols: [icmp]}}");
    if !needs.has_names {
        let _ = writeln!(text, "        - {{protocols: [udp]}}");
    }
    let ranges = others(&needs.connects);
    let ranges = ranges
        .iter()
        .map(|(first, last)| format!("{{port: {first}, endPort: {last}}}"));
    let ranges = ranges.collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "        egress:\n          toDestinations:\n          - {{qualifiers: [deny], ports: [{ranges}]}}"
    );
}

/// The ports besides these, as ranges.
fn others(ports: &BTreeSet<u16>) -> Vec<(u16, u16)> {
    let mut ranges = Vec::new();
    let mut next = Some(0);
    for port in ports {
        if let Some(first) = next.filter(|first| first < port) {
            ranges.push((first, port - 1));
        }
        next = port.checked_add(1);
    }
    ranges.extend(next.map(|first| (first, u16::MAX)));
    ranges
}

/// Says in one line what confines the collector, and in another what this kernel lacks for that.
fn describe(needs: &Needs, report: &[Line], lacks: Vec<String>) -> String {
    let mut said = String::new();
    let mut lacking = lacks;
    let mut works = Vec::new();
    for line in report {
        // A split has one part at least, and be it empty.
        let mut parts = line.detail.split("; ");
        works.push(format!(
            "{} ({})",
            line.enforcer,
            parts.next().unwrap_or_default()
        ));
        // That rules are enforced only partially is in the documents; what this kernel lacks is not.
        lacking.extend(
            parts
                .filter(|part| part.starts_with("version"))
                .map(str::to_owned),
        );
    }
    if !works.is_empty() {
        let _ = writeln!(
            said,
            "tollgate: confined by {}: {}",
            works.join(", "),
            granted(needs)
        );
    }
    if !lacking.is_empty() {
        let lacking = lacking.join("; ");
        let _ = writeln!(
            said,
            "tollgate: warning: the collector is confined only partially: Landlock {lacking}\n  \
             help: start it with a newer kernel"
        );
    }
    said
}

/// What the collector may do, in short.
fn granted(needs: &Needs) -> String {
    let folders: Vec<&str> = needs
        .files
        .iter()
        .filter(|(pattern, writes)| **writes && pattern.ends_with("/**"))
        .map(|(pattern, _)| pattern.trim_end_matches("/**"))
        .collect();
    let writes = match folders.is_empty() {
        true => "writes no file".to_owned(),
        false => format!("writes below {}", folders.join(" and ")),
    };
    let ports: Vec<String> = needs.connects.iter().map(u16::to_string).collect();
    let connects = match ports.is_empty() {
        true => "no port".to_owned(),
        false => format!("TCP ports {}", ports.join(", ")),
    };
    format!("it {writes}, connects to {connects}, and starts no program")
}

fn said_missing(line: &Line) -> String {
    let mut said = format!(
        "tollgate: warning: the collector is not confined by {}, so {}: {}\n",
        line.enforcer,
        consequence(line.enforcer),
        line.detail
    );
    if let Support::No { fix: Some(fix), .. } = enforce::probe::probe(line.enforcer) {
        let _ = writeln!(said, "  help: {fix}");
    }
    said
}

/// What whoever takes the collector can do without an enforcer.
fn consequence(enforcer: EnforcerKind) -> &'static str {
    match enforcer {
        EnforcerKind::Landlock => "nothing denies it files and ports that it does not need",
        EnforcerKind::Seccomp => "nothing denies it calls that it does not need",
        EnforcerKind::Caps => "it keeps all its capabilities",
        EnforcerKind::AppArmor | EnforcerKind::Bpf => "a part of its policy does not hold",
    }
}

fn said_alone(file: &Path) -> String {
    let (file, folder) = (
        file.display(),
        file.parent().unwrap_or(Path::new("/")).display(),
    );
    format!(
        "tollgate: warning: a new {file} is not read before a restart: {folder} has files of others\n  \
         help: put it into a folder of its own, where it may be replaced at any time\n"
    )
}

fn said_wide(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "tollgate: warning: whoever takes the collector may write the files of others in {folder}: the store or the socket is there\n  \
         help: put it into a folder of its own\n"
    )
}

#[cfg(test)]
mod tests;
