//! SeccompProfile and AppArmorProfile of the Security Profiles Operator.
//!
//! Neither says which workloads it is for: pods name it, or a ProfileBinding does.

use serde_json::{Map, Value, json};

use super::source::Source;
use super::{Carried, Options, Plan};

/// Actions that a profile may have here.
const ACTIONS: [&str; 7] = [
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_TRAP",
    "SCMP_ACT_LOG",
];
/// Folders of which that operator denies parts in each profile, whatever the profile allows.
const DENIED_PARTS: [&str; 6] = ["/proc", "/sys", "@{PROC}", "/*", "/{", "@{sys}"];

/// Name of the rule that a profile becomes.
const SECCOMP: &str = "defenseInDepth.seccomp";
/// Where an AppArmor profile is in a policy.
const APPARMOR: &str = "defenseInDepth.appArmor";

/// A profile of system calls.
pub(super) fn seccomp(source: &Source<'_>, options: &Options) -> Plan {
    let mut plan = Plan {
        target: options.target.clone(),
        ..Plan::default()
    };
    let Some(spec) = spec(&mut plan, source) else {
        return plan;
    };
    let known = [
        "disabled",
        "baseProfileName",
        "defaultAction",
        "architectures",
        "listenerPath",
        "listenerMetadata",
        "flags",
        "syscalls",
    ];
    plan.refuse_unknown(&spec, &known);
    surroundings(&mut plan, &spec);
    let default = spec.word("defaultAction");
    match spec.get("defaultAction") {
        Some(_) if ACTIONS.contains(&default.as_str()) => {}
        Some(action) => {
            plan.refuse(
                &action,
                format!("the action `{default}` needs a tracer or an agent, and has none here"),
            );
            return plan;
        }
        None => {
            plan.refuse(&spec, "`defaultAction` is missing");
            return plan;
        }
    }
    let mut entries = Vec::new();
    for entry in plan.list(&spec, "syscalls") {
        match call(&entry) {
            Ok(value) => {
                entries.push(value);
                plan.add(&entry, vec![SECCOMP.to_owned()], Carried::Whole);
            }
            Err(cause) => plan.refuse(&entry, cause),
        }
    }
    let profile = json!({ "defaultAction": default, "syscalls": entries });
    let part = json!({ "profileType": "Custom", "customProfile": profile.to_string() });
    let enforcer = options
        .enforcers
        .clone()
        .unwrap_or_else(|| "Seccomp".to_owned());
    plan.policy = in_depth(&enforcer, "seccomp", part, false);
    plan
}

/// What a profile says besides its calls.
fn surroundings(plan: &mut Plan, spec: &Source<'_>) {
    if let Some(base) = spec.get("baseProfileName") {
        let cause = "the profile is not complete without its base: merge both, and remove this key";
        plan.refuse(&base, cause);
    }
    for key in ["listenerPath", "listenerMetadata"] {
        if let Some(listener) = spec.get(key) {
            plan.refuse(&listener, "an agent of another program cannot be asked");
        }
    }
    if let Some(flags) = spec.get("flags") {
        let different = "flags only concern how a filter is loaded and logged, and are not used";
        plan.add(
            &flags,
            vec![SECCOMP.to_owned()],
            Carried::Partly(different.to_owned()),
        );
    }
    if let Some(list) = spec.get("architectures") {
        let different = "calls of other architectures than the machine's are refused";
        plan.add(
            &list,
            vec![SECCOMP.to_owned()],
            Carried::Partly(different.to_owned()),
        );
    }
}

