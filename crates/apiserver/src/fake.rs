//! An API server in memory, for tests: lists in pages, watches, server-side apply, and versions that expire.
//!
//! It keeps what is written and checks no schema. Of a status, what a writer leaves out goes if it has set it before; conditions
//! are told apart by their types. Other applied fields are merged into what is there, and stay if a writer leaves them out later.

mod apply;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Access;

use apply::{applied, merge};

/// How long a watch stays open. Tests see several.
const WATCH: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// Objects by path.
    objects: BTreeMap<String, Value>,
    /// Events: version, path of the object, type and object.
    events: Vec<(u64, String, &'static str, Value)>,
    /// Watches from versions before this one are refused.
    oldest: u64,
    /// The status that each writer has applied last, by path and writer.
    applied: BTreeMap<(String, String), Value>,
    /// Requests that are to fail.
    failures: usize,
    /// Method and path of every request.
    requests: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Held from the look at an object to its change: no other change is lost.
    turn: Mutex<()>,
}

impl Shared {
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An API server on loopback. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct FakeApiserver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeApiserver {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// If loopback cannot be used.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Self {
            address: listener.local_addr()?,
            shared: Arc::default(),
        };
        let shared = Arc::clone(&server.shared);
        thread::Builder::new()
            .name("fake-apiserver".to_owned())
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    // A connection that breaks is the client's affair.
                    thread::spawn(move || serve(stream, &shared).ok());
                }
            })?;
        Ok(server)
    }

    /// Address for a client.
    #[must_use]
    pub fn access(&self) -> Access {
        Access {
            server: format!("http://{}", self.address),
            ..Access::default()
        }
    }

    /// Puts an object, as another client would. `path` is that of the object.
    pub fn put(&self, path: &str, object: Value) {
        let _turn = self.shared.turn();
        write(&self.shared, path, object);
    }

    /// Deletes an object, as another client would.
    pub fn remove(&self, path: &str) {
        let _turn = self.shared.turn();
        delete(&self.shared, path);
    }

    /// The object at a path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.shared.state().objects.get(path).cloned()
    }

    /// The objects of a list, by the path of the list.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<Value> {
        let state = self.shared.state();
        let below = state.objects.iter().filter(|(at, _)| is_below(at, path));
        below.map(|(_, object)| object.clone()).collect()
    }

    /// Forgets events: watches from before now are told that their version has expired.
    pub fn expire(&self) {
        let mut state = self.shared.state();
        state.version += 1;
        state.oldest = state.version;
        state.events.clear();
        self.shared.changed.notify_all();
    }

    /// Lets the next requests fail with the status 503.
    pub fn fail(&self, requests: usize) {
        self.shared.state().failures = requests;
    }

    /// Method and path of every request so far.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }
}

/// Writes an object; returns it with its version and id.
fn write(shared: &Shared, path: &str, mut object: Value) -> Value {
    let mut state = shared.state();
    state.version += 1;
    let version = state.version;
    let old = state.objects.get(path);
    let of_old = |key: &str| old.map(|old| old["metadata"][key].clone());
    let uid = of_old("uid").unwrap_or_else(|| json!(format!("uid-{version}")));
    let generation = of_old("generation")
        .and_then(|number| number.as_u64())
        .unwrap_or_default();
    let has_new_spec = old.is_none_or(|old| old["spec"] != object["spec"]);
    let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
    object["metadata"]["generation"] = json!(generation + u64::from(has_new_spec));
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object["metadata"]["uid"] = uid;
    state.objects.insert(path.to_owned(), object.clone());
    state
        .events
        .push((version, path.to_owned(), kind, object.clone()));
    shared.changed.notify_all();
    object
}

/// Writes an object, which ends with its last finalizer if it was deleted.
fn write_or_end(shared: &Shared, path: &str, object: Value) -> Value {
    let ends = !has_finalizers(&object) && !object["metadata"]["deletionTimestamp"].is_null();
    let written = write(shared, path, object);
    if ends {
        delete(shared, path);
    }
    written
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.is_empty())
}

