//! Every route of the router, by who asks: the router itself says which there are.

mod started;
mod visitor;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use store::Scope;

use self::started::Started;
use self::visitor::{Answer, Browser, alert};

/// A method and a path, as the router has it.
type Route = (String, String);

/// Returns the path of a request.
fn filled(path: &str) -> String {
    let path = path.replace("{id}", "1").replace("{number}", "0");
    path.replace("{secret}", "none")
}

/// Returns the methods that the server has at a path: it names them when it refuses another one.
fn methods(started: &Started, path: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(started.address).expect("it listens");
    let path = filled(path);
    write!(
        stream,
        "BREW {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 405"), "{path}: {answer}");
    let allow = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("allow").then_some(value)
    });
    let names = allow.expect("the methods").split(',').map(str::trim);
    let names = names.filter(|name| *name != "HEAD");
    names.map(str::to_owned).collect()
}

/// Returns the routes of the interface for programs, and those of the page.
fn routes(started: &Started) -> (BTreeSet<Route>, BTreeSet<Route>) {
    let paths = collector::paths();
    let (mut programs, mut people) = (BTreeSet::new(), BTreeSet::new());
    for path in paths.programs.iter().chain(&paths.people) {
        for method in methods(started, path) {
            let is_of_both = paths.programs.contains(path) && paths.people.contains(path);
            let is_of_people = match is_of_both {
                true => method == "GET",
                false => paths.people.contains(path),
            };
            let routes = if is_of_people {
                &mut people
            } else {
                &mut programs
            };
            routes.insert((method, (*path).to_owned()));
        }
    }
    (programs, people)
}

/// Returns the OpenAPI document's operations.
fn operations(started: &Started) -> BTreeMap<Route, Value> {
    let answer = started.request("GET", "/api/v1/openapi.json", &[], "");
    let document: Value = serde_json::from_str(&answer.text).expect("JSON");
    let mut all = BTreeMap::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            all.insert((method.to_uppercase(), path.clone()), operation.clone());
        }
    }
    all
}

#[test]
fn the_openapi_document_has_every_route_for_programs_and_no_other() {
    let started = started::start(|_| {});
    let (programs, people) = routes(&started);
    let documented: BTreeSet<_> = operations(&started).into_keys().collect();
    assert_eq!(documented, programs);
    assert!(programs.len() > 20 && people.len() > 25, "{people:?}");
}

/// Checks what every answer says to a browser.
fn is_protected(answer: &Answer, what: &str) {
    let policy = answer.header("content-security-policy");
    assert!(policy.contains("default-src 'none'"), "{what}: {policy}");
    assert!(
        policy.contains("frame-ancestors 'none'"),
        "{what}: {policy}"
    );
    assert!(!policy.contains("unsafe"), "{what}: {policy}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff", "{what}");
}

/// Those who have a secret.
const SECRETS: [&str; 4] = [
    "a token of agents",
    "the secret of an agent",
    "a token of a viewer",
    "a token of an operator",
];

/// Returns who may do what the OpenAPI document says this of.
fn allowed(needs: &str) -> &'static [&'static str] {
    match needs {
        "nothing" => &SECRETS,
        "a token of agents" => &SECRETS[..1],
        "the secret of an agent" => &SECRETS[1..2],
        "a token of a viewer" => &SECRETS[2..],
        "a token of an operator" => &SECRETS[3..],
        other => panic!("{other}"),
    }
}

