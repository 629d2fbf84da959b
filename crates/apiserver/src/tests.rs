//! Tests with an API server in memory.

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use kinds::ObjectKey;
use serde_json::{Value, json};

use super::*;
use crate::fake::FakeApiserver;

fn ground() -> (FakeApiserver, Client) {
    let server = FakeApiserver::start().unwrap();
    let client = Client::new(&server.access(), "tester").unwrap();
    (server, client)
}

fn policies() -> Resource {
    Resource::of(kinds::crd::Definition::of_kind("VarmorPolicy").unwrap())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "demo".to_owned(),
        name: name.to_owned(),
    }
}

fn path(name: &str) -> String {
    policies().object_path(&key(name))
}

fn object(name: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": "demo" }, "spec": { "n": 1 } })
}

#[test]
fn paths_are_those_of_the_api() {
    let list = policies();
    assert_eq!(list.path(), "/apis/crd.varmor.org/v1beta1/varmorpolicies");
    assert_eq!(
        list.clone().in_namespace("demo").path(),
        "/apis/crd.varmor.org/v1beta1/namespaces/demo/varmorpolicies"
    );
    assert_eq!(
        path("web"),
        "/apis/crd.varmor.org/v1beta1/namespaces/demo/varmorpolicies/web"
    );
    let nodes = Resource::new("", "v1", "nodes");
    let node = ObjectKey {
        namespace: String::new(),
        name: "n1".to_owned(),
    };
    assert_eq!(nodes.object_path(&node), "/api/v1/nodes/n1");
}

