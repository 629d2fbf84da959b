//! Logging in by an identity provider, and providers and strangers that lie.

mod browser;
mod issuer;
mod started;

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use collector::add_user;
use ring::hmac;
use ring::signature::KeyPair;
use serde_json::{Value, json};
use serve::Address;
use store::Scope;

use self::browser::{ATTEMPT, Answer, Fixture, fixture, fixture_of, settings};
use self::issuer::{CLIENT, Issuer, Key, Sign, encode, message, now_s};

const PASSWORD: &str = "correct horse battery";

/// Asserts that nobody has been let in, and says why.
fn refused(answer: &Answer, status: u16, why: &str) {
    assert_eq!(answer.status, status, "{why}: {}", answer.text);
    assert!(answer.text.contains(why), "{why}: {}", answer.text);
    assert_eq!(answer.cookie("tollgate"), None, "{why}");
}

#[test]
fn a_user_of_the_provider_logs_in_with_a_role() {
    let fixture = fixture();
    let page = fixture.get("/login?next=%2Falerts", "");
    let link = "/oidc/login?next=%2Falerts";
    assert!(page.text.contains(link), "{}", page.text);
    let attempt = fixture.begin("/fleet");
    let asked = |name: &str| attempt.asked[name].as_str();
    assert_eq!(asked("response_type"), "code");
    assert_eq!((asked("client_id"), asked("tenant")), (CLIENT, "1"));
    assert_eq!(asked("redirect_uri"), "https://fleet.example/oidc/callback");
    assert_eq!(asked("scope"), "openid groups");
    assert_eq!(asked("code_challenge_method"), "S256");
    let code = fixture.issuer.grant(&attempt.asked);
    let answer = fixture.come_back(&attempt, &code);
    assert_eq!((answer.status, answer.location()), (303, "/fleet"));
    let session = answer.cookie("tollgate").expect("a session");
    let ended = answer.headers.get_all("set-cookie").iter();
    let ended = ended.filter(|it| {
        it.to_str()
            .is_ok_and(|it| it.starts_with(&format!("{ATTEMPT}=; ")))
    });
    assert_eq!(ended.count(), 1, "the attempt is over");
    let page = fixture.get("/fleet", &session).text;
    assert!(page.contains("<b>ann</b>"), "{page}");
    let user = fixture
        .collector
        .store
        .user("ann")
        .expect("readable")
        .expect("a user");
    assert_eq!(
        (user.scope, &*user.created_by),
        (Scope::Operator, "OpenID Connect")
    );
}

#[test]
fn a_session_by_the_provider_has_its_role_alone_and_ends_with_the_logout() {
    let fixture = fixture();
    let session = fixture.session();
    let page = fixture.get("/fleet", &session).text;
    let user = fixture.collector.store.user("ann").expect("readable");
    let user = user.expect("a user");
    // A token of a program opens no page.
    let (_, token) = fixture.collector.token(Scope::Operator);
    assert!(!fixture.is_open(&format!("tollgate={token}")));
    // The role is no administrator's, and no password opens the account.
    assert_eq!(fixture.get("/users", &session).status, 403);
    for password in ["", &user.password, PASSWORD] {
        let form = serde_urlencoded::to_string([("name", "ann"), ("password", password)]);
        let answer = fixture.request("POST", "/login", "", &form.expect("a form"));
        refused(&answer, 401, "password is wrong");
    }
    let token = page
        .split("name=\"token\" value=\"")
        .nth(1)
        .expect("a form");
    let token = token.split('"').next().expect("a value");
    let out = fixture.request("POST", "/logout", &session, &format!("token={token}"));
    assert_eq!((out.status, out.location()), (303, "/login?left=1"));
    assert!(!fixture.is_open(&session));
    assert!(
        fixture
            .get("/login?left=1", "")
            .text
            .contains("href=\"/oidc/logout\"")
    );
    let leave = fixture.get("/oidc/logout", "");
    let expected = format!("{}/logout?client_id=tollgate&", fixture.issuer.issuer());
    assert!(
        leave.location().starts_with(&expected),
        "{}",
        leave.location()
    );
}

/// Replaces claims of an honest token.
fn with(changes: Value) -> Sign {
    Box::new(move |key, header, mut claims| {
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        key.token(&header, &claims)
    })
}

