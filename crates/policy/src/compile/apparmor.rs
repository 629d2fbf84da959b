//! Rule compiler for `AppArmor`: profiles.

use std::fmt::Write as _;

use abi::capability;
use serde_json::Value;

use super::compiler::{Request, RuleCompiler};
use super::part::possible_links;
use super::part::{Assessment, CompiledPart, lower_rule, supporters};
use super::{MachineFeatures, NameKind, denies_mounts};
use crate::enforcer::EnforcerKind;
use crate::operation::Operation;
use crate::pattern::Pattern;
use crate::policy::{Mode, Policy, Rule, RuleAction};
use crate::restriction::{
    FileAccess, MountMatch, Restriction, SocketMatch, socket_domain_name, socket_type_name,
};

/// The base of a profile: everything is allowed except what rules deny. Signals and traces need the consent
/// of both sides, so these lines do not reach out of the profile.
const BASE: [&str; 9] = [
    "capability,",
    "file,",
    "mount,",
    "network,",
    "pivot_root,",
    "ptrace,",
    "signal,",
    "umount,",
    "unix,",
];

/// The text of a policy's profile, as input for apparmor_parser.
#[must_use]
pub fn profile(policy: &Policy, machine: &MachineFeatures) -> String {
    let custom = policy
        .profiles
        .iter()
        .find(|profile| profile.enforcer == EnforcerKind::AppArmor);
    if let Some(text) = custom.and_then(|profile| profile.text.as_ref()) {
        return extend_custom(text, policy, machine);
    }
    let mut flags = vec!["attach_disconnected", "mediate_deleted"];
    if policy.mode == Mode::BehaviorModeling {
        flags.push("complain");
    }
    let mut text = format!(
        "profile {} flags=({}) {{\n",
        profile_name(policy),
        flags.join(",")
    );
    // Behaviour modelling records what the profile does not allow; without a model that is everything.
    let is_empty = matches!(policy.mode, Mode::BehaviorModeling | Mode::DefenseInDepth);
    if !is_empty {
        push_lines(&mut text, "  ", BASE.iter().map(|line| (*line).to_owned()));
    }
    let general: Vec<&Rule> = policy
        .rules
        .iter()
        .filter(|rule| rule.targets.is_empty())
        .collect();
    push_rules(&mut text, "  ", &general, machine);
    for (index, target) in targets(policy).into_iter().enumerate() {
        let _ = writeln!(text, "  {} cx -> target{index},", quote_literal(target));
        let _ = writeln!(
            text,
            "  profile target{index} flags=({}) {{",
            flags.join(",")
        );
        push_lines(
            &mut text,
            "    ",
            BASE.iter().map(|line| (*line).to_owned()),
        );
        let own = policy
            .rules
            .iter()
            .filter(|rule| rule.targets.iter().any(|t| t == target));
        let rules: Vec<&Rule> = general.iter().copied().chain(own).collect();
        push_rules(&mut text, "    ", &rules, machine);
        text.push_str("  }\n");
    }
    text.push_str("}\n");
    text
}

/// A custom profile, with the rules of the policy inserted before its last bracket.
fn extend_custom(text: &str, policy: &Policy, machine: &MachineFeatures) -> String {
    let (start, end) = text.rsplit_once('}').unwrap_or((text, ""));
    let mut extended = start.to_owned();
    let rules: Vec<&Rule> = policy.rules.iter().collect();
    push_rules(&mut extended, "  ", &rules, machine);
    format!("{extended}}}{end}")
}

/// The name under which a policy's profile is loaded.
#[must_use]
pub fn profile_name(policy: &Policy) -> String {
    let fit = |c: char| match c {
        'a'..='z' | '0'..='9' | '-' | '.' => c,
        'A'..='Z' => c.to_ascii_lowercase(),
        _ => '_',
    };
    format!(
        "tollgate-{}",
        policy.name.chars().map(fit).collect::<String>()
    )
}

/// Programs that have rules of their own, in the order of the policy.
fn targets(policy: &Policy) -> Vec<&str> {
    let mut targets: Vec<&str> = Vec::new();
    for target in policy.rules.iter().flat_map(|rule| &rule.targets) {
        if !targets.contains(&target.as_str()) {
            targets.push(target);
        }
    }
    targets
}

