//! A collector with a provider, and a browser.

use std::collections::BTreeMap;

use collector::OidcSettings;
use store::Scope;
use ureq::Agent;

use super::issuer::{CLIENT, Issuer, SECRET};
use super::started::{self, Started};

/// Cookie of an attempt: the public URL has TLS, be it that of a proxy.
pub(crate) const ATTEMPT: &str = "__Host-tollgate-login";

pub(crate) struct Fixture {
    pub(crate) issuer: Issuer,
    pub(crate) collector: Started,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn location(&self) -> &str {
        let value = self.headers.get("location");
        value.map_or("", |value| value.to_str().expect("text"))
    }

    /// Returns the cookie of this name that it sets, with its name; `None` if it sets none, or ends it.
    pub(crate) fn cookie(&self, name: &str) -> Option<String> {
        let all = self.headers.get_all("set-cookie").iter();
        let pairs = all.map(|value| value.to_str().expect("text").split(';').next());
        let found = pairs.flatten().find(|pair| {
            let value = pair
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(|value| !value.is_empty())
        });
        found.map(str::to_owned)
    }
}

/// An attempt to log in, as a browser and the provider have it.
pub(crate) struct Attempt {
    pub(crate) cookie: String,
    pub(crate) asked: BTreeMap<String, String>,
}

/// Returns how a collector is configured for a provider.
pub(crate) fn settings(issuer: &Issuer) -> OidcSettings {
    OidcSettings {
        issuer: issuer.issuer(),
        client_id: CLIENT.to_owned(),
        client_secret: SECRET.to_owned(),
        public_url: "https://fleet.example".to_owned(),
        scopes: vec!["openid".to_owned(), "groups".to_owned()],
        name_claim: "preferred_username".to_owned(),
        role_claim: "groups".to_owned(),
        roles: vec![
            ("ops".to_owned(), Scope::Operator),
            ("dev".to_owned(), Scope::Viewer),
        ],
        authorities: None,
        report: |_| (),
    }
}

/// Starts a collector for a provider.
pub(crate) fn fixture_of(issuer: Issuer) -> Fixture {
    let settings = settings(&issuer);
    let collector = started::start(|it| it.oidc = Some(settings));
    Fixture { issuer, collector }
}

pub(crate) fn fixture() -> Fixture {
    fixture_of(Issuer::start())
}

impl Fixture {
    pub(crate) fn request(&self, method: &str, path: &str, cookie: &str, body: &str) -> Answer {
        let client = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .new_agent();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.collector.address))
            .header("Cookie", cookie)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(body.to_owned());
        let mut answer = client.run(request.expect("a request")).expect("it answers");
        Answer {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            text: answer.body_mut().read_to_string().expect("text"),
        }
    }

    pub(crate) fn get(&self, path: &str, cookie: &str) -> Answer {
        self.request("GET", path, cookie, "")
    }

    /// Begins an attempt that leads to `next`.
    pub(crate) fn begin(&self, next: &str) -> Attempt {
        let query = serde_urlencoded::to_string([("next", next)]).expect("a query");
        let answer = self.get(&format!("/oidc/login?{query}"), "");
        assert_eq!(answer.status, 303, "{}", answer.text);
        let (to, asked) = answer.location().split_once('?').expect("a query");
        assert_eq!(to, format!("{}/auth", self.issuer.issuer()));
        Attempt {
            cookie: answer.cookie(ATTEMPT).expect("a cookie"),
            asked: serde_urlencoded::from_str(asked).expect("a query"),
        }
    }

    /// Comes back with a code.
    pub(crate) fn come_back(&self, attempt: &Attempt, code: &str) -> Answer {
        self.come_back_with(
            &attempt.cookie,
            &[("code", code), ("state", &attempt.asked["state"])],
        )
    }

    pub(crate) fn come_back_with(&self, cookie: &str, said: &[(&str, &str)]) -> Answer {
        let said = serde_urlencoded::to_string(said).expect("a query");
        self.get(&format!("/oidc/callback?{said}"), cookie)
    }

    /// Goes the whole way as an honest browser.
    pub(crate) fn log_in(&self) -> Answer {
        let attempt = self.begin("/fleet");
        let code = self.issuer.grant(&attempt.asked);
        self.come_back(&attempt, &code)
    }

    /// Logs in and returns the cookie of the session.
    pub(crate) fn session(&self) -> String {
        let answer = self.log_in();
        assert_eq!(
            (answer.status, answer.location()),
            (303, "/fleet"),
            "{}",
            answer.text
        );
        answer.cookie("tollgate").expect("a session")
    }

    pub(crate) fn is_open(&self, session: &str) -> bool {
        self.get("/fleet", session).status == 200
    }

    pub(crate) fn users(&self) -> Vec<String> {
        let users = self.collector.store.users().expect("readable");
        users.into_iter().map(|user| user.name).collect()
    }
}
