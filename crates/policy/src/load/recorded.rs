//! Parser of `ArmorProfileModel`: what vArmor recorded of a workload. A policy of the same file uses it by
//! `profileType: BehaviorModel`.

use abi::Syscall;
use yaml::Node;

use super::metadata_name;
use super::reader::Reader;
use crate::diagnostic::{Code, Diagnostic};

/// The kind of such a document.
pub(super) const KIND: &str = "ArmorProfileModel";

/// Members of a profile, as vArmor writes them.
const PROFILE: [&str; 6] = ["name", "enforcer", "mode", "appArmor", "bpf", "seccomp"];

/// A model.
#[derive(Clone)]
pub(super) struct RecordedModel {
    name: String,
    /// Profile of seccomp that was made from the recording, as JSON, with its place.
    pub(super) seccomp: Option<Node>,
    /// Calls that were recorded.
    pub(super) calls: Vec<Syscall>,
    /// Profile of AppArmor that was made from the recording.
    pub(super) apparmor: Option<String>,
}

/// Reads a document of the kind [`KIND`].
pub(super) fn read(reader: &mut Reader, node: &Node, file_name: &str) -> Option<RecordedModel> {
    let known = [
        "apiVersion",
        "kind",
        "metadata",
        "storageType",
        "data",
        "status",
    ];
    let root = reader.fields(node, "ArmorProfileModel", &known);
    let data = reader.required(&root, "ArmorProfileModel", "data")?;
    let data = reader.fields(data, "data", &["dynamicResult", "staticResult", "profile"]);
    let mut model = RecordedModel {
        name: metadata_name(root.find("metadata"))
            .unwrap_or(file_name)
            .to_owned(),
        seccomp: None,
        calls: Vec::new(),
        apparmor: None,
    };
    if let Some(profile) = data.find("profile") {
        let fields = reader.fields(profile, "data.profile", &PROFILE);
        model.seccomp = fields.find("seccomp").cloned();
        model.apparmor = reader.text_of(&fields, "appArmor").map(str::to_owned);
    }
    if let Some(recorded) = data.find("dynamicResult") {
        let known = ["appArmor", "bpf", "seccomp"];
        let fields = reader.fields(recorded, "data.dynamicResult", &known);
        if let Some(seccomp) = fields.find("seccomp") {
            let what = "data.dynamicResult.seccomp";
            let fields = reader.fields(seccomp, what, &["syscalls"]);
            let names = reader.words_of(&fields, "syscalls").into_iter();
            // What a later kernel has and this program does not know is denied by no rule either.
            model.calls = names
                .filter_map(|(_, name)| Syscall::from_name(name))
                .collect();
        }
    }
    // vArmor's manager exports the data of every model, and leaves `storageType` as it is.
    let is_empty = model.seccomp.is_none() && model.apparmor.is_none() && model.calls.is_empty();
    if let Some(kind) = reader.text_of(&root, "storageType")
        && kind != "CRDInternal"
        && is_empty
    {
        let message =
            format!("the data of a model with `storageType: {kind}` are not in its document");
        reader.report(
            Diagnostic::new(Code::UnknownValue, root.location.clone(), message)
                .with_help("export the model from vArmor's manager"),
        );
        return None;
    }
    Some(model)
}

/// The model of a policy: the only one of its file, or else the one whose name ends in the name of the policy, as
/// vArmor names them (`varmor-NAMESPACE-POLICY`).
pub(super) fn of_policy<'m>(
    models: &'m [RecordedModel],
    policy: &str,
) -> Option<&'m RecordedModel> {
    if let [model] = models {
        return Some(model);
    }
    let is_its = |model: &&RecordedModel| {
        let rest = model.name.strip_suffix(policy);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    };
    let mut own = models.iter().filter(is_its);
    own.next().filter(|_| own.next().is_none())
}