fn push_rules(text: &mut String, indent: &str, rules: &[&Rule], machine: &MachineFeatures) {
    for rule in rules {
        let lowered = lower(rule, machine);
        if !lowered.entries.is_empty() {
            let _ = writeln!(text, "{indent}# {}", rule.id);
            push_lines(text, indent, lowered.entries);
        }
    }
}

fn push_lines(text: &mut String, indent: &str, lines: impl IntoIterator<Item = String>) {
    for line in lines {
        for line in line.lines() {
            let _ = writeln!(text, "{indent}{line}");
        }
    }
}

/// Rule compiler for `AppArmor`.
pub(super) struct Compiler;

impl RuleCompiler for Compiler {
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment {
        lower(request.rule, request.machine).assess(names, String::clone)
    }

    fn covers(&self, _kind: NameKind) -> bool {
        false
    }

    fn possible_names(&self, request: &Request<'_>) -> Vec<String> {
        let Request {
            policy,
            rule,
            machine,
        } = *request;
        let by_path = |restriction: &Restriction| {
            matches!(
                restriction,
                Restriction::File { .. } | Restriction::Exec { .. } | Restriction::Disk { .. }
            )
        };
        let can_be_mounted =
            rule.restrictions.iter().any(by_path) && !denies_mounts(policy, machine);
        let mounts = can_be_mounted.then(|| {
            "a mount by the workload gives a file another path; add disallow-mount with Seccomp or Caps"
                .to_owned()
        });
        possible_links(rule).into_iter().chain(mounts).collect()
    }

    fn text(&self, policy: &Policy, machine: &MachineFeatures) -> String {
        profile(policy, machine)
    }

    /// The profile text, which is the native form.
    fn json(&self, policy: &Policy, machine: &MachineFeatures) -> Value {
        Value::String(profile(policy, machine))
    }
}

/// Lowers a rule.
#[must_use]
pub fn lower(rule: &Rule, machine: &MachineFeatures) -> CompiledPart<String> {
    lower_rule(rule, EnforcerKind::AppArmor, |restriction| {
        lower_one(rule, restriction, machine)
    })
}

/// The qualifier in front of a line. `allow` is omitted: [`BASE`] allows.
fn qualifier(verdict: RuleAction) -> &'static str {
    match verdict {
        RuleAction::Allow => "",
        RuleAction::Audit => "audit",
        RuleAction::Deny => "deny",
        RuleAction::DenyAudit => "audit deny",
    }
}

fn lower_one(
    rule: &Rule,
    restriction: &Restriction,
    machine: &MachineFeatures,
) -> CompiledPart<String> {
    let line = |text: String| format!("{} {text}", qualifier(rule.verdict));
    match restriction {
        Restriction::File { access, .. } if access.contents => {
            CompiledPart::missing("only Landlock denies reading without listing")
        }
        Restriction::File { path, access } => lower_file(rule, path, *access, &line),
        Restriction::Exec { path } => {
            // Mapping is denied too, because `ld.so PROGRAM` runs a program by mapping it.
            let permissions = if rule.verdict.denies() { "mx" } else { "mix" };
            CompiledPart::one(line(format!("{} {permissions},", quote(path))))
                .gap("a copy of the program under another name runs")
                .gap("a script whose first line names the program runs")
        }
        Restriction::Connect { path } => CompiledPart::one(line(format!("{} rw,", quote(path))))
            .gap("kernels whose AppArmor does not mediate sockets with a path"),
        Restriction::Disk { access } => {
            let each = machine.disks.iter();
            let lines = each.map(|name| line(format!("\"/dev/{name}\" {},", letters(*access))));
            disks(CompiledPart::many(lines))
        }
        Restriction::Socket(socket) => lower_socket(socket, &line),
        Restriction::Egress { .. } => CompiledPart::missing("AppArmor does not support addresses"),
        Restriction::Mount(mount) => lower_mount(mount, machine, &line)
            .gap("fsopen(2) and move_mount(2) are not mediated before Linux 6.7"),
        Restriction::Ptrace { access, .. } => {
            let line = line(format!("ptrace ({}),", access.names().join(", ")));
            CompiledPart::one(line)
                .breaks("tracing and reading processes inside the container, too")
        }
        Restriction::Capabilities(set) => {
            let numbers = (0..=capability::LAST).filter(|number| set.contains(*number));
            let names = numbers.filter_map(capability::name);
            let short = names.map(|name| name.trim_start_matches("CAP_").to_lowercase());
            CompiledPart::many(short.map(|name| line(format!("capability {name},"))))
        }
        Restriction::Operation(operation) => lower_operation(operation, &line),
        Restriction::Mode { .. } => {
            CompiledPart::missing("AppArmor does not mediate permission bits")
        }
        Restriction::Syscall(_) => {
            CompiledPart::missing("AppArmor supports operations, not system calls")
        }
        Restriction::InsideConnections => CompiledPart::missing(super::part::NEEDS_PROXY),
        Restriction::OnlyPeers(_) | Restriction::OnlyFiles(_) => {
            CompiledPart::missing(supporters(restriction))
        }
        Restriction::AppArmorText(text) if rule.verdict.denies() => CompiledPart::one(text.clone()),
        Restriction::AppArmorText(_) => CompiledPart::missing(
            "the raw rule says what is denied, and allowViolations cannot change it",
        ),
    }
}

