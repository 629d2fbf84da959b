//! Whatever senders write, no page has it as markup: a corpus of what attackers write, in every text that a sender can send.

mod attacks;
mod markup;
mod started;
mod visitor;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use store::{Assignment, Gate, NewBundle, Scope, Target};

use self::attacks::{CORPUS, alert, hostile_collector, inventory, mark, text};
use self::started::Started;
use self::visitor::Browser;

/// Sends a request of a program, and returns the answer.
fn send(started: &Started, secret: &str, what: (&str, &str), body: &str) -> Value {
    let bearer = format!("Bearer {secret}");
    let headers = [("Authorization", &*bearer), ("Tollgate-Sequence", "1")];
    let answer = started.request(what.0, what.1, &headers, body);
    assert!(answer.status < 500, "{what:?}: {}", answer.text);
    serde_json::from_str(&answer.text).unwrap_or(Value::Null)
}

/// Sends a text as every kind of sender. Returns the number of the capture around an alert.
fn attack(started: &Started, operator: &str, number: usize) -> i64 {
    let text = text(number);
    let (_, token) = started.token(Scope::Agents(text.clone()));
    let host = json!({"host": text}).to_string();
    let enrolled = send(started, &token, ("POST", "/api/v1/agents"), &host);
    let secret = enrolled["secret"].as_str().expect("a secret").to_owned();
    let mut own = inventory(&text);
    let answer = send(
        started,
        &secret,
        ("PUT", "/api/v1/inventory"),
        &own.to_string(),
    );
    assert_eq!(answer["agent"], enrolled["agent"], "{answer}");
    // Labels of another form than they have are refused, with what is told beside them.
    own["labels"] = json!({"tier": text, &*text: "x"});
    send(
        started,
        &secret,
        ("PUT", "/api/v1/inventory"),
        &own.to_string(),
    );
    let lines = [
        alert(&text, &text),
        alert("Policy violation", &text),
        json!({"loss": "unwatched", "count": 3, "detail": text}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let receipt = send(started, &secret, ("POST", "/api/v1/batches"), &lines);
    assert_eq!(receipt["stored"], 3, "{receipt}");
    let direct = alert(&text, &text).to_string();
    send(started, &token, ("POST", "/"), &direct);

    let asked = json!({"agent": enrolled["agent"], "seconds": 1}).to_string();
    let asked = send(started, operator, ("POST", "/api/v1/captures"), &asked);
    if let Some(id) = asked["capture"].as_i64() {
        let end = json!({"chunks": 0, "events": 0, "lost": 0, "failure": text}).to_string();
        let done = format!("/api/v1/captures/{id}/done");
        send(started, &secret, ("PUT", &done), &end);
    }
    let around = json!({"rule": text, "time_ns": 1, "before_ms": 1, "after_ms": 1}).to_string();
    let begun = send(
        started,
        &secret,
        ("POST", "/api/v1/captures/alert"),
        &around,
    );
    let id = begun["capture"].as_i64().expect("a number");
    let chunk = format!("/api/v1/captures/{id}/chunks/0");
    send(started, &secret, ("PUT", &chunk), &text);
    let end = json!({"chunks": 1, "events": 1, "lost": 0, "failure": null}).to_string();
    let done = format!("/api/v1/captures/{id}/done");
    send(started, &secret, ("PUT", &done), &end);
    bundle(started, number);
    id
}

/// Adds a bundle that has a text wherever there is one, and hands it out.
fn bundle(started: &Started, number: usize) {
    let text = text(number);
    let new = NewBundle {
        version: u64::try_from(number).expect("small") + 1,
        digest: text.clone(),
        key: text.clone(),
        text: text.clone(),
        actor: text.clone(),
    };
    let bundle = started.store.add_bundle(new).expect("writable");
    let assignment = Assignment {
        target: Target::class(&text),
        priority: 0,
        bundle,
        percent: 100,
        gate: Gate::default(),
        actor: text,
    };
    started.store.assign(assignment).expect("writable");
}

/// Returns the addresses of all pages, with this number in their paths.
fn pages(number: i64) -> impl Iterator<Item = String> {
    // These are no pages, or go on for ever.
    let others = [
        "/live/events",
        "/captures/{id}/file",
        "/users/",
        "/static/",
        "/oidc/",
    ];
    let paths = collector::paths().people.into_iter();
    let paths = paths.filter(move |path| !others.iter().any(|it| path.starts_with(it)));
    paths.map(move |path| {
        let path = path.replace("{id}", &number.to_string());
        path.replace("{secret}", "none")
    })
}

/// Returns true for an attribute that does nothing, which a page may have by its size or its filter.
fn is_inert(name: &str) -> bool {
    let attribute = name.split_once(' ').map_or("", |(_, attribute)| attribute);
    let inert = ["class", "colspan", "datetime", "for", "id", "rel", "title"];
    inert.contains(&attribute) || attribute.starts_with("aria-") || attribute.starts_with("data-")
}

/// Checks that a page has nothing but what its templates write. Returns the marks of texts that it shows.
fn check(path: &str, page: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let read = markup::read(page);
    let new = read.names.difference(names);
    let new: Vec<_> = new.filter(|name| !is_inert(name)).collect();
    assert!(new.is_empty(), "{path} has {new:?}: {page}");
    for name in &read.names {
        let attribute = name.split_once(' ').map_or("", |(_, attribute)| attribute);
        assert!(
            !attribute.starts_with("on") && attribute != "style",
            "{path}: {name}"
        );
    }
    for (name, link) in &read.links {
        if name == "content" {
            assert!(!link.contains("url="), "{path}: {link}");
            continue;
        }
        let is_here = link.starts_with('#')
            || link.starts_with('/') && !link.starts_with("//") && !link.starts_with("/\\");
        assert!(is_here || link.is_empty(), "{path}: {name}={link:?}");
    }
    let controls = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let is_hidden = matches!(
            c,
            '\u{200b}' | '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{e0001}'
        );
        c.is_control() && c != '\n' || turns || is_hidden
    };
    let bad = page.chars().find(|c| controls(*c));
    assert_eq!(bad, None, "{path}: {page:?}");
    let marks = (0..CORPUS.len()).map(mark);
    marks.filter(|mark| read.text.contains(&**mark)).collect()
}

/// Returns what the pages of a fleet consist of whose senders write nothing but letters.
fn own_names() -> BTreeSet<String> {
    let started = hostile_collector();
    let (_, operator) = started.token(Scope::Operator);
    let browser = started.user("root", Scope::Admin);
    let word = "word";
    let (_, token) = started.token(Scope::Agents(word.to_owned()));
    let host = json!({"host": word}).to_string();
    let enrolled = send(&started, &token, ("POST", "/api/v1/agents"), &host);
    let secret = enrolled["secret"].as_str().expect("a secret").to_owned();
    let mut own = inventory(word);
    own["labels"] = json!({"tier": "db"});
    own["rules"] = json!("sha256:ab");
    send(
        &started,
        &secret,
        ("PUT", "/api/v1/inventory"),
        &own.to_string(),
    );
    let lines = [
        alert(word, word),
        alert("Policy violation", word),
        json!({"loss": "unwatched", "count": 3, "detail": word}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    send(&started, &secret, ("POST", "/api/v1/batches"), &lines);
    let id = attack_with_letters(&started, &secret, &operator, &enrolled);
    let mut names = BTreeSet::new();
    for number in 1..=id.max(3) {
        for path in pages(number) {
            let answer = browser.get(&path);
            names.extend(markup::read(&answer.text).names);
        }
    }
    for path in [
        "/captures/2?filter=x",
        "/alerts?q=nothing",
        "/alerts?view=each",
        "/login?next=/x",
    ] {
        names.extend(markup::read(&browser.get(path).text).names);
    }
    triage(&browser, word);
    for path in [
        "/groups/1",
        "/groups/2",
        "/alerts",
        "/alerts?acknowledged=true",
        "/users",
    ] {
        names.extend(markup::read(&browser.get(path).text).names);
    }
    let exception = browser.post("/alerts/1/exception", &[]);
    names.extend(markup::read(&exception.text).names);
    names
}

/// Sends captures of an agent that writes letters. Returns the number of the last one.
fn attack_with_letters(started: &Started, secret: &str, operator: &str, enrolled: &Value) -> i64 {
    let asked = json!({"agent": enrolled["agent"], "seconds": 1}).to_string();
    send(started, operator, ("POST", "/api/v1/captures"), &asked);
    let around = json!({"rule": "word", "time_ns": 1, "before_ms": 1, "after_ms": 1}).to_string();
    let begun = send(started, secret, ("POST", "/api/v1/captures/alert"), &around);
    let id = begun["capture"].as_i64().expect("a number");
    let end = json!({"chunks": 1, "events": 1, "lost": 1, "failure": null}).to_string();
    send(
        started,
        secret,
        ("PUT", &format!("/api/v1/captures/{id}/chunks/0")),
        "word",
    );
    send(
        started,
        secret,
        ("PUT", &format!("/api/v1/captures/{id}/done")),
        &end,
    );
    let new = NewBundle {
        version: 1,
        digest: "word".to_owned(),
        key: "word".to_owned(),
        text: "word".to_owned(),
        actor: "word".to_owned(),
    };
    let bundle = started.store.add_bundle(new).expect("writable");
    let assignment = Assignment {
        target: Target::class("word"),
        priority: 0,
        bundle,
        percent: 50,
        gate: Gate::default(),
        actor: "word".to_owned(),
    };
    started.store.assign(assignment).expect("writable");
    id
}

/// Writes a text wherever an operator can.
fn triage(browser: &Browser<'_>, text: &str) {
    let note = [("acknowledged", "true"), ("note", text)];
    let forms: [(_, &[(&str, &str)]); 3] = [
        ("/groups/1/comment", &[("text", text)]),
        ("/groups/1/assign", &[("to", text)]),
        ("/groups/2/acknowledge", &note),
    ];
    for (path, form) in forms {
        let answer = browser.post(path, form);
        assert_eq!(answer.status, 303, "{path} {text:?}: {}", answer.text);
    }
}

#[test]
fn no_text_of_a_sender_becomes_markup_on_any_page() {
    let names = own_names();
    let started = hostile_collector();
    let (_, operator) = started.token(Scope::Operator);
    let browser = started.user("root", Scope::Admin);
    let captures = (0..CORPUS.len()).map(|number| attack(&started, &operator, number));
    // Each text has three alerts, and at most as many captures and groups.
    let last = i64::try_from(3 * CORPUS.len()).expect("small");
    assert!(captures.max().expect("some") <= last);
    let mut showing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for number in 1..=last {
        // Lists are the same for each number.
        let of_number = |path: &String| number == 1 || path.contains(|c: char| c.is_ascii_digit());
        for path in pages(number).filter(of_number) {
            let answer = browser.get(&path);
            assert!(answer.status < 500, "{path}: {}", answer.text);
            let marks = check(&path, &answer.text, &names);
            let kind: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
            showing.entry(kind).or_default().extend(marks);
        }
    }
    // More alerts than a hundred are left out of an interval.
    for after in [0, 100] {
        let marks = check("/live/events", &browser.live_rows(after), &names);
        let shown = showing.entry("/live/events".to_owned());
        shown.or_default().extend(marks);
    }
    let all: BTreeSet<String> = (0..CORPUS.len()).map(mark).collect();
    for kind in ["/alerts/", "/captures/", "/groups/", "/live/events"] {
        let shown = showing.get(kind).into_iter().flatten().cloned().collect();
        let missing: Vec<_> = all.difference(&shown).collect();
        assert!(missing.is_empty(), "{kind} lacks {missing:?}");
    }
    let expected = [
        "/",
        "/alerts",
        "/fleet",
        "/policies",
        "/rollouts",
        "/rules",
        "/violations",
    ];
    for path in expected {
        let shows = showing.get(path).is_some_and(|marks| !marks.is_empty());
        assert!(shows, "{path} shows no text: {showing:?}");
    }
}

#[test]
fn no_text_of_a_visitor_or_of_an_address_becomes_markup() {
    let names = own_names();
    let started = hostile_collector();
    let (_, operator) = started.token(Scope::Operator);
    let browser = started.user("root", Scope::Admin);
    let captures: Vec<_> = (0..3)
        .map(|number| attack(&started, &operator, number))
        .collect();
    let capture = format!("/captures/{}", captures[0]);
    let queried = [
        ("/alerts", "q"),
        ("/alerts", "rule"),
        ("/alerts", "host"),
        ("/alerts", "program"),
        ("/alerts", "severity"),
        ("/alerts", "range"),
        ("/alerts", "view"),
        ("/violations", "host"),
        ("/violations", "q"),
        ("/live", "severity"),
        ("/login", "next"),
        ("/login", "left"),
        (&*capture, "filter"),
        (&*capture, "after"),
        ("/", "range"),
        ("/fleet", "x"),
        ("/no/such/page", "x"),
    ];
    let mut shown = BTreeSet::new();
    for number in 0..CORPUS.len() {
        let text = text(number);
        for (path, name) in queried {
            let query = serde_urlencoded::to_string([(name, &*text)]).expect("a query");
            let answer = browser.get(&format!("{path}?{query}"));
            assert!(answer.status < 500, "{path} {name}: {}", answer.text);
            if answer.header("content-type").starts_with("text/html") {
                shown.extend(check(path, &answer.text, &names));
            } else {
                assert!(
                    answer
                        .header("content-type")
                        .starts_with("application/json")
                        || answer.status == 400
                );
            }
            // None of it becomes a header.
            assert!(answer.header("set-cookie").is_empty(), "{path} {name}");
        }
        triage(&browser, &text);
        for path in ["/groups/1", "/groups/2", "/alerts?view=each", "/users"] {
            let marks = check(path, &browser.get(path).text, &names);
            let is_stored = !path.starts_with("/groups/") || marks.contains(&mark(number));
            assert!(is_stored, "{path} lacks {text:?}: {marks:?}");
            shown.extend(marks);
        }
        let exception = browser.post("/alerts/1/exception", &[]);
        check("/alerts/1/exception", &exception.text, &names);
    }
    assert_eq!(shown.len(), CORPUS.len(), "{shown:?}");
}

#[test]
fn what_is_no_utf_8_leaves_whole_pages() {
    let started = hostile_collector();
    let (_, token) = started.token(Scope::Agents("web".to_owned()));
    let host = json!({"host": "h"}).to_string();
    let enrolled = send(&started, &token, ("POST", "/api/v1/agents"), &host);
    let secret = enrolled["secret"].as_str().expect("a secret").to_owned();
    let names = own_names();
    let broken: [&[u8]; 6] = [
        b"\xff\xfe<script>alert(1)</script>",
        b"\xc0\xbcscript\xc0\xbe",
        b"\xed\xa0\xbd",
        b"\xf8\x88\x80\x80\x80",
        b"\xe2\x80",
        b"\x80<img src=x onerror=alert(1)>",
    ];
    let requests = [
        ("POST", "/", &token),
        ("POST", "/v1/logs", &token),
        ("POST", "/api/v1/agents", &token),
        ("POST", "/api/v1/batches", &secret),
        ("PUT", "/api/v1/inventory", &secret),
        ("POST", "/api/v1/captures/alert", &secret),
        ("POST", "/login", &secret),
    ];
    for text in broken {
        for (method, path, secret) in requests {
            for (before, after) in [
                (
                    &b"{\"rule\": \"r\", \"priority\": \"Error\", \"host\": \"h\", \"output\": \""
                        [..],
                    &b"\"}"[..],
                ),
                (b"", b""),
                (b"name=", b"&password=x"),
            ] {
                let body = [before, text, after].concat();
                let status = raw(&started, (method, path), secret, &body);
                assert!((200..500).contains(&status), "{path}: {status}");
            }
        }
    }
    for path in [
        "/%ff%3Cscript%3E",
        "/alerts?q=%ff%c0%bc",
        "/alerts/%ff",
        "/setup/%ff",
        "/captures/1?filter=%ed%a0%bd",
    ] {
        let status = raw(&started, ("GET", path), "", b"");
        assert!((200..500).contains(&status), "{path}: {status}");
    }
    let browser = started.user("root", Scope::Admin);
    for number in 1..=3 {
        for path in pages(number) {
            // Text that is no UTF-8 would not be read.
            let answer = browser.get(&path);
            check(&path, &answer.text, &names);
        }
    }
}

/// Sends a request, and returns the status.
fn raw(started: &Started, (method, path): (&str, &str), secret: &str, body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(started.address).expect("it listens");
    let kind = match path {
        "/login" => "application/x-www-form-urlencoded",
        _ => "application/json",
    };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n\
         Tollgate-Sequence: 1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).expect("a status");
    status.parse().expect("a number")
}
