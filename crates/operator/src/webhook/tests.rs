//! Rounds of the keeper of certificates.

use apiserver::fake::FakeApiserver;
use serde_json::{Value, json};

use super::certificates::{Certificate, Certificates, Seconds, now};
use super::*;

const SECRET: &str = "/api/v1/namespaces/tollgate/secrets/tollgate-webhook";
const CONFIGURATIONS: [&str; 2] = [
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tollgate-webhook",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/tollgate-webhook",
];

const TIMES: Times = Times {
    lifetime: Duration::from_secs(3600),
    settle: Duration::from_secs(100),
};

fn made(now: Seconds) -> Certificate {
    Certificate::make(&["localhost".to_owned()], now, TIMES.lifetime).unwrap()
}

/// A cluster with a Secret of this data, whose configurations lead to a namespace.
fn cluster(data: Value, namespace: &str) -> (FakeApiserver, Keeper) {
    let server = FakeApiserver::start().unwrap();
    for path in CONFIGURATIONS {
        server.put(
            path,
            json!({ "metadata": { "name": "tollgate-webhook" }, "webhooks": [{ "name": "one",
                "clientConfig": { "service": { "namespace": namespace } } }] }),
        );
    }
    let mut secret = json!({ "metadata": { "name": "tollgate-webhook", "namespace": "tollgate" } });
    if !data.is_null() {
        secret["data"] = data;
    }
    server.put(SECRET, secret);
    let keeper = Keeper {
        client: Client::new(&server.access(), "tester").unwrap(),
        namespace: "tollgate".to_owned(),
        names: vec!["localhost".to_owned()],
        times: TIMES,
        presented: None,
    };
    (server, keeper)
}

fn known(server: &FakeApiserver) -> Certificates {
    Certificates::of_secret(&server.get(SECRET).unwrap())
}

#[test]
fn a_certificate_is_presented_only_a_while_after_api_servers_were_told() {
    let long_ago = now() - 2 * TIMES.settle.as_secs();
    let state = Certificates {
        current: Some(made(long_ago)),
        next: Some(made(long_ago)),
        before: None,
        since: long_ago,
    };
    // The configurations do not have the bundle: until now they refused it.
    let (server, mut keeper) = cluster(state.data(), "tollgate");
    let presented = ReplaceableCertificate::default();
    for _ in 0..3 {
        let begun = now();
        keeper.round(true, &presented).unwrap();
        let known = known(&server);
        assert_eq!((&known.current, &known.next), (&state.current, &state.next));
        assert!(known.since + 5 >= begun, "{} {begun}", known.since);
    }
    // Told long ago, it is presented.
    let mut secret = server.get(SECRET).unwrap();
    secret["data"] = state.data();
    server.put(SECRET, secret);
    keeper.round(true, &presented).unwrap();
    assert_eq!(known(&server).current, state.next);
}

#[test]
fn the_webhook_of_another_installation_is_left_alone() {
    let (server, mut keeper) = cluster(Value::Null, "another");
    let before = CONFIGURATIONS.map(|path| server.get(path));
    let presented = ReplaceableCertificate::default();
    for is_leader in [true, false] {
        let error = keeper.round(is_leader, &presented).unwrap_err();
        assert!(error.to_string().contains("namespace another"), "{error}");
    }
    assert_eq!(CONFIGURATIONS.map(|path| server.get(path)), before);
    assert_eq!(known(&server).current, None);
    let (server, mut keeper) = cluster(Value::Null, "tollgate");
    keeper.round(true, &presented).unwrap();
    assert!(known(&server).current.is_some());
    server.remove(SECRET);
    let error = keeper.round(true, &presented).unwrap_err();
    assert!(matches!(error, KeeperError::NoSecret), "{error}");
}