/// Lowers a file rule. AppArmor matches by path, so the folders above must keep their names.
fn lower_file(
    rule: &Rule,
    path: &Pattern,
    access: FileAccess,
    line: &dyn Fn(String) -> String,
) -> CompiledPart<String> {
    let mut lines = vec![line(format!("{} {},", quote(path), letters(access)))];
    if rule.verdict.denies() {
        let prefix = path.fixed_prefix();
        let ends = prefix.match_indices('/').skip(1).map(|(at, _)| at + 1);
        let folders = ends.map(|end| quote_literal(&prefix[..end]));
        lines.extend(folders.map(|folder| line(format!("{folder} w,"))));
    }
    let lowered = CompiledPart::many(lines);
    match has_folder_behind_wildcard(path) {
        true => lowered.gap(super::part::FOLDER_RENAMED),
        false => lowered.breaks(super::part::ABOVE_BREAKS),
    }
}

/// Returns true if a pattern names a folder after a wildcard: `/**/.ssh/**`.
fn has_folder_behind_wildcard(path: &Pattern) -> bool {
    let parts = path.text().split('/');
    let mut behind = parts.skip_while(|part| !part.contains('*')).skip(1);
    let mut names = 0;
    let mut last_is_name = false;
    for part in behind.by_ref() {
        last_is_name = part.chars().any(|c| c != '*');
        names += usize::from(last_is_name);
    }
    // The last name is the file itself, whose renaming is denied.
    names > usize::from(last_is_name)
}

fn lower_operation(operation: &Operation, line: &dyn Fn(String) -> String) -> CompiledPart<String> {
    let missing = operation.none.get(&EnforcerKind::AppArmor);
    if let Some(reason) = missing {
        return CompiledPart::missing(reason.clone());
    }
    if operation.apparmor.is_empty() {
        return CompiledPart::missing("AppArmor does not mediate it");
    }
    let decides = |hook: &str| operation.apparmor.iter().any(|text| decides_at(text, hook));
    let coverage = operation.coverage(decides);
    let more = operation.weak(EnforcerKind::AppArmor);
    CompiledPart {
        gaps: coverage.gaps.into_iter().chain(more).collect(),
        ..CompiledPart::many(operation.apparmor.iter().map(|text| line(text.clone())))
    }
}

/// Returns true if AppArmor evaluates a rule at a hook.
fn decides_at(rule: &str, hook: &str) -> bool {
    let rule = rule.trim_end_matches(',');
    match hook {
        "sb_mount" | "move_mount" => rule == "mount",
        "sb_umount" => rule == "umount",
        "sb_pivotroot" => rule == "pivot_root",
        _ => match hook.split_once(':') {
            Some(("capable", name)) => rule == format!("capability {name}"),
            Some(("file_open", path)) => rule.split_once(' ').is_some_and(|(own, _)| own == path),
            _ => false,
        },
    }
}

