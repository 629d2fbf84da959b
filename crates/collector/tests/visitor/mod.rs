//! A browser that has logged in, and alerts of hostile senders.

#![allow(dead_code, reason = "not every test uses everything")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use collector::add_user;
use serde_json::json;
use store::{Batch, NewAlert, Record, Scope, Severity};
use ureq::Agent;

use super::started::Started;

pub(crate) const PASSWORD: &str = "correct horse battery";

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }
}

/// A browser that has logged in.
pub(crate) struct Browser<'f> {
    fixture: &'f Started,
    pub(crate) cookie: String,
    pub(crate) token: String,
}

impl Started {
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let client = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .new_agent();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_owned()).expect("a request");
        let mut answer = client.run(request).expect("it answers");
        Answer {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            text: answer.body_mut().read_to_string().expect("text"),
        }
    }

    pub(crate) fn form(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        form: &[(&str, &str)],
    ) -> Answer {
        let body = serde_urlencoded::to_string(form).expect("a form");
        let mut all = vec![("Content-Type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.request("POST", path, &all, &body)
    }

    pub(crate) fn user(&self, name: &str, scope: Scope) -> Browser<'_> {
        add_user(&*self.store, (name, PASSWORD), scope, "test").expect("it is added");
        let login = [("name", name), ("password", PASSWORD), ("next", "/fleet")];
        let answer = self.form("/login", &[], &login);
        assert_eq!((answer.status, answer.header("location")), (303, "/fleet"));
        let cookie = answer.header("set-cookie").split(';').next().expect("one");
        let mut browser = Browser {
            fixture: self,
            cookie: cookie.to_owned(),
            token: String::new(),
        };
        let page = browser.get("/fleet").text;
        let token = page.split("name=\"token\" value=\"").nth(1);
        let token = token.expect("a form").split('"').next().expect("a value");
        browser.token = token.to_owned();
        browser
    }

    /// Stores alerts as a sender.
    pub(crate) fn alerts(&self, alerts: Vec<NewAlert>) {
        let (token, _) = self.token(Scope::Agents("web".to_owned()));
        let batch = Batch {
            sender: self.store.direct_sender(token).expect("writable"),
            first: None,
            records: alerts.into_iter().map(|a| Record::Alert(a, None)).collect(),
            received_ns: 1,
        };
        let (sender, receiver) = channel();
        let done = Box::new(move |result| sender.send(result).expect("it waits"));
        self.store.append(batch, done).expect("not busy");
        receiver.recv().expect("an answer").expect("stored");
    }
}

impl Browser<'_> {
    pub(crate) fn get(&self, path: &str) -> Answer {
        let cookie = [("Cookie", &*self.cookie)];
        self.fixture.request("GET", path, &cookie, "")
    }

    pub(crate) fn post(&self, path: &str, form: &[(&str, &str)]) -> Answer {
        let mut all = vec![("token", &*self.token)];
        all.extend(form);
        self.fixture.form(path, &[("Cookie", &self.cookie)], &all)
    }

    /// Returns what a page that follows gets after this alert in an interval: a hundred rows at most.
    pub(crate) fn live_rows(&self, after: usize) -> String {
        let mut stream = TcpStream::connect(self.fixture.address).expect("it listens");
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("a socket");
        // An answer to HTTP/1.0 has no chunks, whose lengths would be between the lines.
        let head = format!("GET /live/events?after={after} HTTP/1.0\r\nHost: x");
        write!(stream, "{head}\r\nCookie: {}\r\n\r\n", self.cookie).expect("it reads");
        let lines = BufReader::new(stream).lines();
        let lines = lines.map(|line| line.expect("text"));
        let body = lines.skip_while(|line| !line.is_empty());
        let mut rows = String::new();
        for line in body {
            match line.split_once(": ") {
                Some(("data", row)) => rows.push_str(row),
                Some(("", "here")) => break,
                Some(("id", number)) => assert!(number.parse::<i64>().is_ok(), "{line:?}"),
                _ => {
                    let known = ["", ": begin", "event: alert"];
                    assert!(known.contains(&&*line), "an event has {line:?}");
                }
            }
        }
        rows
    }
}

pub(crate) fn alert(rule: &str, text: &str) -> NewAlert {
    let body = json!({
        "rule": rule, "priority": "Warning", "output": text, "hostname": text, "source": text, "tags": [text],
        "output_fields": {"proc.name": text, "fd.name": text, "proc.aname[2]": text, text: text},
    });
    NewAlert {
        time_ns: 1_700_000_000_000_000_000,
        severity: Severity::named("Warning").expect("a name"),
        rule: rule.to_owned(),
        host: text.to_owned(),
        program: text.to_owned(),
        object: text.to_owned(),
        message: text.to_owned(),
        body: body.to_string(),
    }
}

/// What attackers call their programs and files.
pub(crate) const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</title></textarea><svg onload=alert(1)>",
    "javascript:alert(1)",
    "=cmd|' /C calc'!A0",
    "\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}gpj.exe\u{2066}",
    "a\u{0}b\r\nSet-Cookie: x=y",
];