/// Returns tokens that are no good, each with what is said about it.
fn attacks() -> Vec<(&'static str, Sign)> {
    vec![
        (
            "another attempt",
            with(json!({"nonce": "of another attempt"})),
        ),
        ("another attempt", with(json!({"nonce": null}))),
        ("another client", with(json!({"aud": "other"}))),
        (
            "another client asked",
            with(json!({"aud": [CLIENT, "other"]})),
        ),
        (
            "another issuer",
            with(json!({"iss": "https://evil.example"})),
        ),
        ("expired", with(json!({"exp": now_s() - 61}))),
        ("future", with(json!({"iat": now_s() + 120}))),
        ("names nobody", with(json!({"sub": ""}))),
        (
            "names no user",
            with(json!({"preferred_username": "<script>"})),
        ),
        (
            "not allowed",
            Box::new(|_, _, claims| format!("{}.", message(&json!({"alg": "none"}), &claims))),
        ),
        (
            "not allowed",
            Box::new(|key, _, claims| {
                let message = message(&json!({"alg": "HS256", "kid": key.id}), &claims);
                let shared = hmac::Key::new(hmac::HMAC_SHA256, key.pair.public_key().as_ref());
                format!(
                    "{message}.{}",
                    encode(hmac::sign(&shared, message.as_bytes()))
                )
            }),
        ),
        (
            "signature is wrong",
            Box::new(|_, header, claims| Key::new("first").token(&header, &claims)),
        ),
        (
            "keys is the one",
            Box::new(|_, _, claims| {
                let key = Key::new("evil");
                key.token(&json!({"alg": "EdDSA", "kid": "evil"}), &claims)
            }),
        ),
        (
            "signature is wrong",
            Box::new(|key, header, mut claims| {
                let token = key.token(&header, &claims);
                claims["groups"] = json!(["ops", "dev"]);
                let (_, signature) = token.rsplit_once('.').expect("parts");
                format!("{}.{signature}", message(&header, &claims))
            }),
        ),
    ]
}

#[test]
fn a_token_that_is_forged_expired_or_for_somebody_else_lets_nobody_in() {
    let fixture = fixture();
    for (why, sign) in attacks() {
        fixture.issuer.state().sign = Some(sign);
        refused(&fixture.log_in(), 403, why);
        // The honest way goes on, and forgives the failure.
        fixture.issuer.state().sign = None;
        assert!(fixture.is_open(&fixture.session()));
    }
    assert_eq!(fixture.users(), ["ann"]);
}

#[test]
fn an_answer_belongs_to_the_browser_that_asked() {
    let fixture = fixture();
    let foreign = "not begun in this browser";
    let mine = fixture.begin("/fleet");
    let theirs = fixture.begin("/fleet");
    let code = fixture.issuer.grant(&theirs.asked);
    let state = theirs.asked["state"].as_str();
    // A link with an attacker's code and state, opened by somebody with no attempt, another one or an old one.
    let (_, rest) = theirs.cookie.split_once('.').expect("parts");
    let old = format!("{ATTEMPT}={}.{rest}", now_s() - 601);
    for cookie in ["", &format!("{ATTEMPT}="), &mine.cookie, &old] {
        let answer = fixture.come_back_with(cookie, &[("code", &code), ("state", state)]);
        refused(&answer, 400, foreign);
    }
    for said in [&[("code", &*code)][..], &[("code", &code), ("state", "")]] {
        refused(&fixture.come_back_with(&theirs.cookie, said), 400, foreign);
    }
    assert_eq!(
        fixture.issuer.state().exchanges,
        0,
        "the provider is not asked"
    );
    // An attacker's code in the attempt of somebody else: the provider notices by PKCE, else the nonce tells.
    refused(
        &fixture.come_back(&mine, &code),
        502,
        "does not answer as it should",
    );
    fixture.issuer.state().is_careless = true;
    refused(&fixture.come_back(&mine, &code), 403, "another attempt");
    let said = [
        ("code", &*code),
        ("state", state),
        ("iss", "https://evil.example"),
    ];
    refused(
        &fixture.come_back_with(&theirs.cookie, &said),
        403,
        "another provider",
    );
    let said = [("error", "<b>denied"), ("state", state)];
    let denied = fixture.come_back_with(&theirs.cookie, &said);
    refused(&denied, 403, "&lt;b&gt;denied");
    assert_eq!(fixture.users().len(), 0);
    assert_eq!(fixture.come_back(&theirs, &code).status, 303);
}

