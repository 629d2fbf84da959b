//! The Helm chart.

use std::path::{Path, PathBuf};
use std::{fs, io};

use kinds::yaml_text::stream;
use serde_json::{Value, json};

use super::values::{Values, WITHOUT_EFFECT, expressions, features};
use super::{Installation, dashboard};

/// A file of the chart cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct ChartError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes the chart of an installation into a folder, which it makes. Its namespace is Helm's.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write_chart(folder: &Path, installation: &Installation) -> Result<(), ChartError> {
    let version = env!("CARGO_PKG_VERSION");
    let about = json!({
        "apiVersion": "v2",
        "name": "tollgate",
        "description": "Policies of a cluster, enforced on its nodes",
        "type": "application",
        "version": version,
        "appVersion": version,
        // MutatingAdmissionPolicy is there from 1.36 on, ValidatingAdmissionPolicy from 1.30.
        "kubeVersion": if installation.webhook { ">=1.30.0-0" } else { ">=1.36.0-0" },
    });
    let of_helm = Installation {
        namespace: "{{ .Release.Namespace }}".to_owned(),
        image: "{{ .Values.image.reference }}".to_owned(),
        ..installation.clone()
    };
    let templates = super::without_definitions(&of_helm, &Values::of_chart());
    let values = Values::usual(installation).file(installation);
    for (name, text) in [
        ("Chart.yaml", stream(&[about])),
        ("values.schema.json", format!("{:#}\n", schema(&values))),
        ("values.yaml", stream(&[values])),
        ("crds/tollgate.yaml", stream(&kinds::crd::all())),
        ("templates/checks.yaml", checks(installation)),
        ("templates/tollgate.yaml", expressions(&stream(&templates))),
        ("templates/NOTES.txt", notes()),
        ("dashboards/tollgate.json", format!("{:#}\n", dashboard())),
    ] {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .map_err(|source| ChartError { path, source })?;
    }
    Ok(())
}

/// Values whose content is Kubernetes', which its API server checks.
const FREE: [&str; 3] = ["resources", "nodeSelector", "affinity"];

/// The schema of values like these: each has its type, and there are no others.
fn schema(values: &Value) -> Value {
    let mut schema = schema_of(values);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    // Helm adds it for charts that have this one as a part. No value of it is followed.
    schema["properties"]["global"] = json!({ "type": "object", "additionalProperties": false });
    schema["properties"]["manager"]["properties"]["replicaCount"]["minimum"] = json!(1);
    // A number, or a part of the operators as Kubernetes writes it.
    schema["properties"]["podDisruptionBudget"]["properties"]["minAvailable"] = json!({
        "type": ["integer", "string"], "minimum": 0, "pattern": "^([0-9]|[1-9][0-9]|100)%$" });
    schema
}

fn schema_of(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return json!({ "type": match value {
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::Array(_) => "array",
            _ => "string",
        } });
    };
    let properties = fields.iter().map(|(name, value)| {
        let schema = match FREE.contains(&name.as_str()) {
            true => json!({ "type": "object" }),
            false => schema_of(value),
        };
        (name.clone(), schema)
    });
    let properties: serde_json::Map<String, Value> = properties.collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Refuses a disruption budget that lets no node be drained. Kubernetes rounds a percentage up.
const DISRUPTION: &str = r#"{{- $replicas := int64 .Values.manager.replicaCount }}
{{- $least := .Values.podDisruptionBudget.minAvailable }}
{{- if kindIs "string" $least }}
{{- $least = div (add (mul $replicas (int64 (trimSuffix "%" $least))) 99) 100 }}
{{- end }}
{{- if ge (int64 $least) $replicas }}
{{- fail "podDisruptionBudget.minAvailable: with as many as manager.replicaCount, no node with an operator can be drained: set fewer, 0 for one operator" }}
{{- end }}
"#;

/// Refuses values that the chart cannot follow: it would install something else than they say.
fn checks(installation: &Installation) -> String {
    let mut text = String::new();
    for (name, option, is_set) in features(installation) {
        let (has, change) = match is_set {
            true => ("has", format!("without {option}")),
            false => ("lacks", format!("with {option}")),
        };
        text.push_str(&format!(
            "{{{{- if ne .Values.{name}.enabled {is_set} }}}}\n\
             {{{{- fail \"{name}.enabled: this chart {has} the rights for it: write it again by tollgate-operator manifests --chart, {change}\" }}}}\n\
             {{{{- end }}}}\n"
        ));
    }
    text.push_str(DISRUPTION);
    text.push_str(
        "{{- if .Values.bpfExclusiveMode.enabled }}\n\
         {{- fail \"bpfExclusiveMode.enabled: tollgate leaves AppArmor of pods as it is\" }}\n\
         {{- end }}\n",
    );
    text
}

/// Says which values had no effect.
fn notes() -> String {
    let mut text = String::from(
        "tollgate is installed in the namespace {{ .Release.Namespace }}.\n\n    kubectl tollgate status -A\n",
    );
    for (name, usual, why) in WITHOUT_EFFECT {
        text.push_str(&format!(
            "{{{{- if ne .Values.{name}.enabled {usual} }}}}\nThe value {name}.enabled has no effect: {why}.\n{{{{- end }}}}\n"
        ));
    }
    text
}
