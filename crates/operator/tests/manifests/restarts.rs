//! The right to restart workloads, which an installation has or has not.

use apiserver::Resource;
use apiserver::real::RealApiserver;
use operator::manifests::OPERATOR;
use serde_json::json;

use super::{code, key, token, workload};

/// The operator may list and patch workloads if the installation lets it, and do nothing else with them.
pub(super) fn the_operator_restarts_workloads(server: &RealApiserver, may: bool) {
    let deployments = Resource::new("apps", "v1", "deployments");
    let operator = token(server, OPERATOR, None);
    let made = server
        .client
        .create(&deployments, &workload("Deployment", "restarted"));
    let uid = made.expect("the cluster is as this test made it")["metadata"]["uid"].clone();
    let at = key("demo", "restarted");
    let wanted = (!may).then_some(403);
    let listed = operator.list(&deployments.clone().in_namespace("demo"), drop);
    assert_eq!(listed.err().and_then(|error| error.code()), wanted);
    let restart = json!({ "spec": { "template": { "metadata": { "annotations": {
        "controller.tollgate.dev/restartedAt": "now" } } } } });
    assert_eq!(code(operator.merge(&deployments, &at, &restart)), wanted);
    assert_eq!(code(operator.get(&deployments, &at)), Some(403));
    let other = workload("Deployment", "other");
    assert_eq!(code(operator.create(&deployments, &other)), Some(403));
    let uid = uid.as_str().unwrap_or_default();
    assert_eq!(code(operator.delete(&deployments, &at, uid)), Some(403));
    let pods = Resource::new("", "v1", "pods");
    assert_eq!(code(operator.merge(&pods, &at, &restart)), Some(403));
    let jobs = Resource::new("batch", "v1", "jobs");
    assert_eq!(code(operator.merge(&jobs, &at, &restart)), Some(403));
}