/// An entry of a seccomp profile in the notation of the OCI runtime specification.
fn call(entry: &Source<'_>) -> Result<Value, String> {
    check(entry, &["names", "action", "errnoRet", "args"])?;
    let action = entry.word("action");
    if !ACTIONS.contains(&action.as_str()) {
        return Err(format!(
            "the action `{action}` needs a tracer or an agent, and has none here"
        ));
    }
    let names = entry.words("names")?;
    if names.is_empty() {
        return Err("it names no system call".to_owned());
    }
    let mut value = json!({ "names": names, "action": action });
    // A text in older versions, a number in newer ones.
    if let Some(errno) = entry.get("errnoRet").and_then(|one| one.text()) {
        let number: u16 = errno
            .parse()
            .map_err(|_text| format!("`errnoRet` is `{errno}`, and has to be a number"))?;
        if action != "SCMP_ACT_ERRNO" {
            return Err(format!(
                "`errnoRet` has no meaning with the action `{action}`"
            ));
        }
        value["errnoRet"] = json!(number);
    }
    let mut args = Vec::new();
    if entry.get("args").is_some_and(|list| !list.is_list()) {
        return Err("`args` is no list".to_owned());
    }
    for arg in entry.items("args") {
        check(&arg, &["index", "value", "valueTwo", "op"])?;
        let number = |key: &str| match arg.get(key).and_then(|one| one.text()) {
            None => Ok(0_u64),
            Some(text) => text
                .parse()
                .map_err(|_text| format!("`{key}` is `{text}`, and has to be a number")),
        };
        let mut test =
            json!({ "index": number("index")?, "value": number("value")?, "op": arg.word("op") });
        if arg.get("valueTwo").is_some() {
            test["valueTwo"] = json!(number("valueTwo")?);
        }
        args.push(test);
    }
    if !args.is_empty() {
        value["args"] = json!(args);
    }
    Ok(value)
}

/// A profile of files, programs, sockets and capabilities.
pub(super) fn apparmor(source: &Source<'_>, options: &Options) -> Plan {
    let mut plan = Plan {
        target: options.target.clone(),
        ..Plan::default()
    };
    let Some(spec) = spec(&mut plan, source) else {
        return plan;
    };
    plan.refuse_unknown(&spec, &["disabled", "complainMode", "abstract"]);
    let mut lines = Vec::new();
    if let Some(all) = spec.get("abstract") {
        plan.refuse_unknown(&all, &["executable", "filesystem", "network", "capability"]);
        for (part, key, before, after) in PATHS {
            let Some(part) = all.get(part) else { continue };
            let paths = plan.list(&part, key);
            for path in paths {
                allow_path(&mut plan, &mut lines, &path, (before, after));
            }
        }
        let known = [
            (
                "executable",
                &["allowedExecutables", "allowedLibraries"][..],
            ),
            (
                "filesystem",
                &["readOnlyPaths", "writeOnlyPaths", "readWritePaths"],
            ),
            ("network", &["allowRaw", "allowedProtocols"]),
            ("capability", &["allowedCapabilities"]),
        ];
        for (part, keys) in known {
            if let Some(part) = all.get(part) {
                plan.refuse_unknown(&part, keys);
            }
        }
        if let Some(network) = all.get("network") {
            allow_sockets(&mut plan, &mut lines, &network);
        }
        if let Some(part) = all.get("capability") {
            for capability in plan.list(&part, "allowedCapabilities") {
                allow_capability(&mut plan, &mut lines, &capability);
            }
        }
    }
    let complains = spec.flag("complainMode");
    if let (Some(switch), Err(cause)) = (spec.get("complainMode"), &complains) {
        plan.refuse(&switch, cause.clone());
    }
    let name = source.get("metadata").map(|metadata| metadata.word("name"));
    let text = profile(&name.unwrap_or_default(), &lines);
    let part = json!({ "profileType": "Custom", "customProfile": text });
    let enforcer = options
        .enforcers
        .clone()
        .unwrap_or_else(|| "AppArmor".to_owned());
    plan.policy = in_depth(&enforcer, "appArmor", part, complains == Ok(true));
    plan
}

/// Lists of paths: part, key, and what stands before and after each path in the profile.
const PATHS: [(&str, &str, &str, &str); 5] = [
    ("executable", "allowedExecutables", "", "ix"),
    ("executable", "allowedLibraries", "", "mr"),
    ("filesystem", "readOnlyPaths", "wl", "r"),
    ("filesystem", "writeOnlyPaths", "r", "wl"),
    ("filesystem", "readWritePaths", "", "rwl"),
];

