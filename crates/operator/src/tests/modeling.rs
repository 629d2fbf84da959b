//! Behaviour modelling from the policy to the completed model.

use kinds::ModelingRun;
use kinds::annotations::{INSTALLATION, MODELING};

use super::*;

const MODEL: &str =
    "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofilemodels/varmor-demo-web";
const REPORT: &str = "/apis/tollgate.dev/v1alpha1/nodereports/";

fn modeling(minutes: u64) -> Value {
    policy(
        json!({ "enforcer": "BPFSeccomp", "mode": "BehaviorModeling", "modelingOptions": { "duration": minutes } }),
    )
}

fn with_models(identity: &str) -> Settings {
    Settings {
        behavior_modeling: true,
        model_pause: Duration::from_millis(50),
        ..settings(identity)
    }
}

fn put_node(server: &FakeApiserver, name: &str) {
    let node = json!({ "metadata": { "name": name }, "status": { "nodeInfo": { "bootID": "b" } } });
    server.put(&format!("/api/v1/nodes/{name}"), node);
}

/// The report of a node that has observed these calls until then.
fn put_report(server: &FakeApiserver, name: &str, run: ModelingRun, until: u64, calls: &[&str]) {
    let mut report = report("100000", "b");
    report["metadata"]["name"] = json!(name);
    report["status"]["behaviors"] = json!([{ "namespace": "demo", "name": "varmor-demo-web", "run": run.start,
        "since": run.start, "until": until, "containers": 1, "fromStart": 1,
        "recorded": { "seccomp": { "syscalls": calls } } }]);
    server.put(&format!("{REPORT}{name}"), report);
}

fn run_of(profile: &Value) -> Option<ModelingRun> {
    profile["metadata"]["annotations"][MODELING]
        .as_str()?
        .parse()
        .ok()
}

fn begun(server: &FakeApiserver) -> ModelingRun {
    let profile = wait(server, PROFILE, |object| run_of(object).is_some());
    run_of(&profile).unwrap()
}

/// Gives the run another start, as if it had begun earlier. The policy has to be as long as the run.
fn begin_earlier(server: &FakeApiserver, start: u64) {
    let mut profile = server.get(PROFILE).unwrap();
    let run = run_of(&profile).unwrap();
    let earlier = ModelingRun { start, ..run };
    profile["metadata"]["annotations"][MODELING] = json!(earlier.to_string());
    server.put(PROFILE, profile);
}

fn calls(model: &Value) -> &Value {
    &model["data"]["dynamicResult"]["seccomp"]["syscalls"]
}

#[test]
fn a_policy_is_modelled_over_two_nodes_and_a_change_of_leader_and_is_completed() {
    let server = FakeApiserver::start().unwrap();
    put_node(&server, "n1");
    put_node(&server, "n2");
    let (first, said) = start(&server, with_models("one"));
    server.put(POLICY, modeling(1));
    let run = begun(&server);
    let now = u64::try_from(Timestamp::now().as_second()).unwrap();
    assert!(now - run.start < 20 && run.minutes == 1 && !run.is_over);
    let profile = server.get(PROFILE).unwrap();
    assert_eq!(
        profile["spec"]["behaviorModeling"],
        json!({ "enable": true, "duration": 1 })
    );

    put_report(&server, "n1", run, run.start + 5, &["bind"]);
    put_report(&server, "n2", run, run.start + 5, &["listen"]);
    let model = wait(&server, MODEL, |object| {
        calls(object).as_array().is_some_and(|all| all.len() == 2)
    });
    assert_eq!(
        (
            &model["storageType"],
            &model["metadata"]["annotations"][INSTALLATION]
        ),
        (&json!("CRDInternal"), &json!("tollgate"))
    );
    let model = wait(&server, MODEL, |object| {
        object["status"]["desiredNumber"] == 2
    });
    assert_eq!(
        (
            &model["status"]["ready"],
            &model["status"]["completedNumber"]
        ),
        (&json!(false), &json!(0))
    );
    let pending = wait(&server, POLICY, |object| {
        object["status"]["phase"] == "Modeling"
    });
    assert_eq!(ready(&pending)["reason"], "AllAgentsReady");

    // Another operator goes on, which has not seen the first reports: the nodes have restarted since.
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("two");
    server.put(LEASE, lease);
    first.join().unwrap().unwrap_err();
    over_for_the_next(&server, run);
    start(&server, with_models("two"));
    the_next_completes_it(&server, run);
    assert!(
        said.lock()
            .unwrap()
            .iter()
            .all(|text| !text.contains("cannot")),
        "{said:?}"
    );
}

