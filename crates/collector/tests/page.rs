//! The page as browsers use it: logins, forms, and text of hostile senders.

mod started;
mod visitor;

use std::sync::Arc;

use collector::{Exception, first_link};
use serde_json::Value;
use store::Scope;

use self::started::Started as Fixture;
use self::visitor::{HOSTILE, PASSWORD, alert};

fn fixture() -> Fixture {
    started::start(|settings| settings.propose = Some(Arc::new(propose)))
}

/// Proposes what an attacker could have written, for the rule `known`.
fn propose(alert: &str) -> Result<Vec<Exception>, String> {
    let alert: Value = serde_json::from_str(alert).map_err(|error| error.to_string())?;
    if alert["rule"] != "known" {
        return Err("there is no such rule: <b>".to_owned());
    }
    let exception = |still_detected| Exception {
        condition: "proc.name = <i>".to_owned(),
        still_detected,
        file: "- rule: known\n  exceptions: <u>\n".to_owned(),
    };
    Ok(vec![
        exception(Some("another <program>".to_owned())),
        exception(None),
    ])
}

#[test]
fn no_text_of_a_sender_becomes_markup_or_moves_the_cursor() {
    let fixture = fixture();
    fixture.alerts(HOSTILE.map(|text| alert(text, text)).into());
    let browser = fixture.user("ann", Scope::Operator);
    for text in HOSTILE {
        let comment = browser.post("/groups/1/comment", &[("text", text)]);
        let assign = browser.post("/groups/1/assign", &[("to", text)]);
        assert_eq!((comment.status, assign.status), (303, 303));
    }
    let mut pages: Vec<String> = [
        "/",
        "/alerts?hidden=1",
        "/alerts?view=each",
        "/live",
        "/fleet",
        "/policies",
        "/rules",
    ]
    .map(str::to_owned)
    .into();
    pages.extend((1..=HOSTILE.len()).map(|id| format!("/alerts/{id}")));
    pages.extend((1..=HOSTILE.len()).map(|id| format!("/groups/{id}")));
    for text in HOSTILE {
        let query = [
            ("q", text),
            ("host", text),
            ("rule", text),
            ("program", text),
        ];
        let query = serde_urlencoded::to_string(query).expect("a query");
        pages.push(format!("/alerts?{query}"));
        let next = serde_urlencoded::to_string([("next", text)]).expect("a query");
        pages.push(format!("/login?{next}"));
    }
    for path in pages {
        let answer = browser.get(&path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let page = &answer.text;
        // Values of attributes stand in double quotes, in which a single one is a letter.
        for bad in [
            "<script>alert",
            "<img src=x",
            "<svg onload",
            "href=\"javascript:",
        ] {
            assert!(!page.contains(bad), "{path}: {bad}");
        }
        let is_bad = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2066}".contains(c);
        assert!(!page.contains(is_bad), "{path}: {page:?}");
        assert!(
            !page.contains(" style=\"") && !page.contains("<style"),
            "{path}"
        );
    }
}

#[test]
fn every_page_has_a_policy_that_allows_no_inline_script() {
    let fixture = fixture();
    let browser = fixture.user("ann", Scope::Admin);
    for path in [
        "/",
        "/alerts",
        "/violations",
        "/live",
        "/fleet",
        "/policies",
        "/rules",
        "/users",
        "/login",
        "/alerts/9",
        "/setup/x",
    ] {
        let answer = browser.get(path);
        let policy = answer.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{path}"
        );
        assert!(policy.contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    }
    for path in ["/static/style.css", "/static/live.js", "/static/icon.svg"] {
        assert_eq!(fixture.request("GET", path, &[], "").status, 200, "{path}");
    }
}

