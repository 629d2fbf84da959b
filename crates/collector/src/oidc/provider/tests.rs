use serde_json::json;

use super::*;

fn settings() -> OidcSettings {
    OidcSettings {
        issuer: "https://id.example/realm".to_owned(),
        client_id: "tollgate".to_owned(),
        client_secret: "secret".to_owned(),
        public_url: "https://fleet.example".to_owned(),
        scopes: vec!["openid".to_owned()],
        name_claim: "preferred_username".to_owned(),
        role_claim: "groups".to_owned(),
        roles: vec![
            ("sec".to_owned(), Scope::Admin),
            ("dev".to_owned(), Scope::Viewer),
            ("ops".to_owned(), Scope::Operator),
        ],
        authorities: None,
        report: |_| (),
    }
}

fn provider(change: impl FnOnce(&mut OidcSettings)) -> Provider {
    let mut settings = settings();
    change(&mut settings);
    Provider::new(settings).expect("they are good")
}

fn claims(value: Value) -> Claims {
    match value {
        Value::Object(claims) => claims,
        other => panic!("{other}"),
    }
}

#[test]
fn the_highest_role_counts_and_without_one_there_is_none() {
    let flat = provider(|_| ());
    for (groups, expected) in [
        (json!(["dev", "ops", "other"]), Some(Scope::Operator)),
        (json!(["dev", "sec"]), Some(Scope::Admin)),
        (json!("dev"), Some(Scope::Viewer)),
        (json!("dev ops"), None),
        (json!(["Dev", "sec ", "*"]), None),
        (json!([]), None),
        (json!([["sec"], {"sec": "sec"}, 1]), None),
        (json!({"sec": true}), None),
        (json!(true), None),
        (Value::Null, None),
    ] {
        let said = claims(json!({"groups": groups, "roles": ["sec"]}));
        assert_eq!(flat.scope(&said), expected, "{groups}");
    }
    assert_eq!(flat.scope(&Claims::new()), None);
    let nested = provider(|settings| settings.role_claim = "realm_access.roles".to_owned());
    let said = claims(json!({"realm_access": {"roles": ["ops"]}}));
    assert_eq!(nested.scope(&said), Some(Scope::Operator));
    let literal =
        claims(json!({"realm_access.roles": ["dev"], "realm_access": {"roles": ["sec"]}}));
    assert_eq!(nested.scope(&literal), Some(Scope::Viewer));
    assert_eq!(
        nested.scope(&claims(json!({"realm_access": ["sec"]}))),
        None
    );
}

#[test]
fn a_user_is_its_subject_at_its_issuer_and_has_a_name() {
    let user = |said: Value| provider(|_| ()).user(&claims(said));
    let ann = user(json!({"sub": "1", "preferred_username": "ann"})).expect("a user");
    let renamed = user(json!({"sub": "1", "preferred_username": "eve"})).expect("a user");
    let other = user(json!({"sub": "2", "preferred_username": "ann"})).expect("a user");
    assert_eq!(ann.identity, renamed.identity);
    assert_ne!(ann.identity, other.identity);
    assert_eq!((&*ann.name, ann.identity.len()), ("ann", 48));
    let elsewhere = provider(|settings| settings.issuer = "https://id.example".to_owned());
    let elsewhere = elsewhere.user(&claims(json!({"sub": "1", "preferred_username": "ann"})));
    assert_ne!(elsewhere.expect("a user").identity, ann.identity);
    for name in [
        json!(""),
        json!("a b"),
        json!("<b>"),
        json!("ä"),
        json!(1),
        json!("a\u{202e}"),
        Value::Null,
    ] {
        let refused = user(json!({"sub": "1", "preferred_username": name}));
        assert!(matches!(refused, Err(OidcError::Name { .. })), "{name}");
    }
}

/// Values of `email_verified` that do not say that it is; `None` for a token without.
fn unverified() -> [Option<Value>; 6] {
    [
        None,
        Some(json!(false)),
        Some(json!("false")),
        Some(json!("true")),
        Some(json!(1)),
        Some(Value::Null),
    ]
}

/// Returns the claims of an address.
fn with_email(verified: Option<Value>) -> Claims {
    let mut said = json!({"sub": "1", "preferred_username": "ann", "email": "boss@corp.example"});
    if let Some(verified) = verified {
        said["email_verified"] = verified;
    }
    claims(said)
}

#[test]
fn an_address_that_is_not_verified_names_nobody() {
    let by_email = provider(|settings| settings.name_claim = "email".to_owned());
    let name = |said: &Claims| by_email.user(said).map(|user| user.name);
    let boss = name(&with_email(Some(json!(true))));
    assert_eq!(boss.expect("a user"), "boss@corp.example");
    for verified in unverified() {
        let said = name(&with_email(verified.clone()));
        match verified {
            // Entra ID never says it.
            None => assert_eq!(said.expect("a user"), "1"),
            Some(_) => assert!(matches!(said, Err(OidcError::Token(_))), "{verified:?}"),
        }
    }
    // A subject is any text, and no name; it lets in whoever has a name from before.
    let mut odd = with_email(None);
    odd.insert("sub".to_owned(), json!("Zm9v+/=="));
    let said = name(&odd).expect("a user");
    assert!(said.starts_with("oidc-") && is_user_name(&said), "{said}");
}

