//! KubeArmorPolicy, version `security.kubearmor.com/v1`.

use policy::builtin;
use policy::pattern::Pattern;
use serde_json::{Value, json};

use super::source::Source;
use super::{Carried, Options, Plan};
use crate::{LabelSelector, Target};

/// Keys that only describe a rule for people.
const ABOUT: [&str; 3] = ["severity", "tags", "message"];
/// The label by which a policy chooses containers of its pods.
const CONTAINERS: &str = "kubearmor.io/container.name";
/// Characters that some enforcers of KubeArmor take for wildcards and others for themselves.
const SPECIAL: [char; 9] = ['*', '?', '[', ']', '{', '}', '^', '\\', ','];

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Block,
    Audit,
}

/// The lists of the policy that is made.
#[derive(Default)]
struct Lists {
    files: Vec<Value>,
    processes: Vec<Value>,
    sockets: Vec<Value>,
    calls: Vec<Value>,
    apparmor: Vec<Value>,
    hardening: Vec<Value>,
}

struct Converter {
    plan: Plan,
    lists: Lists,
}

pub(super) fn convert(source: &Source<'_>, options: &Options) -> Plan {
    let mut all = Converter {
        plan: Plan::default(),
        lists: Lists::default(),
    };
    let top = ["apiVersion", "kind", "metadata", "spec", "status"];
    all.plan.refuse_unknown(source, &top);
    if let Some(spec) = source.get("spec") {
        all.spec(&spec, options);
    }
    all.finish(options)
}

impl Converter {
    fn spec(&mut self, spec: &Source<'_>, options: &Options) {
        let sections = ["process", "file", "network", "capabilities", "syscalls"];
        let others = ["selector", "action", "apparmor", "status"];
        let known: Vec<&str> = [&sections[..], &others, &ABOUT].concat();
        self.plan.refuse_unknown(spec, &known);
        self.target(spec, options);
        if let Some(status) = spec
            .get("status")
            .filter(|one| one.text().as_deref() != Some("Active"))
        {
            self.plan
                .refuse(&status, "the policy is not active, and would become active");
        }
        for name in ["process", "file"] {
            if let Some(section) = spec.get(name) {
                self.paths(&section, spec, name == "file");
            }
        }
        if let Some(section) = spec.get("network") {
            self.network(&section, spec);
        }
        if let Some(section) = spec.get("capabilities") {
            self.capabilities(&section, spec);
        }
        if let Some(section) = spec.get("syscalls") {
            self.syscalls(&section);
        }
        if let Some(native) = spec.get("apparmor") {
            match native.text() {
                Some(text) => self.apparmor(&native, json!({ "rules": text }), Carried::Whole),
                None => self.plan.refuse(&native, "it is no text"),
            }
        }
    }

    /// The workloads: all pods of the namespace with these labels.
    fn target(&mut self, spec: &Source<'_>, options: &Options) {
        if let Some(target) = &options.target {
            self.plan.target = Some(target.clone());
            return;
        }
        let Some(selector) = spec.get("selector") else {
            return;
        };
        self.plan.refuse_unknown(&selector, &["matchLabels"]);
        let mut labels = LabelSelector::default();
        let mut containers = Vec::new();
        for label in selector
            .get("matchLabels")
            .into_iter()
            .flat_map(|one| one.keys())
        {
            let (Some(name), Some(value)) = (label.name(), label.text()) else {
                self.plan.refuse(&label, "it is no text");
                continue;
            };
            if name == CONTAINERS {
                let names = value.trim_matches(['[', ']']).split(',');
                containers.extend(names.map(|name| name.trim().to_owned()));
            } else {
                labels.match_labels.insert(name.to_owned(), value);
            }
        }
        if labels.match_labels.is_empty() {
            let cause = "it has no labels of pods: name the workloads with --target or --selector";
            return self.plan.refuse(&selector, cause);
        }
        self.plan.target = Some(Target {
            kind: "Pod".to_owned(),
            name: String::new(),
            selector: Some(labels),
            containers,
        });
    }

