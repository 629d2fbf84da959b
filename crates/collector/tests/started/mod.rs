//! A collector with a store of its own, on a port of the loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use collector::{Collector, NewSecret, Settings};
use serve::Address;
use store::{NewToken, Scope, SqliteStore, Store, TokenId};

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
}