fn disks(lowered: CompiledPart<String>) -> CompiledPart<String> {
    match lowered.entries.is_empty() {
        true => CompiledPart::missing("no disk found on this machine"),
        false => lowered.gap(
            "device files with other names; add disable-cap-mknod, which denies creating them",
        ),
    }
}

fn letters(access: FileAccess) -> &'static str {
    match (access.read, access.write, access.append) {
        (true, true, _) => "rwlk",
        (true, false, true) => "ra",
        (true, false, false) => "r",
        (false, true, _) => "wlk",
        (false, false, _) => "a",
    }
}

fn lower_socket(socket: &SocketMatch, line: &dyn Fn(String) -> String) -> CompiledPart<String> {
    let by_protocol = socket.protocols.as_ref();
    if by_protocol.is_some_and(|protocols| !protocols.contains(&0)) {
        return CompiledPart::missing("AppArmor does not see the protocol of a socket");
    }
    let types = socket.types.as_deref();
    let text = |domain: &str| match types {
        None => vec![format!("network{domain},")],
        Some(types) => {
            let names = types.iter().map(|number| socket_type_name(*number));
            names
                .map(|name| format!("network{domain} {name},"))
                .collect()
        }
    };
    let lines = match &socket.domains {
        None => text(""),
        Some(domains) => domains
            .iter()
            .flat_map(|number| text(&format!(" {}", socket_domain_name(*number))))
            .collect(),
    };
    let lowered = CompiledPart::many(lines.into_iter().map(line));
    match by_protocol {
        Some(_) => lowered.breaks("sockets of these types with other protocols"),
        None => lowered,
    }
}

fn lower_mount(
    mount: &MountMatch,
    machine: &MachineFeatures,
    line: &dyn Fn(String) -> String,
) -> CompiledPart<String> {
    match mount {
        MountMatch::FileSystem(name) => CompiledPart::one(line(format!("mount fstype={name},"))),
        MountMatch::From(path) => {
            let from = mount_source(path);
            CompiledPart::many([
                line(format!(
                    "mount options in (bind, rbind, move) {from} -> /**,"
                )),
                line(format!(
                    "mount options in (remount, bind, rbind) -> {from},"
                )),
                line(format!("umount {from},")),
            ])
        }
        MountMatch::Disk => {
            let each = machine.disks.iter();
            disks(CompiledPart::many(
                each.map(|name| line(format!("mount \"/dev/{name}\","))),
            ))
        }
        MountMatch::Raw { flags, .. } if flags.iter().any(|flag| flag == "nostrictatime") => {
            CompiledPart::missing("AppArmor has no name for the flag `nostrictatime`")
        }
        MountMatch::Raw {
            from,
            fstype,
            flags,
        } => {
            let fstype = fstype
                .as_ref()
                .map(|name| format!(" fstype={name}"))
                .unwrap_or_default();
            let options: Vec<&str> = flags
                .iter()
                .map(String::as_str)
                .filter(|f| *f != "umount")
                .collect();
            let options = match options.is_empty() {
                true => String::new(),
                false => format!(" options in ({})", options.join(", ")),
            };
            let from = mount_source(from);
            let mut lines = Vec::new();
            if flags.iter().any(|flag| flag == "umount") {
                lines.push(line(format!("umount {from},")));
            }
            if flags.is_empty() || !options.is_empty() {
                lines.push(line(format!("mount{fstype}{options} {from},")));
            }
            CompiledPart::many(lines)
        }
    }
}

/// The source of a mount rule. The folder itself is a source too, and AppArmor writes folders with a trailing
/// slash.
fn mount_source(path: &Pattern) -> String {
    match path.subtree() {
        Some("/") => "\"/**\"".to_owned(),
        Some(folder) => format!("\"{}{{,/,/**}}\"", escape(folder)),
        None => quote(path),
    }
}

fn quote_literal(path: &str) -> String {
    format!("\"{}\"", escape(path))
}

/// A pattern in AppArmor's notation, where `/**/` needs at least one folder.
fn quote(path: &Pattern) -> String {
    format!("\"{}\"", escape(path.text()).replace("/**/", "/{,**/}"))
}

/// Escapes characters that are special in AppArmor and literal in our patterns.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '[' | ']' | '{' | '}' | '?' | '^' | '@' | ',') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