    /// The action of a rule: its own, that of its section, or that of the policy.
    fn action(
        &self,
        rule: &Source<'_>,
        section: &Source<'_>,
        spec: &Source<'_>,
    ) -> Result<Action, String> {
        let of = |source: &Source<'_>| Some(source.word("action")).filter(|word| !word.is_empty());
        let word = of(rule).or_else(|| of(section)).or_else(|| of(spec));
        match word.as_deref() {
            None | Some("Block") => Ok(Action::Block),
            Some("Audit") => Ok(Action::Audit),
            Some("Allow") => Err(
                "Allow denies or reports everything else, which the posture of the cluster decides: learn a policy, or \
                 list what is allowed in `landlockRawRules`"
                    .to_owned(),
            ),
            Some(other) => Err(format!("the action `{other}` is not known")),
        }
    }

    /// Files or programs.
    fn paths(&mut self, section: &Source<'_>, spec: &Source<'_>, is_file: bool) {
        let kinds = ["matchPaths", "matchDirectories", "matchPatterns"];
        let known: Vec<&str> = [&kinds[..], &["action"], &ABOUT].concat();
        self.plan.refuse_unknown(section, &known);
        for kind in kinds {
            for rule in self.plan.list(section, kind) {
                let made = self.action(&rule, section, spec).and_then(|action| {
                    PathRule::read(&rule, kind, is_file).map(|one| (action, one))
                });
                match made {
                    Ok((action, made)) => self.path(&rule, action, made),
                    Err(cause) => self.plan.refuse(&rule, cause),
                }
            }
        }
    }

    fn path(&mut self, source: &Source<'_>, action: Action, rule: PathRule) {
        if !rule.from.is_empty() {
            if action == Action::Audit {
                let cause =
                    "reports of single programs are not possible: `fromSource` is for Block";
                return self.plan.refuse(source, cause);
            }
            let letters = match (rule.is_file, rule.is_read_only) {
                (false, _) => "x",
                (true, true) => "w",
                (true, false) => "rw",
            };
            let text = format!("deny {} {letters},", quoted(&rule.pattern));
            let value = json!({ "rules": text, "targets": rule.from });
            return self.apparmor(source, value, Carried::Whole);
        }
        let permissions = match (rule.is_file, rule.is_read_only) {
            (false, _) => json!(["exec"]),
            (true, true) => json!(["write"]),
            (true, false) => json!(["read", "write"]),
        };
        let value = json!({ "qualifiers": qualifiers(action), "pattern": rule.pattern, "permissions": permissions });
        let (list, key) = match rule.is_file {
            true => (&mut self.lists.files, "files"),
            false => (&mut self.lists.processes, "processes"),
        };
        let name = format!("bpfRawRules.{key}[{}]", list.len());
        list.push(value);
        let carried = match rule.is_file && rule.is_directory && !rule.is_read_only {
            true => Carried::Partly("the names in the folder itself stay readable".to_owned()),
            false => Carried::Whole,
        };
        self.plan.add(source, vec![name], carried);
    }

    fn network(&mut self, section: &Source<'_>, spec: &Source<'_>) {
        let known: Vec<&str> = [&["matchProtocols", "action"][..], &ABOUT].concat();
        self.plan.refuse_unknown(section, &known);
        for rule in self.plan.list(section, "matchProtocols") {
            let known: Vec<&str> = [&["protocol", "fromSource", "action"][..], &ABOUT].concat();
            let made = self
                .action(&rule, section, spec)
                .and_then(|action| check_keys(&rule, &known).map(|()| action))
                .and_then(|action| Ok((action, sources(&rule)?)));
            let (action, from) = match made {
                Ok(made) => made,
                Err(cause) => {
                    self.plan.refuse(&rule, cause);
                    continue;
                }
            };
            let protocol = rule.word("protocol").to_lowercase();
            if !["tcp", "udp", "icmp", "raw"].contains(&protocol.as_str()) {
                self.plan
                    .refuse(&rule, format!("the protocol `{protocol}` is not known"));
            } else if !from.is_empty() {
                self.of_programs(&rule, action, format!("deny network {protocol},"), &from);
            } else {
                let (key, name) = match protocol.as_str() {
                    "raw" => ("types", "raw"),
                    other => ("protocols", other),
                };
                let mut value = json!({ "qualifiers": qualifiers(action) });
                value[key] = json!([name]);
                let id = format!("bpfRawRules.network.sockets[{}]", self.lists.sockets.len());
                self.lists.sockets.push(value);
                self.plan.add(&rule, vec![id], Carried::Whole);
            }
        }
    }

