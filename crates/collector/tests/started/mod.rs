//! A collector with a store of its own, on a port of the loopback.

#![allow(dead_code, reason = "not every test uses everything")]

use std::net::SocketAddr;
use std::sync::Arc;

use collector::{Collector, NewSecret, Settings};
use serve::Address;
use store::{
    AgentId, CaptureAsked, CaptureEnd, CaptureId, NewAgent, NewCapture, NewToken, Scope,
    SqliteStore, Store, TokenId,
};

/// Size of a part of a capture.
pub(crate) const PART: usize = 1 << 20;

/// A collector that ends with the test.
pub(crate) struct Started {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) address: SocketAddr,
    _collector: Collector,
    _folder: tempfile::TempDir,
}

/// Starts a collector, with settings that `change` may change.
pub(crate) fn start(change: impl FnOnce(&mut Settings)) -> Started {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let store = SqliteStore::open(&folder.path().join("s.db")).expect("a new store");
    let store: Arc<dyn Store> = store.into();
    let mut settings = Settings {
        listen: Address::Tcp("127.0.0.1:0".to_owned()),
        files: None,
        max_age: None,
        max_bytes: None,
        propose: None,
        explain: None,
        browse: None,
        capture_on: None,
        oidc: None,
        queue: None,
    };
    change(&mut settings);
    let collector = Collector::start(settings, Arc::clone(&store)).expect("a free port");
    Started {
        address: collector.address().expect("a port"),
        store,
        _collector: collector,
        _folder: folder,
    }
}

impl Started {
    /// Adds a token that does not expire, and returns its text, too.
    pub(crate) fn token(&self, scope: Scope) -> (TokenId, String) {
        let secret = NewSecret::of_token().expect("random numbers");
        let token = NewToken {
            scope,
            hash: secret.hash,
            expires_ns: None,
            actor: "test".to_owned(),
        };
        let id = self.store.create_token(token).expect("writable");
        (id, secret.text)
    }

    /// Adds an agent.
    pub(crate) fn enrol(&self) -> AgentId {
        let (token, _) = self.token(Scope::Agents("web".to_owned()));
        let agent = NewAgent {
            token,
            hash: NewSecret::of_token().expect("random numbers").hash,
            host: "box".to_owned(),
        };
        self.store.enrol(agent).expect("writable")
    }

    /// Adds a complete capture of so many parts, which are full of sevens.
    pub(crate) fn capture(&self, agent: AgentId, parts: u64) -> CaptureId {
        let store = &self.store;
        let new = NewCapture {
            agent,
            seconds: 1,
            actor: "test".to_owned(),
        };
        let CaptureAsked::Added(id) = store.request_capture(new).expect("writable") else {
            panic!("the agent has none")
        };
        for number in 0..parts {
            let next = store.add_chunk(agent, id, number, vec![7; PART]);
            assert_eq!(next.expect("writable"), Some(number + 1));
        }
        let end = CaptureEnd {
            chunks: parts,
            events: 1,
            lost: 0,
            failure: None,
        };
        assert!(store.end_capture(agent, id, end).expect("writable"));
        id
    }
}
