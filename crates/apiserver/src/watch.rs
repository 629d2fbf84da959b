//! Watches that survive lost connections and expired versions.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use kinds::ObjectKey;
use serde_json::Value;

use crate::client::{ApiError, Client, key};
use crate::resource::Resource;

/// Maximum length in bytes of a line of a watch: an object has at most 1.5 MB in etcd, and more as JSON.
const MAX_LINE: u64 = 16 << 20;
/// How long the first wait after a failure is; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// How long a wait is at most.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// Status of HTTP for a version that the server no longer has.
const GONE: u16 = 410;

/// What happens to the objects of a kind.
#[derive(Debug)]
pub enum Change {
    /// The object exists, as given. It may be the same as before.
    Applied(Value),
    /// The object does not exist any more.
    Deleted(ObjectKey),
    /// All objects that existed when the list began were given. It comes again after each further list, and when the server answers
    /// after a failure.
    Listed,
    /// The server cannot be asked; it is asked again after a wait. What was given may be old.
    Failed(ApiError),
}

/// Gives every object of a kind, and then each change, until `sink` breaks off.
///
/// A connection that ends is made again from where it was. If the server no longer knows that version, everything is
/// listed again, and objects that are gone are given as deleted.
pub fn watch(client: &Client, resource: &Resource, sink: impl FnMut(Change) -> ControlFlow<()>) {
    let mut watcher = Watcher {
        client,
        resource,
        sink,
        known: BTreeSet::new(),
        wait: FIRST_WAIT,
        has_failed: false,
    };
    let mut version = None;
    loop {
        let next = match version.take() {
            None => watcher.list(),
            Some(version) => watcher.follow(version),
        };
        match next {
            ControlFlow::Continue(next) => version = next,
            ControlFlow::Break(()) => return,
        }
    }
}

struct Watcher<'a, Sink> {
    client: &'a Client,
    resource: &'a Resource,
    sink: Sink,
    /// Objects that were given and not deleted.
    known: BTreeSet<ObjectKey>,
    wait: Duration,
    /// The last answer was a failure that was given.
    has_failed: bool,
}

impl<Sink: FnMut(Change) -> ControlFlow<()>> Watcher<'_, Sink> {
    /// Lists all objects; returns the version to follow from.
    fn list(&mut self) -> ControlFlow<(), Option<String>> {
        let mut listed = BTreeSet::new();
        let mut flow = ControlFlow::Continue(());
        let (known, sink) = (&mut self.known, &mut self.sink);
        let version = self.client.list(self.resource, |object| {
            let key = key(&object);
            listed.insert(key.clone());
            known.insert(key);
            if flow.is_continue() {
                flow = sink(Change::Applied(object));
            }
        });
        flow?;
        let version = match version {
            Ok(version) => version,
            // Pages of a list expire, too.
            Err(error) => return self.fail(error).map_continue(|()| None),
        };
        let gone: Vec<ObjectKey> = self.known.difference(&listed).cloned().collect();
        self.known = listed;
        for key in gone {
            (self.sink)(Change::Deleted(key))?;
        }
        self.has_failed = false;
        (self.sink)(Change::Listed)?;
        ControlFlow::Continue(Some(version))
    }

    /// Follows changes from a version on, until the connection ends. Returns the version to go on from, or `None` to
    /// list again.
    fn follow(&mut self, version: String) -> ControlFlow<(), Option<String>> {
        let mut lines = match self.client.lines(self.resource, &version) {
            Ok(lines) => lines,
            Err(error) if error.code() == Some(GONE) => return ControlFlow::Continue(None),
            Err(error) => return self.fail(error).map_continue(|()| Some(version)),
        };
        if std::mem::take(&mut self.has_failed) {
            (self.sink)(Change::Listed)?;
        }
        let mut version = version;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            // A connection that breaks, or ends in the middle of a line, is one that ends.
            if read.is_err() || !line.ends_with(b"\n") {
                return ControlFlow::Continue(Some(version));
            }
            let Ok(event) = serde_json::from_slice::<Value>(&line) else {
                let problem = "a line of a watch is no JSON".to_owned();
                let path = self.resource.path();
                return self
                    .fail(ApiError::Answer { path, problem })
                    .map_continue(|()| None);
            };
            self.wait = FIRST_WAIT;
            match self.take(event)? {
                Some(next) => version = next,
                None => return ControlFlow::Continue(None),
            }
        }
    }

    /// Takes an event of a watch; returns the version that it is of, or `None` if the watch is of no more use.
    fn take(&mut self, mut event: Value) -> ControlFlow<(), Option<String>> {
        let object = event["object"].take();
        let version = object["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned);
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                self.known.insert(key(&object));
                (self.sink)(Change::Applied(object))?;
            }
            Some("DELETED") => {
                let key = key(&object);
                self.known.remove(&key);
                (self.sink)(Change::Deleted(key))?;
            }
            Some("BOOKMARK") => {}
            // An error, most often that the version has expired.
            _ => {
                if object["code"].as_u64() != Some(u64::from(GONE)) {
                    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
                    let code = object["code"]
                        .as_u64()
                        .and_then(|code| u16::try_from(code).ok());
                    let error = ApiError::Status {
                        path: self.resource.path(),
                        code: code.unwrap_or_default(),
                        reason: text("reason"),
                        message: text("message"),
                    };
                    self.fail(error)?;
                }
                return ControlFlow::Continue(None);
            }
        }
        ControlFlow::Continue(version)
    }

    /// Reports a failure, and waits.
    fn fail(&mut self, error: ApiError) -> ControlFlow<()> {
        let is_gone = error.code() == Some(GONE);
        if !is_gone {
            self.has_failed = true;
            (self.sink)(Change::Failed(error))?;
        }
        thread::sleep(self.wait);
        self.wait = (self.wait * 2).min(LAST_WAIT);
        ControlFlow::Continue(())
    }
}