    fn capabilities(&mut self, section: &Source<'_>, spec: &Source<'_>) {
        let known: Vec<&str> = [&["matchCapabilities", "action"][..], &ABOUT].concat();
        self.plan.refuse_unknown(section, &known);
        for rule in self.plan.list(section, "matchCapabilities") {
            let known: Vec<&str> = [&["capability", "fromSource", "action"][..], &ABOUT].concat();
            let made = self
                .action(&rule, section, spec)
                .and_then(|action| check_keys(&rule, &known).map(|()| action))
                .and_then(|action| Ok((action, sources(&rule)?)));
            let name = rule.word("capability");
            let builtin = format!("disable-cap-{}", name.replace('_', "-"));
            match made {
                Err(cause) => self.plan.refuse(&rule, cause),
                Ok(_) if builtin::find(&builtin).is_none() => {
                    self.plan
                        .refuse(&rule, format!("the capability `{name}` is not known"));
                }
                Ok((action, from)) if !from.is_empty() => {
                    self.of_programs(&rule, action, format!("deny capability {name},"), &from);
                }
                Ok((Action::Audit, _)) => {
                    let cause = "a capability can be taken away, and its use not reported alone";
                    self.plan.refuse(&rule, cause);
                }
                Ok((Action::Block, _)) => {
                    if !self.lists.hardening.contains(&json!(builtin)) {
                        self.lists.hardening.push(json!(builtin));
                    }
                    self.plan.add(&rule, vec![builtin], Carried::Whole);
                }
            }
        }
    }

    /// System calls, which KubeArmor reports and never denies.
    fn syscalls(&mut self, section: &Source<'_>) {
        let known: Vec<&str> = [&["matchSyscalls", "matchPaths"][..], &ABOUT].concat();
        self.plan.refuse_unknown(section, &known);
        for rule in self.plan.list(section, "matchPaths") {
            let cause = "a filter does not see the paths of calls: write a detection rule, or `bpfRawRules.files`";
            self.plan.refuse(&rule, cause);
        }
        for rule in self.plan.list(section, "matchSyscalls") {
            let made =
                check_keys(&rule, &["syscall", "fromSource"]).and_then(|()| rule.words("syscall"));
            match made {
                Err(cause) => self.plan.refuse(&rule, cause),
                Ok(_) if rule.get("fromSource").is_some() => {
                    let cause = "a filter is for all programs of a container: `fromSource` cannot be carried";
                    self.plan.refuse(&rule, cause);
                }
                Ok(names) if names.is_empty() => self.plan.refuse(&rule, "it names no system call"),
                Ok(names) => {
                    let id = format!("syscallRawRules[{}]", self.lists.calls.len());
                    let value = json!({ "names": names, "action": "SCMP_ACT_LOG" });
                    self.lists.calls.push(value);
                    self.plan.add(&rule, vec![id], Carried::Whole);
                }
            }
        }
    }

    /// A denial for single programs, which only AppArmor can enforce.
    fn of_programs(&mut self, source: &Source<'_>, action: Action, rules: String, from: &[String]) {
        match action {
            Action::Block => {
                let value = json!({ "rules": rules, "targets": from });
                self.apparmor(source, value, Carried::Whole);
            }
            Action::Audit => {
                let cause =
                    "reports of single programs are not possible: `fromSource` is for Block";
                self.plan.refuse(source, cause);
            }
        }
    }

    fn apparmor(&mut self, source: &Source<'_>, value: Value, carried: Carried) {
        let name = format!("appArmorRawRules[{}]", self.lists.apparmor.len());
        self.lists.apparmor.push(value);
        self.plan.add(source, vec![name], carried);
    }

    fn finish(mut self, options: &Options) -> Plan {
        let lists = self.lists;
        let mut enforcers = "SeccompLandlockCapsBPF".to_owned();
        if !lists.apparmor.is_empty() {
            enforcers.push_str("AppArmor");
        }
        // KubeArmor adds no denials of its own, and reports what it blocks.
        let mut protect = json!({ "privileged": true, "auditViolations": true });
        let mut put = |key: &str, list: Vec<Value>| {
            if !list.is_empty() {
                protect[key] = json!(list);
            }
        };
        put("hardeningRules", lists.hardening);
        put("appArmorRawRules", lists.apparmor);
        put("syscallRawRules", lists.calls);
        let mut raw = json!({});
        for (key, list) in [("files", lists.files), ("processes", lists.processes)] {
            if !list.is_empty() {
                raw[key] = json!(list);
            }
        }
        if !lists.sockets.is_empty() {
            raw["network"] = json!({ "sockets": lists.sockets });
        }
        if raw != json!({}) {
            protect["bpfRawRules"] = raw;
        }
        let enforcer = options.enforcers.clone().unwrap_or(enforcers);
        self.plan
            .policy
            .insert("enforcer".to_owned(), json!(enforcer));
        self.plan
            .policy
            .insert("mode".to_owned(), json!("EnhanceProtect"));
        self.plan
            .policy
            .insert("enhanceProtect".to_owned(), protect);
        self.plan
    }
}

