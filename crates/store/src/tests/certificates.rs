//! Names of client certificates.

use super::*;
use crate::certificate::CertificateName;

for_each_database! {
    a_name_of_a_certificate_has_one_token_that_no_secret_opens,
}

fn a_name_of_a_certificate_has_one_token_that_no_secret_opens(fixture: &Fixture) {
    let store = &*fixture.store;
    let name = |class: &str, name: &str| CertificateName {
        class: class.to_owned(),
        name: name.to_owned(),
    };
    let of = |name: &CertificateName, hash: u8| {
        let token = store.certificate_token(name, [hash; 32]);
        token.expect("writable")
    };
    let web = name("web", "box-1");
    let token = of(&web, 11).expect("it is in force");
    assert_eq!(of(&web, 12), Some(token), "the second call adds nothing");
    let others = [name("web", "box-2"), name("db", "box-1")];
    let others = [of(&others[0], 13), of(&others[1], 14)];
    assert!(others[0] != others[1] && !others.contains(&Some(token)));
    // Not even the value behind the hash is a token's secret.
    for hash in [11, 12, 13] {
        assert_eq!(store.credential(&[hash; 32]).expect("readable"), None);
    }
    let agent = enrol(store, token, 21, "box-1");
    let expected = Credential::Agent {
        id: agent,
        host: "box-1".to_owned(),
        certificate: Some(web.clone()),
    };
    let found = store.credential(&[21; 32]).expect("readable");
    assert_eq!(found, Some(expected));
    // What comes without an enrolment has the name, too.
    let direct = store.direct_sender(token).expect("writable");
    let agents = store.agents().expect("readable");
    let direct = agents.iter().find(|agent| agent.id == direct);
    let direct = direct.expect("it is listed");
    assert_eq!((&*direct.host, &*direct.class), ("box-1", "web"));
    let tokens = store.tokens().expect("readable");
    let listed = tokens.iter().find(|it| it.id == token).expect("listed");
    assert_eq!(listed.certificate.as_deref(), Some("box-1"));
    assert_eq!(listed.created_by, "certificate web/box-1");
    assert!(store.revoke_token(token, "root").expect("writable"));
    assert_eq!(
        of(&web, 15),
        None,
        "a new certificate of the name is no help"
    );
    assert_eq!(store.credential(&[21; 32]).expect("readable"), None);
}
