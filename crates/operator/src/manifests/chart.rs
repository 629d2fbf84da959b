//! The Helm chart.

use std::path::{Path, PathBuf};
use std::{fs, io};

use kinds::yaml_text::stream;
use serde_json::json;

use super::Installation;

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
        "kubeVersion": ">=1.36.0-0",
    });
    let expressions = Installation {
        namespace: "{{ .Release.Namespace }}".to_owned(),
        image: "{{ .Values.image }}".to_owned(),
        ..installation.clone()
    };
    let templates = super::without_definitions(&expressions);
    for (name, text) in [
        ("Chart.yaml", stream(&[about])),
        (
            "values.yaml",
            stream(&[json!({ "image": installation.image })]),
        ),
        ("crds/tollgate.yaml", stream(&kinds::crd::all())),
        ("templates/tollgate.yaml", stream(&templates)),
    ] {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .map_err(|source| ChartError { path, source })?;
    }
    Ok(())
}
