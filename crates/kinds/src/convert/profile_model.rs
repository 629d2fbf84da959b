//! vArmor's ArmorProfileModel: what workloads did, as a policy that allows it.
//!
//! What an object does not tell is not taken for what no workload did: built-in rules about it are left out.

use std::collections::BTreeSet;

use policy::compile::{MachineFeatures, NarrowedPolicy};
use policy::model::Unrecorded;
use policy::{EnforcerKind, Enforcers, Model};
use serde_json::{Value, json};

use super::source::Source;
use super::{Carried, Options, Plan, made_profiles};

/// Where models can be.
const STORAGES: [&str; 3] = ["CRDInternal", "LocalDisk", "PV/PVC"];
/// The rule that allows the files of a model.
const FILES: &str = "landlockRawRules.only";
/// How rules about sockets, capabilities and calls begin.
const SOCKETS: &str = "bpfRawRules.network.sockets";
const CAPABILITIES: &str = "disable-cap-";
const CALLS: &str = "syscallRawRules";

/// An ArmorProfileModel as a policy.
pub(super) fn convert(source: &Source<'_>, options: &Options) -> Plan {
    let mut plan = Plan {
        target: options.target.clone(),
        ..Plan::default()
    };
    let known = [
        "apiVersion",
        "kind",
        "metadata",
        "storageType",
        "data",
        "status",
    ];
    plan.refuse_unknown(source, &known);
    if let Some(ready) = source.get("status").and_then(|status| status.get("ready"))
        && ready.text().as_deref() == Some("false")
    {
        let cause = "the recording is not complete: what it lacks would be denied";
        plan.refuse(&ready, cause);
    }
    let Some(data) = source.get("data") else {
        plan.refuse(source, "`data` is missing");
        return plan;
    };
    plan.refuse_unknown(&data, &["dynamicResult", "staticResult", "profile"]);
    if let Some(reserved) = data.get("staticResult") {
        plan.refuse_unknown(&reserved, &[]);
    }
    let profile = data.get("profile");
    if let Some(profile) = &profile {
        let known = ["name", "enforcer", "mode", "appArmor", "bpf", "seccomp"];
        plan.refuse_unknown(profile, &known);
    }
    let complains = complains(&mut plan, profile.as_ref());
    let recorded = data
        .get("dynamicResult")
        .filter(|one| !one.keys().is_empty());
    let is_empty = recorded.is_none()
        && !profile
            .as_ref()
            .is_some_and(|one| one.get("appArmor").is_some() || one.get("seccomp").is_some());
    check_storage(&mut plan, source, is_empty);
    match (recorded, profile) {
        (Some(recorded), profile) => {
            Recording::read(&mut plan, &recorded).finish(&mut plan, &recorded, options, complains);
            if let Some(profile) = &profile {
                made_profiles::grade(&mut plan, profile, &recorded);
            }
        }
        (None, Some(profile)) if !is_empty => {
            made_profiles::as_they_are(&mut plan, &profile, options, complains);
        }
        _ => plan.refuse(&data, "nothing was recorded"),
    }
    plan
}

/// Reads whether the profile reports and denies nothing.
fn complains(plan: &mut Plan, profile: Option<&Source<'_>>) -> bool {
    let Some(mode) = profile.and_then(|profile| profile.get("mode")) else {
        return false;
    };
    let Some(word) = plan.word(&mode) else {
        return false;
    };
    if !["", "enforce", "complain"].contains(&&*word) {
        plan.refuse(&mode, unknown("mode", &word, &["enforce", "complain"]));
    }
    word == "complain"
}

fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    match yaml::closest(word, known.iter().copied()) {
        Some(near) => format!("`{what}` cannot be `{word}`; did you mean `{near}`?"),
        None => format!(
            "`{what}` cannot be `{word}`: it can be {}",
            known.join(", ")
        ),
    }
}

/// Refuses a model whose data are elsewhere. vArmor's manager exports those of every model, and leaves `storageType` as it is.
fn check_storage(plan: &mut Plan, source: &Source<'_>, is_empty: bool) {
    let Some(storage) = source.get("storageType") else {
        return;
    };
    let Some(word) = plan.word(&storage) else {
        return;
    };
    if !STORAGES.contains(&&*word) {
        plan.refuse(&storage, unknown("storageType", &word, &STORAGES));
    } else if is_empty && word != "CRDInternal" {
        let cause = "the data are not in this document: export the model from vArmor's manager";
        plan.refuse(&storage, cause);
    }
}