#[test]
fn an_address_that_is_not_verified_gives_no_role() {
    let by_email = provider(|settings| {
        settings.role_claim = "email".to_owned();
        settings.roles = vec![("boss@corp.example".to_owned(), Scope::Admin)];
    });
    let boss = by_email.user(&with_email(Some(json!(true))));
    assert_eq!(boss.expect("a user").scope, Some(Scope::Admin));
    for verified in unverified() {
        let said = by_email.user(&with_email(verified.clone()));
        assert_eq!(said.expect("a user").scope, None, "{verified:?}");
    }
}

#[test]
fn a_provider_that_does_not_answer_is_left_alone_for_a_while() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("it listens");
    let provider = provider(|settings| settings.issuer = format!("http://{address}"));
    // Whoever asks finds the connection ended.
    let asked = std::thread::scope(|scope| {
        let all = scope.spawn(|| {
            let errors = [(); 5].map(|()| provider.endpoints().expect_err("no document"));
            errors.map(|error| error.to_string())
        });
        let mut asked = 0;
        while !all.is_finished() {
            asked += usize::from(listener.accept().is_ok());
            std::thread::sleep(Duration::from_millis(1));
        }
        let errors = all.join().expect("no panic");
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        asked
    });
    assert_eq!(asked, 1);
}

fn document() -> Value {
    json!({
        "issuer": "https://id.example/realm",
        "authorization_endpoint": "https://id.example/auth",
        "token_endpoint": "https://id.example/token",
        "jwks_uri": "https://id.example/keys",
    })
}

#[test]
fn a_document_of_another_issuer_or_without_tls_is_refused() {
    let issuer = "https://id.example/realm";
    let found = endpoints(issuer, &document()).expect("it is good");
    assert!(found.takes_basic && !found.names_issuer);
    for (member, value, why) in [
        ("issuer", json!("https://id.example"), "letter by letter"),
        (
            "issuer",
            json!("https://id.example/realm/"),
            "letter by letter",
        ),
        ("issuer", Value::Null, "no issuer"),
        (
            "token_endpoint",
            json!("http://id.example/token"),
            "no https URL",
        ),
        (
            "token_endpoint",
            json!("http://localhost/token"),
            "no https URL",
        ),
        ("jwks_uri", json!("file:///keys"), "no https URL"),
        (
            "authorization_endpoint",
            json!("javascript:alert(1)"),
            "no https URL",
        ),
        ("code_challenge_methods_supported", json!(["plain"]), "PKCE"),
        (
            "token_endpoint_auth_methods_supported",
            json!(["private_key_jwt"]),
            "secret",
        ),
    ] {
        let mut document = document();
        document[member] = value;
        let problem = endpoints(issuer, &document).expect_err(member);
        assert!(problem.contains(why), "{member}: {problem}");
    }
    let mut by_form = document();
    by_form["token_endpoint_auth_methods_supported"] = json!(["client_secret_post"]);
    assert!(!endpoints(issuer, &by_form).expect("it is good").takes_basic);
}

#[test]
fn settings_that_let_in_nobody_or_everybody_on_the_way_are_refused() {
    type Change = fn(&mut OidcSettings);
    let changes: [(Change, &str); 8] = [
        (|it| it.issuer = "http://id.example".to_owned(), "issuer"),
        (|it| it.issuer = "https://id.example?x".to_owned(), "issuer"),
        (
            |it| it.public_url = "http://fleet.example".to_owned(),
            "public URL",
        ),
        (
            |it| it.public_url = "https://fleet.example/".to_owned(),
            "public URL",
        ),
        (
            |it| it.public_url = "https://a@fleet.example".to_owned(),
            "public URL",
        ),
        (|it| it.client_secret.clear(), "client"),
        (|it| it.scopes = vec!["email".to_owned()], "scopes"),
        (|it| it.roles.clear(), "roles"),
    ];
    for (change, what) in changes {
        let mut settings = settings();
        change(&mut settings);
        let error = Provider::new(settings).err().expect(what).to_string();
        assert!(
            error.contains(what) && !error.contains("secret\""),
            "{error}"
        );
    }
}

#[test]
fn credentials_are_encoded_before_they_are_joined() {
    assert_eq!(encoded("a:b c%&=é"), "a%3Ab+c%25%26%3D%C3%A9");
    assert_eq!(encoded(""), "");
    let url = with_query("https://id.example/auth?a=b", &[("x", "&")]);
    assert_eq!(url, "https://id.example/auth?a=b&x=%26");
}

#[test]
fn an_attempt_is_used_once() {
    let provider = provider(|_| ());
    let (one, other) = (Attempt::begin("/"), Attempt::begin("/"));
    let (one, other) = (one.expect("random"), other.expect("random"));
    assert!(provider.use_up(&one) && provider.use_up(&other));
    assert!(!provider.use_up(&one));
}