#[test]
fn an_answer_is_good_once_also_where_the_provider_takes_a_code_twice() {
    let fixture = fixture();
    fixture.issuer.state().is_careless = true;
    let attempt = fixture.begin("/fleet");
    let code = fixture.issuer.grant(&attempt.asked);
    assert_eq!(fixture.come_back(&attempt, &code).status, 303);
    let exchanges = fixture.issuer.state().exchanges;
    refused(&fixture.come_back(&attempt, &code), 403, "used already");
    let other = fixture.issuer.grant(&attempt.asked);
    refused(&fixture.come_back(&attempt, &other), 403, "used already");
    assert_eq!(fixture.issuer.state().exchanges, exchanges);
}

#[test]
fn a_login_leads_nowhere_else() {
    let fixture = fixture();
    for next in [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/a\r\nX: y",
        "",
    ] {
        let attempt = fixture.begin(next);
        let code = fixture.issuer.grant(&attempt.asked);
        let answer = fixture.come_back(&attempt, &code);
        assert_eq!((answer.status, answer.location()), (303, "/"), "{next:?}");
    }
    // Another path in the cookie is another attempt.
    let attempt = fixture.begin("/fleet");
    let code = fixture.issuer.grant(&attempt.asked);
    let (head, _) = attempt.cookie.rsplit_once('.').expect("parts");
    let cookie = format!("{head}.{}", encode("//evil.example"));
    let said = [("code", &*code), ("state", &attempt.asked["state"])];
    refused(
        &fixture.come_back_with(&cookie, &said),
        400,
        "not begun in this browser",
    );
}

#[test]
fn whoever_has_no_role_does_not_come_in_and_a_lost_one_ends_sessions() {
    let fixture = fixture();
    let groups = |groups: Value| fixture.issuer.state().claims["groups"] = groups;
    for none in [json!([]), json!(["Ops", "admin", "*"]), Value::Null] {
        groups(none);
        refused(&fixture.log_in(), 403, "gives you no role");
    }
    assert_eq!(fixture.users().len(), 0);
    groups(json!(["dev"]));
    let viewer = fixture.session();
    let user = || {
        fixture
            .collector
            .store
            .user("ann")
            .expect("readable")
            .expect("a user")
    };
    assert_eq!(user().scope, Scope::Viewer);
    groups(json!(["dev", "ops"]));
    let operator = fixture.session();
    assert_eq!(user().scope, Scope::Operator);
    assert!(!fixture.is_open(&viewer) && fixture.is_open(&operator));
    groups(json!(["other"]));
    refused(&fixture.log_in(), 403, "gives you no role");
    assert!(!fixture.is_open(&operator));
}

#[test]
fn the_name_of_another_user_opens_no_account() {
    let fixture = fixture();
    add_user(
        &*fixture.collector.store,
        ("root", PASSWORD),
        Scope::Admin,
        "test",
    )
    .expect("added");
    let claims = |sub: &str, name: &str| {
        let mut state = fixture.issuer.state();
        state.claims["sub"] = json!(sub);
        state.claims["preferred_username"] = json!(name);
    };
    claims("1", "root");
    refused(&fixture.log_in(), 403, "another user has your name");
    claims("1", "ann");
    let ann = fixture.session();
    claims("2", "ann");
    refused(&fixture.log_in(), 403, "another user has your name");
    // Who changes the name stays the user of before.
    claims("1", "root");
    assert!(fixture.is_open(&fixture.session()) && fixture.is_open(&ann));
    assert_eq!(fixture.users(), ["ann", "root"]);
}

#[test]
fn a_new_key_of_the_provider_is_found_and_an_old_one_is_forgotten() {
    let fixture = fixture();
    fixture.session();
    fixture.issuer.state().keys.push(Key::new("second"));
    fixture.session();
    let old = fixture.issuer.state().keys.remove(0);
    fixture.issuer.state().keys.push(Key::new("third"));
    fixture.session();
    let header = json!({"alg": "EdDSA", "kid": old.id});
    fixture.issuer.state().sign = Some(Box::new(move |_, _, claims| old.token(&header, &claims)));
    refused(&fixture.log_in(), 403, "keys is the one");
}