/// What the parts of a recording become, by the name that rules begin with.
struct Row<'n> {
    source: Source<'n>,
    becomes: &'static str,
    carried: Carried,
}

/// A recording that is read.
#[derive(Default)]
struct Recording<'n> {
    model: Model,
    rows: Vec<Row<'n>>,
    has_calls: bool,
    has_files: bool,
    has_sockets: bool,
    /// A socket could not be read.
    lacks_sockets: bool,
    has_addresses: bool,
}

impl<'n> Recording<'n> {
    fn read(plan: &mut Plan, recorded: &Source<'n>) -> Self {
        plan.refuse_unknown(recorded, &["appArmor", "bpf", "seccomp"]);
        let mut this = Self::default();
        if let Some(seccomp) = recorded.get("seccomp") {
            plan.refuse_unknown(&seccomp, &["syscalls"]);
            this.read_calls(plan, &seccomp);
        }
        if let Some(part) = recorded.get("appArmor") {
            let known = [
                "profiles",
                "executions",
                "files",
                "capabilities",
                "networks",
                "ptraces",
                "signals",
                "unhandled",
            ];
            plan.refuse_unknown(&part, &known);
            this.read_common(plan, &part, "networks");
            this.read_apparmor(plan, &part);
        }
        if let Some(part) = recorded.get("bpf") {
            let known = [
                "executions",
                "files",
                "capabilities",
                "network",
                "ptraces",
                "mounts",
            ];
            plan.refuse_unknown(&part, &known);
            this.has_addresses = this.read_common(plan, &part, "network");
            this.read_mounts(plan, &part);
        }
        this
    }

    fn add(&mut self, source: Source<'n>, becomes: &'static str, carried: Carried) {
        self.rows.push(Row {
            source,
            becomes,
            carried,
        });
    }

    fn read_calls(&mut self, plan: &mut Plan, seccomp: &Source<'n>) {
        let calls = plan.list(seccomp, "syscalls");
        if calls.is_empty() {
            return plan.refuse(seccomp, "no system call was recorded: nobody watched them");
        }
        self.has_calls = true;
        let mut other = Vec::new();
        for call in calls {
            let Some(name) = plan.word(&call) else {
                continue;
            };
            if !self.model.note_call_name(&name) {
                other.push(name);
            }
        }
        let carried = match &other[..] {
            [] => "arguments were not recorded: each call is allowed with any".to_owned(),
            other => format!(
                "arguments were not recorded: each call is allowed with any; this program does not know {}, and leaves it to \
                 the kernel",
                other.join(", ")
            ),
        };
        if let Some(list) = seccomp.get("syscalls") {
            self.add(list, CALLS, Carried::Partly(carried));
        }
    }

    /// Reads what AppArmor and BPF record alike. Returns false if that is nothing.
    fn read_common(&mut self, plan: &mut Plan, part: &Source<'n>, network: &str) -> bool {
        if part.get("executions").is_none() && part.get("files").is_none() {
            plan.refuse(
                part,
                "no file and no program was recorded: nobody watched them",
            );
            return false;
        }
        self.has_files = true;
        self.has_sockets = true;
        for program in plan.list(part, "executions") {
            match program.text().filter(|path| path.starts_with('/')) {
                Some(path) => self.model.note_execution(&path),
                None => plan.refuse(&program, "it is no absolute path"),
            }
        }
        if let Some(list) = part.get("executions") {
            self.add(list, FILES, Carried::Whole);
        }
        self.read_files(plan, part);
        for capability in plan.list(part, "capabilities") {
            let Some(name) = plan.word(&capability) else {
                continue;
            };
            if !self.model.note_capability(&name) {
                plan.refuse(&capability, format!("the capability `{name}` is not known"));
            }
        }
        if let Some(list) = part.get("capabilities") {
            self.add(list, CAPABILITIES, Carried::Whole);
        }
        if let Some(network) = part.get(network) {
            plan.refuse_unknown(&network, &["sockets", "egresses"]);
            self.read_sockets(plan, &network);
            self.read_addresses(plan, &network);
        }
        if let Some(list) = part.get("ptraces") {
            self.model.note_unrecorded(Unrecorded::Processes);
            let different = "access to other processes is allowed as a whole";
            self.add(list, "", Carried::Partly(different.to_owned()));
        }
        true
    }