/// Allows a path, and denies the letters `denied`: a denial wins over what other lines allow.
fn allow_path(
    plan: &mut Plan,
    lines: &mut Vec<String>,
    path: &Source<'_>,
    (denied, allowed): (&str, &str),
) {
    let text = path.text().unwrap_or_default();
    let unfit = |c: char| c.is_control() || matches!(c, '"' | '#' | ';');
    let is_path = text.starts_with('/') || text.starts_with("@{");
    if !is_path || text.contains(unfit) || text.contains([',', ' ']) {
        let cause = "it is no path that can stand in a profile: an absolute one without spaces, commas and quotes";
        return plan.refuse(path, cause);
    }
    lines.push(format!("{text} {allowed},"));
    if !denied.is_empty() {
        lines.push(format!("deny {text} {denied},"));
    }
    let is_open = DENIED_PARTS.iter().any(|part| text.starts_with(part));
    let carried = match is_open {
        true => Carried::Partly(
            "that operator denies parts of /proc and /sys besides: add them to `appArmorRawRules`"
                .to_owned(),
        ),
        false => Carried::Whole,
    };
    plan.add(path, vec![APPARMOR.to_owned()], carried);
}

fn allow_sockets(plan: &mut Plan, lines: &mut Vec<String>, network: &Source<'_>) {
    if let Some(raw) = network.get("allowRaw") {
        match network.flag("allowRaw") {
            // It removes a denial, and no line allows raw sockets.
            Ok(true) => plan.add(&raw, vec![APPARMOR.to_owned()], Carried::Whole),
            Ok(false) => {
                lines.push("deny network raw,".to_owned());
                plan.add(&raw, vec![APPARMOR.to_owned()], Carried::Whole);
            }
            Err(cause) => plan.refuse(&raw, cause),
        }
    }
    let Some(protocols) = network.get("allowedProtocols") else {
        return;
    };
    plan.refuse_unknown(&protocols, &["allowTcp", "allowUdp"]);
    for (key, name) in [("allowTcp", "tcp"), ("allowUdp", "udp")] {
        let Some(switch) = protocols.get(key) else {
            continue;
        };
        match protocols.flag(key) {
            Ok(allowed) => {
                if allowed {
                    lines.push(format!("network inet {name},"));
                }
                plan.add(&switch, vec![APPARMOR.to_owned()], Carried::Whole);
            }
            Err(cause) => plan.refuse(&switch, cause),
        }
    }
}

fn allow_capability(plan: &mut Plan, lines: &mut Vec<String>, capability: &Source<'_>) {
    let name = capability.text().unwrap_or_default().to_lowercase();
    let name = name.strip_prefix("cap_").unwrap_or(&name);
    let builtin = format!("disable-cap-{}", name.replace('_', "-"));
    if policy::builtin::find(&builtin).is_none() {
        return plan.refuse(capability, format!("the capability `{name}` is not known"));
    }
    lines.push(format!("capability {name},"));
    plan.add(capability, vec![APPARMOR.to_owned()], Carried::Whole);
}

/// The text of an AppArmor profile that allows what these lines say.
fn profile(name: &str, lines: &[String]) -> String {
    let mut text = format!(
        "#include <tunables/global>\nprofile {name} flags=(attach_disconnected,mediate_deleted) {{\n  #include \
         <abstractions/base>\n"
    );
    for line in lines {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str("  deny mount,\n}\n");
    text
}

/// The part `spec` of a profile that is in use.
fn spec<'n>(plan: &mut Plan, source: &Source<'n>) -> Option<Source<'n>> {
    plan.refuse_unknown(
        source,
        &["apiVersion", "kind", "metadata", "spec", "status"],
    );
    let spec = source.get("spec")?;
    if let Some(switch) = spec.get("disabled") {
        match spec.flag("disabled") {
            Ok(false) => {}
            Ok(true) => plan.refuse(&switch, "the profile is disabled, and would be enforced"),
            Err(cause) => plan.refuse(&switch, cause),
        }
    }
    Some(spec)
}

fn check(item: &Source<'_>, known: &[&str]) -> Result<(), String> {
    if !item.is_mapping() {
        return Err("it is no mapping".to_owned());
    }
    let mut keys = item.keys().into_iter().filter_map(|key| key.name());
    match keys.find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(format!("the key `{name}` is not known")),
    }
}

fn in_depth(enforcer: &str, key: &str, part: Value, complains: bool) -> Map<String, Value> {
    let mut depth = json!({ key: part });
    if complains {
        depth["allowViolations"] = json!(true);
    }
    Map::from_iter([
        ("enforcer".to_owned(), json!(enforcer)),
        ("mode".to_owned(), json!("DefenseInDepth")),
        ("defenseInDepth".to_owned(), depth),
    ])
}
