//! A model of ours as vArmor's ArmorProfileModel.

use policy::Model;
use serde_json::json;

use super::{Carried, Conversion, ConvertedRule};
use crate::crd::{VARMOR_GROUP, VARMOR_VERSION};
use crate::{NameTooLong, profile_name};

/// A model as an ArmorProfileModel of the policy `namespace/policy`.
///
/// # Errors
///
/// The name of the policy's profile would be too long.
pub fn to_profile_model(
    namespace: &str,
    policy: &str,
    model: &Model,
) -> Result<Conversion, NameTooLong> {
    let name = profile_name(Some(namespace), policy, "")?;
    Ok(Conversion {
        kind: "model".to_owned(),
        name: name.clone(),
        object: json!({
            "apiVersion": format!("{VARMOR_GROUP}/{VARMOR_VERSION}"),
            "kind": "ArmorProfileModel",
            "metadata": { "name": name, "namespace": namespace },
            "storageType": "CRDInternal",
            "data": model.to_recorded(&name),
        }),
        rules: graded(model),
    })
}

/// How each part of a model is carried over.
fn graded(model: &Model) -> Vec<ConvertedRule> {
    let bpf = |member: &str| format!("data.dynamicResult.bpf.{member}");
    let mut rules = Vec::new();
    let mut add = |part: &str, becomes: &[String], carried: Carried| {
        rules.push(ConvertedRule {
            source: part.to_owned(),
            line: 1,
            becomes: becomes.to_vec(),
            carried,
        });
    };
    let calls = "data.dynamicResult.seccomp.syscalls".to_owned();
    let profile = "data.profile.seccomp".to_owned();
    add("calls", &[calls, profile.clone()], Carried::Whole);
    if !model.values.is_empty() {
        let different = "arguments of calls are in the profile, and not in what was recorded";
        add("values", &[profile], Carried::Partly(different.to_owned()));
    }
    for part in ["reads", "writes", "makes"] {
        add(part, &[bpf("files")], Carried::Whole);
    }
    add("programs", &[bpf("executions")], Carried::Whole);
    add("sockets", &[bpf("network.sockets")], Carried::Whole);
    add("peers", &[bpf("network.egresses")], Carried::Whole);
    let local: Vec<&str> = model.local_peers().collect();
    if !local.is_empty() {
        let cause = format!(
            "the object has no member for Unix sockets that were contacted: {}",
            local.join(", ")
        );
        add("peers.unix", &[], Carried::Refused(cause));
    }
    let carried = match model.had_capabilities {
        false => Carried::Whole,
        true => Carried::Partly(
            "which ones are used was not recorded: all are listed, so that none is denied"
                .to_owned(),
        ),
    };
    add("capabilities", &[bpf("capabilities")], carried);
    if !model.violated.is_empty() {
        let different =
            "which built-in rules are broken is found again from files, sockets and calls";
        add("violated", &[], Carried::Partly(different.to_owned()));
    }
    rules
}