    fn read_files(&mut self, plan: &mut Plan, part: &Source<'n>) {
        let Some(list) = part.get("files") else {
            return;
        };
        let mut different = BTreeSet::new();
        for file in plan.list(part, "files") {
            plan.refuse_unknown(&file, &["path", "owner", "permissions", "oldPath"]);
            let path = file.word("path");
            if !path.starts_with('/') {
                plan.refuse(&file, "`path` is no absolute path");
                continue;
            }
            if plan.list(&file, "permissions").is_empty() {
                plan.refuse(
                    &file,
                    "`permissions` is empty: how the file was used is not known",
                );
                continue;
            }
            if path.contains(policy::model::WILDCARDS) {
                different.insert(
                    "built-in rules about what a path with wildcards may match are left out",
                );
            }
            if file.flag("owner") != Ok(false) {
                different.insert("files are allowed to every user, not to their owner alone");
            }
            for permission in plan.list(&file, "permissions") {
                let Some(word) = plan.word(&permission) else {
                    continue;
                };
                if !self.model.note_file_use(&path, &word) {
                    plan.refuse(&permission, format!("the permission `{word}` is not known"));
                }
            }
        }
        let carried = match different.is_empty() {
            true => Carried::Whole,
            false => Carried::Partly(Vec::from_iter(different).join("; ")),
        };
        self.add(list, FILES, carried);
    }

    fn read_sockets(&mut self, plan: &mut Plan, network: &Source<'n>) {
        for socket in plan.list(network, "sockets") {
            plan.refuse_unknown(&socket, &["domain", "type", "protocol"]);
            let (domain, kind, protocol) = (
                socket.word("domain"),
                socket.word("type"),
                socket.word("protocol"),
            );
            if let Err(word) = self.model.note_socket(&domain, &kind, &protocol) {
                self.lacks_sockets = true;
                plan.refuse(
                    &socket,
                    format!("no family or type of sockets is called `{word}`"),
                );
            }
        }
        if let Some(list) = network.get("sockets") {
            let different = "the protocol is not compared, only family and type";
            self.add(list, SOCKETS, Carried::Partly(different.to_owned()));
        }
    }

    fn read_addresses(&mut self, plan: &mut Plan, network: &Source<'n>) {
        for egress in plan.list(network, "egresses") {
            plan.refuse_unknown(&egress, &["ip", "ports"]);
            let Ok(address) = egress.word("ip").parse() else {
                plan.refuse(&egress, "`ip` is no address");
                continue;
            };
            if plan.list(&egress, "ports").is_empty() {
                plan.refuse(
                    &egress,
                    "`ports` is empty: what was connected to is not known",
                );
            }
            for port in plan.list(&egress, "ports") {
                match port.text().and_then(|text| text.parse().ok()) {
                    Some(number) => self.model.note_peer(address, number),
                    None => plan.refuse(&port, "it is no port"),
                }
            }
        }
        if let Some(list) = network.get("egresses") {
            let different =
                "other addresses are not denied; these decide which built-in rules there are";
            self.add(list, "", Carried::Partly(different.to_owned()));
        }
    }

    fn read_apparmor(&mut self, plan: &mut Plan, part: &Source<'n>) {
        if let Some(list) = part.get("profiles") {
            let different = "names of profiles are no behaviour";
            self.add(list, "", Carried::Partly(different.to_owned()));
        }
        for signal in plan.list(part, "signals") {
            plan.refuse_unknown(&signal, &["peer", "permissions", "signals"]);
        }
        if let Some(list) = part.get("signals") {
            let different = "the policy denies no signal";
            self.add(list, "", Carried::Partly(different.to_owned()));
        }
        for trace in plan.list(part, "ptraces") {
            plan.refuse_unknown(&trace, &["peer", "permissions", "external"]);
        }
        if let Some(list) = part
            .get("unhandled")
            .filter(|list| !list.elements().is_empty())
        {
            let cause =
                "vArmor has not understood these events, so the model lacks what they are about";
            plan.refuse(&list, cause);
        }
    }