#[test]
fn objects_are_written_read_and_deleted() {
    let (server, client) = ground();
    let list = policies();
    let missing = client.get(&list, &key("web")).unwrap_err();
    assert_eq!(missing.code(), Some(404));
    assert_eq!(
        client
            .apply_status(&list, &object("web"))
            .unwrap_err()
            .code(),
        Some(404),
        "a status makes no object"
    );
    client.apply(&list, &object("web")).unwrap();
    let status =
        json!({ "metadata": { "name": "web", "namespace": "demo" }, "status": { "ready": true } });
    client.apply_status(&list, &status).unwrap();
    let read = client.get(&list, &key("web")).unwrap();
    assert_eq!(
        (&read["spec"]["n"], &read["status"]["ready"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(
        client.create(&list, &object("web")).unwrap_err().code(),
        Some(409)
    );
    let mut stale = read.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    let error = client.replace(&list, &stale).unwrap_err();
    assert_eq!(error.code(), Some(409));
    assert!(error.to_string().contains("409 Conflict"), "{error}");
    client.replace(&list, &read).unwrap();
    let uid = read["metadata"]["uid"].as_str().unwrap();
    client.delete(&list, &key("web"), uid).unwrap();
    assert_eq!(server.get(&path("web")), None);
    assert!(
        server
            .requests()
            .contains(&format!("PATCH {}/status", path("web")))
    );
}

/// Watches in a thread; what happens comes out of the channel in short words.
fn watched(client: &Client, resource: Resource) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let client = client.clone();
    thread::spawn(move || {
        watch(&client, &resource, |change| {
            let words = match change {
                Change::Applied(object) => {
                    format!("+{}={}", object["metadata"]["name"], object["spec"]["n"])
                }
                Change::Deleted(key) => format!("-{key}"),
                Change::Listed => "listed".to_owned(),
                Change::Failed(error) => format!("!{}", error.code().unwrap_or_default()),
            };
            match sender.send(words.replace('"', "")) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
    });
    receiver
}

fn next(receiver: &Receiver<String>) -> String {
    receiver.recv_timeout(Duration::from_secs(10)).unwrap()
}

#[test]
fn a_watch_gives_what_is_there_and_then_each_change_over_several_connections() {
    let (server, client) = ground();
    server.put(&path("a"), object("a"));
    server.put(
        "/apis/crd.varmor.org/v1beta1/varmorclusterpolicies/other",
        object("other"),
    );
    let changes = watched(&client, policies());
    assert_eq!([next(&changes), next(&changes)], ["+a=1", "listed"]);
    for round in 0..4 {
        let name = format!("b{round}");
        server.put(&path(&name), object(&name));
        assert_eq!(next(&changes), format!("+{name}=1"));
        server.remove(&path(&name));
        assert_eq!(next(&changes), format!("-demo/{name}"));
        // Longer than the server keeps a watch open.
        thread::sleep(Duration::from_millis(200));
    }
    let lists = server
        .requests()
        .iter()
        .filter(|request| request.starts_with("GET"))
        .count();
    assert!(lists >= 3, "there were several connections");
    let mut changed = object("a");
    changed["spec"]["n"] = json!(2);
    server.put(&path("a"), changed);
    assert_eq!(
        next(&changes),
        "+a=2",
        "nothing was listed again in between"
    );
}

#[test]
fn after_an_expired_version_objects_that_are_gone_are_given_as_deleted() {
    let (server, client) = ground();
    for name in ["a", "b"] {
        server.put(&path(name), object(name));
    }
    let changes = watched(&client, policies());
    assert_eq!(
        [next(&changes), next(&changes), next(&changes)],
        ["+a=1", "+b=1", "listed"]
    );
    // The watch may hear of the deletion before it expires.
    server.fail(3);
    thread::sleep(Duration::from_millis(400));
    server.remove(&path("b"));
    server.expire();
    let mut heard = Vec::new();
    // That the server answers again is told before the list ends, too.
    while !heard.ends_with(&["-demo/b".to_owned(), "listed".to_owned()]) {
        heard.push(next(&changes));
    }
    let failures = heard.iter().filter(|word| *word == "!503").count();
    assert!((1..=3).contains(&failures), "{heard:?}");
}

#[test]
fn long_lists_come_in_pages() {
    let (server, client) = ground();
    for number in 0..1201 {
        let name = format!("p{number:04}");
        server.put(&path(&name), object(&name));
    }
    let mut names = Vec::new();
    let version = client.list(&policies(), |object| {
        names.push(object["metadata"]["name"].clone())
    });
    assert_eq!(version.unwrap(), "1201");
    assert_eq!(names.len(), 1201);
    assert_eq!(names.last(), Some(&json!("p1200")));
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn credentials_are_not_sent_in_the_clear() {
    let access = |server: &str, authority: Option<&str>| Access {
        server: server.to_owned(),
        authority: authority.map(|path| Credential::File(path.into())),
        ..Access::default()
    };
    for (server, problem) in [
        ("http://10.0.0.1:80", "only for a server on loopback"),
        (
            "http://127.0.0.1.example:80",
            "only for a server on loopback",
        ),
        ("10.0.0.1", "has to begin with https://"),
        ("https://10.0.0.1", "needs a file of authorities"),
    ] {
        let error = Client::new(&access(server, None), "x")
            .unwrap_err()
            .to_string();
        assert!(error.contains(problem), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    let error = Client::new(&access("https://h:1", file.to_str()), "x").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read {}", file.display()));
    std::fs::write(&file, "no certificate").unwrap();
    let error = Client::new(&access("https://h:1", file.to_str()), "x").unwrap_err();
    assert!(error.to_string().contains("no PEM certificate"), "{error}");
}

#[test]
fn a_token_is_read_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let server = FakeApiserver::start().unwrap();
    let access = Access {
        token: Some(Credential::File(token.clone())),
        ..server.access()
    };
    let client = Client::new(&access, "x").unwrap();
    let error = client.get(&policies(), &key("a")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot read {}", token.display())
    );
    std::fs::write(&token, "t\n").unwrap();
    assert_eq!(
        client.get(&policies(), &key("a")).unwrap_err().code(),
        Some(404)
    );
}