/// Deletes an object, or notes that it is to be deleted when it has no finalizers any more.
fn delete(shared: &Shared, path: &str) -> Option<Value> {
    let old = shared.state().objects.get(path).cloned()?;
    if has_finalizers(&old) {
        let mut object = old;
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        return Some(write(shared, path, object));
    }
    let mut state = shared.state();
    let mut object = state.objects.remove(path)?;
    state.version += 1;
    let version = state.version;
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    state
        .events
        .push((version, path.to_owned(), "DELETED", object.clone()));
    shared.changed.notify_all();
    Some(object)
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    body: Value,
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read(&mut reader)? {
        let is_to_fail = {
            let mut state = shared.state();
            state
                .requests
                .push(format!("{} {}", request.method, request.path));
            let is_to_fail = state.failures > 0;
            state.failures = state.failures.saturating_sub(1);
            is_to_fail
        };
        if is_to_fail {
            answer(
                &mut stream,
                503,
                &json!({ "reason": "Unavailable", "message": "not now" }),
            )?;
            continue;
        }
        if request.query.contains_key("watch") {
            return watch(stream, &request, shared);
        }
        let (code, body) = respond(&request, shared);
        answer(&mut stream, code, &body)?;
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    Ok(Some(Request {
        method,
        path: path.to_owned(),
        query: pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}

fn answer(stream: &mut TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    // In one piece: the parts of one that is sent in several wait for each other.
    stream.write_all(answer.as_bytes())
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "code": code, "reason": reason, "message": reason }),
    )
}

fn respond(request: &Request, shared: &Shared) -> (u16, Value) {
    let _turn = (request.method != "GET").then(|| shared.turn());
    let path = request.path.as_str();
    let old = shared.state().objects.get(path).cloned();
    let name = || {
        request.body["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
    };
    match request.method.as_str() {
        "GET" => match old {
            Some(object) => (200, object),
            None if is_list(path) => list(request, shared),
            None => refusal(404, "NotFound"),
        },
        "PATCH" => patch(request, shared),
        "POST" => {
            let path = format!("{path}/{}", name());
            let exists = shared.state().objects.contains_key(&path);
            match exists {
                true => refusal(409, "AlreadyExists"),
                false => (201, write(shared, &path, request.body.clone())),
            }
        }
        "PUT" => match old {
            None => refusal(404, "NotFound"),
            Some(old)
                if old["metadata"]["resourceVersion"]
                    != request.body["metadata"]["resourceVersion"] =>
            {
                refusal(409, "Conflict")
            }
            Some(_) => (200, write(shared, path, request.body.clone())),
        },
        "DELETE" => {
            delete(shared, path).map_or_else(|| refusal(404, "NotFound"), |object| (200, object))
        }
        _ => refusal(405, "MethodNotAllowed"),
    }
}

/// Applies an object or its status, if it has the version that the request wants, if it wants one.
fn patch(request: &Request, shared: &Shared) -> (u16, Value) {
    let path = request.path.as_str();
    let target = path.strip_suffix("/status").unwrap_or(path);
    let old = shared.state().objects.get(target).cloned();
    let wanted = &request.body["metadata"]["resourceVersion"];
    let has = old.as_ref().map(|old| &old["metadata"]["resourceVersion"]);
    if !wanted.is_null() && has != Some(wanted) {
        return refusal(409, "Conflict");
    }
    match (old, target == path) {
        (None, false) => refusal(404, "NotFound"),
        (Some(mut object), false) => {
            let manager = request.query.get("fieldManager").cloned();
            // Writers without a name are one, as for the real server.
            let by = (target.to_owned(), manager.unwrap_or_default());
            let status = request.body["status"].clone();
            let before = shared.state().applied.insert(by, status.clone());
            object["status"] = applied(&object["status"], before.as_ref(), &status);
            (200, write(shared, target, object))
        }
        (old, true) => {
            // An object that is new begins empty.
            let mut object = old.unwrap_or_default();
            merge(&mut object, &request.body);
            (200, write_or_end(shared, target, object))
        }
    }
}

/// Returns true if the path is that of all objects of a kind in all namespaces, or in one.
fn is_list(path: &str) -> bool {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = match words.first() {
        Some(&"api") => words.get(2..),
        _ => words.get(3..),
    };
    matches!(rest, Some([_] | ["namespaces", _, _]))
}

/// Returns true if an object is below a list: of its namespace, or of all.
fn is_below(object: &str, list: &str) -> bool {
    if object
        .rsplit_once('/')
        .is_some_and(|(parent, _)| parent == list)
    {
        return true;
    }
    let Some((root, plural)) = list.rsplit_once('/') else {
        return false;
    };
    let rest = object
        .strip_prefix(root)
        .and_then(|rest| rest.strip_prefix("/namespaces/"));
    rest.is_some_and(|rest| rest.split('/').nth(1) == Some(plural))
}

/// A page of a list. The token of the next page is the last path of this one.
fn list(request: &Request, shared: &Shared) -> (u16, Value) {
    let state = shared.state();
    let limit = request
        .query
        .get("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let after = request
        .query
        .get("continue")
        .map(|token| token.replace("%2F", "/"))
        .unwrap_or_default();
    // Objects of the kind in namespaces have this in common with the list.
    // Each path of a request begins with a slash.
    let (root, _) = request.path.rsplit_once('/').unwrap_or_default();
    let begin = match after.as_str() {
        "" => Bound::Included(root.to_owned()),
        after => Bound::Excluded(after.to_owned()),
    };
    let near = state.objects.range((begin, Bound::Unbounded));
    let near = near.take_while(|(path, _)| path.starts_with(root));
    let mut rest = near
        .filter(|(path, _)| is_below(path, &request.path))
        .peekable();
    let mut page = Vec::new();
    let mut last = String::new();
    while page.len() < limit {
        let Some((path, object)) = rest.next() else {
            break;
        };
        page.push(object.clone());
        last.clone_from(path);
    }
    let token = if rest.peek().is_some() {
        last
    } else {
        String::new()
    };
    let metadata = json!({ "resourceVersion": state.version.to_string(), "continue": token });
    (
        200,
        json!({ "kind": "List", "metadata": metadata, "items": page }),
    )
}

/// Sends events as lines until the watch's time is over.
fn watch(mut stream: TcpStream, request: &Request, shared: &Shared) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    )?;
    let mut seen: u64 = request
        .query
        .get("resourceVersion")
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let end = Instant::now() + WATCH;
    loop {
        let mut state = shared.state();
        if seen < state.oldest {
            let (_, status) = refusal(410, "Expired");
            return writeln!(stream, "{}", json!({ "type": "ERROR", "object": status }));
        }
        // They are in the order of their versions.
        let first = state
            .events
            .partition_point(|(version, ..)| *version <= seen);
        let new = state.events[first..]
            .iter()
            .filter(|(_, path, ..)| is_below(path, &request.path));
        let lines: Vec<Value> = new
            .map(|(.., kind, object)| json!({ "type": kind, "object": object }))
            .collect();
        seen = state.version;
        let left = end.saturating_duration_since(Instant::now());
        if lines.is_empty() && !left.is_zero() {
            state = shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            drop(state);
            continue;
        }
        drop(state);
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        stream.write_all(lines.as_bytes())?;
        if left.is_zero() {
            let bookmark = json!({ "metadata": { "resourceVersion": seen.to_string() } });
            return writeln!(
                stream,
                "{}",
                json!({ "type": "BOOKMARK", "object": bookmark })
            );
        }
    }
}