    fn read_mounts(&mut self, plan: &mut Plan, part: &Source<'n>) {
        for trace in plan.list(part, "ptraces") {
            plan.refuse_unknown(&trace, &["peer", "permissions", "external"]);
        }
        for mount in plan.list(part, "mounts") {
            plan.refuse_unknown(&mount, &["path", "type", "flags"]);
        }
        if let Some(list) = part.get("mounts") {
            self.model.note_unrecorded(Unrecorded::Mounts);
            let different = "mounts are allowed as a whole";
            self.add(list, "", Carried::Partly(different.to_owned()));
        }
    }

    /// Makes the policy, and says what each part became.
    fn finish(
        mut self,
        plan: &mut Plan,
        recorded: &Source<'_>,
        options: &Options,
        complains: bool,
    ) {
        self.model.note_unrecorded(Unrecorded::LocalPeers);
        self.model.had_capabilities = !self.has_files;
        for (is_known, part) in [
            (self.has_files, Unrecorded::Files),
            (self.has_addresses, Unrecorded::Addresses),
            (self.has_sockets && !self.lacks_sockets, Unrecorded::Sockets),
            (self.has_calls, Unrecorded::Calls),
        ] {
            if !is_known {
                self.model.note_unrecorded(part);
            }
        }
        let Some(enforcers) = self.enforcers(plan, recorded, options) else {
            return;
        };
        let machine = MachineFeatures::default();
        let policy = |accepted| self.model.policy("model", enforcers, &machine, accepted);
        let none = BTreeSet::new();
        let (drafts, _) = policy::load("model", &policy(&none));
        // As `tollgate learn` does: what a workload did is no more than partly what enforcers can tell apart.
        let accepted = drafts.iter();
        let accepted =
            accepted.flat_map(|draft| NarrowedPolicy::new(draft, &machine).partial_rules());
        let text = policy(&accepted.collect());
        let (documents, _) = yaml::read(&"model".into(), &text);
        let part = documents.first().and_then(|document| {
            let root = Source::root(document);
            root.get("spec")?.get("policy")
        });
        if let Some(Value::Object(mut part)) = part.map(|part| part.json()) {
            if complains {
                part["enhanceProtect"]["allowViolations"] = json!(true);
            }
            plan.policy = part;
        }
        let rules: Vec<&str> = drafts
            .iter()
            .flat_map(|draft| draft.rules.iter().map(|rule| rule.id.as_str()))
            .collect();
        for row in self.rows {
            let of_row = |id: &&&str| !row.becomes.is_empty() && id.starts_with(row.becomes);
            let becomes = rules.iter().filter(of_row);
            let becomes = becomes.map(|id| (*id).to_owned()).collect();
            plan.add(&row.source, becomes, row.carried);
        }
    }

    /// The enforcers of the policy: those that need no more than what was recorded.
    fn enforcers(
        &self,
        plan: &mut Plan,
        recorded: &Source<'_>,
        options: &Options,
    ) -> Option<Enforcers> {
        let has_part = |kind: EnforcerKind| match kind {
            EnforcerKind::Seccomp => self.has_calls,
            EnforcerKind::Landlock | EnforcerKind::Caps => self.has_files,
            _ => true,
        };
        let usual = [
            EnforcerKind::Seccomp,
            EnforcerKind::Landlock,
            EnforcerKind::Caps,
        ];
        let wanted = match options.enforcers.as_deref().and_then(Enforcers::parse) {
            Some(wanted) => wanted,
            None => usual
                .into_iter()
                .filter(|kind| has_part(*kind))
                .fold(Enforcers::default(), Enforcers::with),
        };
        for kind in wanted.iter().filter(|kind| !has_part(*kind)) {
            let cause =
                format!("nothing was recorded that {kind} could allow: leave that enforcer out");
            plan.refuse(recorded, cause);
        }
        let enforcers = wanted
            .iter()
            .filter(|kind| has_part(*kind))
            .fold(Enforcers::default(), Enforcers::with);
        let enforcers = self.model.bearable(enforcers);
        (enforcers != Enforcers::default()).then_some(enforcers)
    }
}