/// Makes the run one that is over, as if it had begun earlier. One node has observed until the end.
fn over_for_the_next(server: &FakeApiserver, run: ModelingRun) {
    let end = run.end();
    begin_earlier(server, run.start - 60);
    let earlier = ModelingRun {
        start: run.start - 60,
        ..run
    };
    let mut model = server.get(MODEL).unwrap();
    model["metadata"]["annotations"][MODELING] = json!(earlier.to_string());
    server.put(MODEL, model);
    put_report(server, "n1", earlier, end, &["mount"]);
    put_report(server, "n2", earlier, earlier.start + 1, &[]);
}

fn the_next_completes_it(server: &FakeApiserver, run: ModelingRun) {
    let end = run.end();
    let earlier = ModelingRun {
        start: run.start - 60,
        ..run
    };
    let waiting = wait(server, POLICY, |object| {
        ready(object)["message"] == "1 of 2 nodes have not reported the whole run"
    });
    assert_eq!(
        (&ready(&waiting)["status"], &waiting["status"]["phase"]),
        (&json!("Unknown"), &json!("Modeling"))
    );
    put_report(server, "n2", earlier, end, &[]);
    let model = wait(server, MODEL, |object| object["status"]["ready"] == true);
    assert_eq!(calls(&model), &json!(["bind", "listen", "mount"]));
    assert_eq!(
        (
            &model["status"]["desiredNumber"],
            &model["status"]["completedNumber"]
        ),
        (&json!(2), &json!(2))
    );
    assert!(
        model["data"]["profile"]["seccomp"]
            .as_str()
            .unwrap()
            .contains("\"listen\"")
    );
    let done = wait(server, POLICY, |object| {
        object["status"]["phase"] == "Completed"
    });
    assert_eq!(
        (&done["status"]["ready"], &ready(&done)["status"]),
        (&json!(true), &json!("True"))
    );
    let profile = wait(server, PROFILE, |object| {
        run_of(object).is_some_and(|run| run.is_over)
    });
    assert_eq!(run_of(&profile).unwrap().start, earlier.start);
    // The model outlives its policy, and a policy of another mode may use it.
    server.remove(POLICY);
    wait(server, PROFILE, Value::is_null);
    assert!(server.get(MODEL).is_some());
}

#[test]
fn a_model_of_somebody_else_is_left_alone_and_without_the_option_the_mode_is_refused() {
    let server = FakeApiserver::start().unwrap();
    put_node(&server, "n1");
    server.put(
        "/apis/tollgate.dev/v1alpha1/nodereports/n1",
        report("100000", "b"),
    );
    let theirs = json!({ "metadata": { "name": "varmor-demo-web", "namespace": "demo" }, "storageType": "LocalDisk", "data": {} });
    server.put(MODEL, theirs.clone());
    let (first, _) = start(&server, with_models("one"));
    server.put(POLICY, modeling(1));
    let refused = wait(&server, POLICY, |object| {
        ready(object)["reason"] == "ModelExists"
    });
    assert_eq!(refused["status"]["phase"], "Error");
    let found = server.get(MODEL).unwrap();
    assert_eq!(
        (&found["storageType"], &found["status"]),
        (&theirs["storageType"], &Value::Null)
    );
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("two");
    server.put(LEASE, lease);
    first.join().unwrap().unwrap_err();
    server.remove(POLICY);
    start(&server, settings("two"));
    server.put(POLICY, modeling(1));
    let refused = wait(&server, POLICY, |object| {
        ready(object)["reason"] == "Forbidden"
    });
    assert!(
        ready(&refused)["message"]
            .as_str()
            .unwrap()
            .contains("not enabled")
    );
}