#[test]
fn a_stranger_sees_nothing_and_is_led_to_the_login() {
    let fixture = fixture();
    fixture.alerts(vec![alert("secret rule", "x")]);
    for path in [
        "/",
        "/alerts?q=x",
        "/alerts/1",
        "/groups/1",
        "/live",
        "/live/events",
        "/fleet",
        "/policies",
        "/rules",
        "/users",
        "/violations",
    ] {
        for cookie in [
            "",
            "tollgate=",
            "tollgate=tgs_guess",
            "tollgate=\"; DROP TABLE users",
        ] {
            let answer = fixture.request("GET", path, &[("Cookie", cookie)], "");
            assert_eq!(answer.status, 303, "{path}");
            assert!(
                answer.header("location").starts_with("/login?next=%2F"),
                "{path}"
            );
            assert!(!answer.text.contains("secret"), "{path}");
        }
    }
    let posts = [
        "/groups/1/acknowledge",
        "/groups/1/mute",
        "/users/invite",
        "/users/remove",
        "/logout",
    ];
    for path in posts {
        assert_eq!(
            fixture.form(path, &[], &[("token", "x")]).status,
            303,
            "{path}"
        );
    }
    assert!(
        fixture
            .store
            .audit(9)
            .expect("readable")
            .iter()
            .all(|entry| entry.actor == "test")
    );
}