#[test]
fn a_provider_that_is_another_or_away_lets_nobody_in_and_passwords_go_on() {
    let issuer = Issuer::start();
    issuer.state().document = json!({"issuer": "https://evil.example"});
    let fixture = fixture_of(issuer);
    let answer = fixture.get("/oidc/login", "");
    refused(&answer, 502, "does not answer as it should");
    assert!(!answer.text.contains("evil.example"), "{}", answer.text);
    add_user(
        &*fixture.collector.store,
        ("bob", PASSWORD),
        Scope::Viewer,
        "test",
    )
    .expect("added");
    let form = serde_urlencoded::to_string([("name", "bob"), ("password", PASSWORD)]);
    let answer = fixture.request("POST", "/login", "", &form.expect("a form"));
    assert_eq!(answer.status, 303);
}

#[test]
fn the_guesses_of_one_attempt_wait_and_other_attempts_do_not() {
    let fixture = fixture();
    let attempt = fixture.begin("/");
    let answers = [(); 6].map(|()| fixture.come_back(&attempt, "guess").status);
    assert_eq!(answers, [502, 502, 502, 502, 502, 429]);
    // From the same address, or behind the same proxy.
    fixture.session();
}

/// Returns a collector that is reached by two addresses, and one for each.
fn of_two_addresses() -> (Fixture, SocketAddr, SocketAddr) {
    let issuer = Issuer::start();
    let settings = settings(&issuer);
    let collector = started::start(|it| {
        it.listen = Address::Tcp("[::]:0".to_owned());
        it.oidc = Some(settings);
    });
    let port = collector.address.port();
    let here = (Ipv4Addr::LOCALHOST, port).into();
    let elsewhere = (Ipv6Addr::LOCALHOST, port).into();
    (Fixture { issuer, collector }, here, elsewhere)
}

#[test]
fn guesses_of_an_address_wait_and_those_from_elsewhere_do_not_count() {
    let (mut fixture, here, elsewhere) = of_two_addresses();
    fixture.collector.address = here;
    // More logins than guesses are allowed.
    for _ in 0..60 {
        fixture.session();
    }
    let mut guesses = 0;
    while fixture.come_back(&fixture.begin("/"), "guess").status == 502 {
        guesses += 1;
        assert!(guesses < 200, "nothing stops them");
    }
    assert_eq!(guesses, 50);
    assert_eq!(fixture.log_in().status, 429);
    fixture.collector.address = elsewhere;
    fixture.session();
}

#[test]
fn the_cookie_of_an_attempt_is_for_tls_where_the_public_url_is() {
    for (public, begin, is_secure) in [
        ("https://fleet.example", "__Host-tollgate-login=", true),
        ("http://127.0.0.1:1", "tollgate-login=", false),
    ] {
        let issuer = Issuer::start();
        let mut settings = settings(&issuer);
        public.clone_into(&mut settings.public_url);
        // The collector has no TLS itself.
        let collector = started::start(|it| it.oidc = Some(settings));
        let fixture = Fixture { issuer, collector };
        let answer = fixture.get("/oidc/login", "");
        let cookie = answer.headers["set-cookie"].to_str().expect("text");
        assert!(cookie.starts_with(begin), "{cookie}");
        assert_eq!(cookie.contains("; Secure"), is_secure, "{cookie}");
    }
}

#[test]
fn people_who_leave_a_slow_provider_alone_do_not_stall_the_collector() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("it listens");
    let issuer = Issuer::start();
    let mut settings = settings(&issuer);
    settings.issuer = format!("http://{address}");
    let collector = started::start(|it| it.oidc = Some(settings));
    let fixture = Fixture { issuer, collector };
    let pause = || thread::sleep(Duration::from_millis(50));
    for _ in 0..16 {
        let mut stream = TcpStream::connect(fixture.collector.address).expect("it listens");
        let asked = "GET /oidc/login HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(asked.as_bytes()).expect("it reads");
        pause();
        drop(stream);
        pause();
    }
    // The store is asked for the session.
    let began = Instant::now();
    assert_eq!(fixture.get("/fleet", "tollgate=tgs_x").status, 303);
    assert!(began.elapsed() < Duration::from_secs(8), "{began:?}");
}