/// A rule on files or programs.
struct PathRule {
    is_file: bool,
    pattern: String,
    is_directory: bool,
    is_read_only: bool,
    /// The programs that it is for; empty for all.
    from: Vec<String>,
}

impl PathRule {
    fn read(rule: &Source<'_>, kind: &str, is_file: bool) -> Result<Self, String> {
        let mut known = vec!["ownerOnly", "action"];
        known.extend(ABOUT);
        let (key, is_directory) = match kind {
            "matchPaths" => ("path", false),
            "matchDirectories" => ("dir", true),
            _ => ("pattern", false),
        };
        known.push(key);
        if is_directory {
            known.push("recursive");
        }
        if is_file {
            known.push("readOnly");
        }
        if key != "pattern" {
            known.push("fromSource");
        }
        check_keys(rule, &known)?;
        if rule.flag("ownerOnly")? {
            return Err(
                "`ownerOnly` lets the owner of a file through, which no rule here can".to_owned(),
            );
        }
        let text = rule.word(key);
        let pattern = match key {
            "pattern" => glob(&text)?,
            _ => {
                plain(&text)?;
                match (is_directory, rule.flag("recursive")?) {
                    (false, _) => text,
                    (true, is_recursive) => {
                        let folder = text.trim_end_matches('/');
                        format!("{folder}/{}", if is_recursive { "**" } else { "*" })
                    }
                }
            }
        };
        Pattern::parse(&pattern).map_err(|error| error.to_string())?;
        Ok(Self {
            is_file,
            pattern,
            is_directory,
            is_read_only: rule.flag("readOnly")?,
            from: sources(rule)?,
        })
    }
}

/// Refuses a rule with a key that is not known.
fn check_keys(rule: &Source<'_>, known: &[&str]) -> Result<(), String> {
    if !rule.is_mapping() {
        return Err("it is no mapping".to_owned());
    }
    let unknown = rule
        .keys()
        .into_iter()
        .find(|key| key.name().is_some_and(|name| !known.contains(&name)));
    match unknown.and_then(|key| key.name()) {
        None => Ok(()),
        Some(name) => Err(format!("the key `{name}` is not known")),
    }
}

/// The programs of `fromSource`.
fn sources(rule: &Source<'_>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    if let Some(list) = rule.get("fromSource")
        && !list.is_list()
    {
        return Err("`fromSource` is no list".to_owned());
    }
    for item in rule.items("fromSource") {
        check_keys(&item, &["path"])?;
        let path = item.word("path");
        plain(&path)?;
        all.push(path);
    }
    Ok(all)
}

/// Refuses a path that has a wildcard for one enforcer and a plain character for another.
fn plain(path: &str) -> Result<(), String> {
    match path.chars().find(|char| SPECIAL.contains(char)) {
        _ if !path.starts_with('/') => Err(format!("`{path}` is no absolute path")),
        None => Ok(()),
        Some(char) => Err(format!(
            "`{char}` in the path `{path}` is a wildcard for AppArmor and none for BPF: write a pattern"
        )),
    }
}

/// Refuses a pattern that is not one of `*` and `**` alone.
fn glob(pattern: &str) -> Result<String, String> {
    let is_other = |char: &char| *char != '*' && SPECIAL.contains(char);
    match pattern.chars().find(is_other) {
        Some(char) => Err(format!(
            "`{char}` in the pattern `{pattern}` cannot be carried: only `*` and `**` can"
        )),
        None => Ok(pattern.to_owned()),
    }
}

/// A path in the notation of AppArmor.
fn quoted(path: &str) -> String {
    match path.contains([' ', '"']) {
        true => format!("\"{}\"", path.replace('"', "\\\"")),
        false => path.to_owned(),
    }
}

fn qualifiers(action: Action) -> Value {
    match action {
        Action::Block => json!(["deny"]),
        Action::Audit => json!(["audit"]),
    }
}