#[test]
fn a_form_without_the_token_of_the_session_changes_nothing() {
    let fixture = fixture();
    fixture.alerts(vec![alert("r", "x")]);
    let ann = fixture.user("ann", Scope::Operator);
    let bob = fixture.user("bob", Scope::Operator);
    let cookie = [("Cookie", &*ann.cookie)];
    let send = |token: &str, extra: &[(&str, &str)]| {
        let headers: Vec<_> = cookie.iter().chain(extra).copied().collect();
        let form = [("token", token), ("acknowledged", "true")];
        fixture
            .form("/groups/1/acknowledge", &headers, &form)
            .status
    };
    assert_eq!(send("", &[]), 403);
    assert_eq!(send(&bob.token, &[]), 403);
    assert_eq!(send(&ann.token, &[("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(send(&ann.token, &[("Origin", "https://evil.example")]), 403);
    let json = [("Cookie", &*ann.cookie), ("Content-Type", "text/plain")];
    let body = format!("token={}&acknowledged=true", ann.token);
    let plain = fixture.request("POST", "/groups/1/acknowledge", &json, &body);
    assert_eq!(plain.status, 400);
    let groups = fixture
        .store
        .groups(&store::Filter::default())
        .expect("readable");
    assert_eq!(groups[0].acknowledged_by, None);
    assert_eq!(send(&ann.token, &[("Sec-Fetch-Site", "same-origin")]), 303);
    assert!(
        fixture
            .store
            .groups(&store::Filter::default())
            .expect("readable")
            .is_empty()
    );
}

#[test]
fn a_role_may_do_what_it_says_and_no_more() {
    let fixture = fixture();
    fixture.alerts(vec![alert("r", "x")]);
    let browsers = [
        fixture.user("ann", Scope::Viewer),
        fixture.user("bob", Scope::Operator),
        fixture.user("eve", Scope::Admin),
    ];
    // Path and form, and the status for a viewer, an operator and an administrator.
    let rows: [(&str, (&str, &str), [u16; 3]); 6] = [
        ("/groups/1/mute", ("for", "1h"), [403, 303, 303]),
        ("/groups/1/comment", ("text", "x"), [403, 303, 303]),
        ("/groups/99/comment", ("text", "x"), [403, 404, 404]),
        ("/groups/1/mute", ("for", "99y"), [403, 400, 400]),
        ("/users/invite", ("role", "admin"), [403, 403, 200]),
        ("/users/remove", ("name", "eve"), [403, 403, 400]),
    ];
    for (path, form, expected) in rows {
        let statuses = browsers
            .each_ref()
            .map(|browser| browser.post(path, &[form]).status);
        assert_eq!(statuses, expected, "{path} {form:?}");
    }
    let users = browsers
        .each_ref()
        .map(|browser| browser.get("/users").status);
    assert_eq!(users, [403, 403, 200]);
    // A cookie is no token of the API, and the other way round.
    let answer = browsers[2].get("/api/v1/alerts");
    assert_eq!(answer.status, 401);
    assert_eq!(
        browsers[2].post("/users/remove", &[("name", "ann")]).status,
        303
    );
    assert_eq!(browsers[0].get("/").status, 303, "her session has ended");
}

#[test]
fn the_first_link_makes_one_administrator() {
    let fixture = fixture();
    let link = first_link(&*fixture.store, "uid 0")
        .expect("a store")
        .expect("no user yet");
    assert_eq!(fixture.request("GET", &link, &[], "").status, 200);
    let form = |name: &str, password: &str, again: &str| {
        let form = [("name", name), ("password", password), ("again", again)];
        fixture.form(&link, &[], &form)
    };
    assert_eq!(form("ann", "short", "short").status, 400);
    assert_eq!(form("ann", PASSWORD, "other").status, 400);
    assert_eq!(form("<b>", PASSWORD, PASSWORD).status, 400);
    let made = form("ann", PASSWORD, PASSWORD);
    assert_eq!(made.status, 303, "{}", made.text);
    assert!(made.header("set-cookie").contains("HttpOnly"));
    assert_eq!(form("bob", PASSWORD, PASSWORD).status, 404);
    assert_eq!(fixture.request("GET", &link, &[], "").status, 404);
    let users = fixture.store.users().expect("readable");
    assert_eq!((users.len(), &users[0].scope), (1, &Scope::Admin));
    assert!(!users[0].password.contains(PASSWORD));
    assert_eq!(first_link(&*fixture.store, "uid 0").expect("a store"), None);
}

#[test]
fn guessing_a_password_waits_and_a_logout_ends_the_session() {
    let fixture = fixture();
    let ann = fixture.user("ann", Scope::Viewer);
    let login = |name: &str, password: &str| {
        let form = [
            ("name", name),
            ("password", password),
            ("next", "//evil.example"),
        ];
        fixture.form("/login", &[], &form)
    };
    for _ in 0..5 {
        assert_eq!(login("ann", "wrong password").status, 401);
    }
    assert_eq!(login("ann", PASSWORD).status, 429);
    assert_eq!(login("nobody", PASSWORD).status, 401);
    assert_eq!(ann.get("/").status, 200);
    let out = ann.post("/logout", &[]);
    assert_eq!((out.status, out.header("location")), (303, "/login"));
    assert_eq!(ann.get("/").status, 303);
}

#[test]
fn a_page_that_follows_gets_what_arrives() {
    use std::io::{BufRead, BufReader, Write};
    let fixture = fixture();
    let ann = fixture.user("ann", Scope::Viewer);
    let mut stream = std::net::TcpStream::connect(fixture.address).expect("it listens");
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .expect("a socket");
    write!(
        stream,
        "GET /live/events?after=0 HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n",
        ann.cookie
    )
    .expect("it is sent");
    fixture.alerts(vec![alert("arrives <b>", "x")]);
    let lines = BufReader::new(stream)
        .lines()
        .map(|line| line.expect("text"));
    let row = lines.into_iter().find(|line| line.starts_with("data: "));
    let row = row.expect("an event");
    assert!(
        row.contains("arrives &lt;b&gt;") && row.contains("/alerts/1"),
        "{row}"
    );
}

#[test]
fn an_exception_is_proposed_to_operators_or_the_reason_why_not() {
    let fixture = fixture();
    fixture.alerts(vec![alert("known", "x"), alert("other", "x")]);
    let ann = fixture.user("ann", Scope::Viewer);
    let bob = fixture.user("bob", Scope::Operator);
    assert!(!ann.get("/alerts/1").text.contains("Propose"));
    assert_eq!(ann.post("/alerts/1/exception", &[]).status, 403);
    assert_eq!(bob.post("/alerts/9/exception", &[]).status, 404);
    let page = bob.post("/alerts/1/exception", &[]).text;
    for part in [
        "exceptions: &lt;u&gt;",
        "another &lt;program&gt;",
        "silences the rule altogether",
    ] {
        assert!(page.contains(part), "{page}");
    }
    let page = bob.post("/alerts/2/exception", &[]).text;
    assert!(page.contains("no such rule: &lt;b&gt;"), "{page}");
}