fn secrets(started: &Started) -> [(&'static str, String); 4] {
    let token = |scope| started.token(scope).1;
    let agents = token(Scope::Agents("a".to_owned()));
    let bearer = format!("Bearer {agents}");
    let headers = [("Authorization", &*bearer)];
    let answer = started.request("POST", "/api/v1/agents", &headers, r#"{"host":"h"}"#);
    let answer: Value = serde_json::from_str(&answer.text).expect("JSON");
    let agent = answer["secret"].as_str().expect("a secret").to_owned();
    let all = [agents, agent, token(Scope::Viewer), token(Scope::Operator)];
    let mut all = all.into_iter();
    SECRETS.map(|name| (name, all.next().expect("one each")))
}

#[test]
fn every_route_for_programs_is_for_the_secrets_that_the_document_names_and_takes_no_cookie() {
    let started = started::start(|_| {});
    let secrets = secrets(&started);
    let cookie = started.user("root", Scope::Admin).cookie;
    for ((method, path), operation) in operations(&started) {
        let needs = operation["description"].as_str().expect("who may");
        let needs = needs.trim_start_matches("Needs: ").trim_end_matches('.');
        let ask = |headers: &[(&str, &str)]| {
            let answer = started.request(&method, &filled(&path), headers, "");
            is_protected(&answer, &path);
            answer.status
        };
        let without = match needs {
            "nothing" => 200,
            _ => 401,
        };
        for headers in [
            &[][..],
            &[("Authorization", "Bearer tgt_none")],
            &[("Cookie", &*cookie)],
        ] {
            assert_eq!(ask(headers), without, "{method} {path} {headers:?}");
        }
        for (name, secret) in &secrets {
            let bearer = format!("Bearer {secret}");
            let status = ask(&[("Authorization", &bearer)]);
            let is_refused = matches!(status, 401 | 403);
            let expected = !allowed(needs).contains(name);
            assert_eq!(is_refused, expected, "{method} {path} {name}: {status}");
        }
    }
}

/// Who may see a page or send a form, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Least {
    /// Who has not logged in, too.
    Stranger,
    Viewer,
    Operator,
    Admin,
}

/// What a form has beside its token.
type Fields = &'static [(&'static str, &'static str)];

const PEOPLE: [(&str, &str, Least, Fields); 32] = [
    ("GET", "/", Least::Viewer, &[]),
    ("GET", "/alerts", Least::Viewer, &[]),
    ("GET", "/alerts/{id}", Least::Viewer, &[]),
    ("GET", "/captures/{id}", Least::Operator, &[]),
    ("GET", "/captures/{id}/file", Least::Operator, &[]),
    ("GET", "/fleet", Least::Viewer, &[]),
    ("GET", "/groups/{id}", Least::Viewer, &[]),
    ("GET", "/live", Least::Viewer, &[]),
    ("GET", "/live/events", Least::Viewer, &[]),
    ("GET", "/login", Least::Stranger, &[]),
    ("GET", "/oidc/callback", Least::Stranger, &[]),
    ("GET", "/oidc/login", Least::Stranger, &[]),
    ("GET", "/oidc/logout", Least::Stranger, &[]),
    ("GET", "/policies", Least::Viewer, &[]),
    ("GET", "/rollouts", Least::Viewer, &[]),
    ("GET", "/rules", Least::Viewer, &[]),
    ("GET", "/setup/{secret}", Least::Stranger, &[]),
    ("GET", "/static/icon.svg", Least::Stranger, &[]),
    ("GET", "/static/live.js", Least::Stranger, &[]),
    ("GET", "/static/style.css", Least::Stranger, &[]),
    ("GET", "/users", Least::Admin, &[]),
    ("GET", "/violations", Least::Viewer, &[]),
    ("POST", "/alerts/{id}/exception", Least::Operator, &[]),
    ("POST", "/captures", Least::Operator, &[("agent", "1")]),
    (
        "POST",
        "/groups/{id}/acknowledge",
        Least::Operator,
        &[("acknowledged", "true")],
    ),
    (
        "POST",
        "/groups/{id}/assign",
        Least::Operator,
        &[("to", "ann")],
    ),
    (
        "POST",
        "/groups/{id}/comment",
        Least::Operator,
        &[("text", "t")],
    ),
    (
        "POST",
        "/groups/{id}/mute",
        Least::Operator,
        &[("for", "1d")],
    ),
    ("POST", "/logout", Least::Viewer, &[]),
    (
        "POST",
        "/rollouts/back",
        Least::Operator,
        &[("class", "web"), ("selector", ""), ("bundle", "1")],
    ),
    ("POST", "/users/invite", Least::Admin, &[("role", "viewer")]),
    ("POST", "/users/remove", Least::Admin, &[("name", "nobody")]),
];

/// Forms of those who have not logged in, which have no token.
const STRANGERS: [(&str, Fields); 2] = [
    ("/login", &[("name", "n"), ("password", "p")]),
    (
        "/setup/{secret}",
        &[("name", "n"), ("password", "p"), ("again", "p")],
    ),
];

/// What tells that another site made the browser send a request.
const FOREIGN: [(&str, &str); 4] = [
    ("Origin", "https://evil.example"),
    ("Origin", "null"),
    ("Sec-Fetch-Site", "cross-site"),
    ("Sec-Fetch-Site", "same-site"),
];

/// A collector with something at each number of a path, and users.
fn fleet() -> Started {
    let started = started::start(|settings| {
        settings.propose = Some(std::sync::Arc::new(|_alert| Err("none".to_owned())));
    });
    started.alerts(vec![alert("r", "m")]);
    let agent = started.enrol();
    started.capture(agent, 1);
    started
}

#[test]
fn every_route_for_people_is_for_its_role() {
    let started = fleet();
    let (_, people) = routes(&started);
    let listed = PEOPLE.iter().map(|(method, path, ..)| (*method, *path));
    let strangers = STRANGERS.iter().map(|(path, _)| ("POST", *path));
    let listed: BTreeSet<Route> = listed
        .chain(strangers)
        .map(|(method, path)| (method.to_owned(), path.to_owned()))
        .collect();
    assert_eq!(people, listed, "what the router has, and who may use it");
    let roles = [
        (Least::Viewer, started.user("v", Scope::Viewer)),
        (Least::Operator, started.user("o", Scope::Operator)),
        (Least::Admin, started.user("a", Scope::Admin)),
    ];
    // The last one ends its session.
    let (ends, others): (Vec<_>, Vec<_>) = PEOPLE.iter().partition(|it| it.1 == "/logout");
    for (method, path, least, fields) in others.into_iter().chain(ends) {
        let (what, path) = (format!("{method} {path}"), filled(path));
        let stranger = started.form_or_page(method, &path, &[], fields);
        is_protected(&stranger, &what);
        let leads_away = |answer: &Answer| {
            answer.status == 303 && answer.header("location").starts_with("/login?next=")
        };
        assert_eq!(leads_away(&stranger), least > Least::Stranger, "{what}");
        for (role, browser) in &roles {
            if path == "/live/events" {
                // It goes on for ever; only who may begin it is of interest.
                continue;
            }
            let answer = browser.send(method, &path, fields);
            is_protected(&answer, &what);
            assert_eq!(answer.status == 403, *role < least, "{what} {role:?}");
            assert!(!leads_away(&answer), "{what} {role:?}");
            let is_served = answer.status < 500 && answer.status != 400;
            assert!(
                is_served || *role < least,
                "{what} {role:?}: {}",
                answer.text
            );
        }
    }
}

#[test]
fn no_form_is_taken_without_the_token_of_its_session_or_from_another_site() {
    let started = fleet();
    let browser = started.user("root", Scope::Admin);
    let other = started.user("other", Scope::Admin);
    let cookie = [("Cookie", &*browser.cookie)];
    let changing = PEOPLE.iter().filter(|(method, ..)| *method != "GET");
    let before = started.store.audit(1000).expect("readable").len();
    for (_, path, _, fields) in changing {
        let what = *path;
        let path = filled(path);
        let with = |token: &'static str| [&[("token", token)], *fields].concat();
        let without = started.form(&path, &cookie, fields);
        assert!(matches!(without.status, 400 | 403), "{what}");
        for wrong in ["", "x"] {
            assert_eq!(
                started.form(&path, &cookie, &with(wrong)).status,
                403,
                "{what}"
            );
        }
        let stolen = [&[("token", &*other.token)], *fields].concat();
        assert_eq!(started.form(&path, &cookie, &stolen).status, 403, "{what}");
        let own = [&[("token", &*browser.token)], *fields].concat();
        for foreign in FOREIGN {
            let answer = started.form(&path, &[cookie[0], foreign], &own);
            assert_eq!(answer.status, 403, "{what} {foreign:?}");
        }
        // The token of a form is no session.
        let location = started.form(&path, &[], &own);
        assert_eq!(location.status, 303, "{what}");
    }
    for (path, fields) in STRANGERS {
        for foreign in FOREIGN {
            let answer = started.form(&filled(path), &[foreign], fields);
            assert_eq!(answer.status, 403, "{path} {foreign:?}");
        }
    }
    let after = started.store.audit(1000).expect("readable").len();
    assert_eq!(before, after, "nothing was changed");
    assert_eq!(browser.get("/fleet").status, 200, "the session goes on");
}

impl Started {
    /// Asks for a page, or sends a form.
    fn form_or_page(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        fields: &[(&str, &str)],
    ) -> Answer {
        match method {
            "GET" => self.request("GET", path, headers, ""),
            _ => self.form(path, headers, fields),
        }
    }
}

impl Browser<'_> {
    fn send(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        match method {
            "GET" => self.get(path),
            _ => self.post(path, fields),
        }
    }
}
