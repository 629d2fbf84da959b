//! Requests.

use std::io::{self, BufReader, Read};
use std::time::Duration;

use kinds::ObjectKey;
use serde_json::Value;
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

use crate::access::{Access, AccessError, Credential};
use crate::page::read_page;
use crate::resource::Resource;

/// How long a request that is no watch may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a page of a list may take. It is read as fast as its reader takes objects, which may have other work. An API server gives
/// a request no more by default.
const LIST: Duration = Duration::from_secs(60);
/// How long a connection may be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How much longer than the server the client waits for the end of a watch.
const PATIENCE: Duration = Duration::from_secs(15);
/// Length in bytes of each of the two buffers of a connection. An operator keeps ten connections, most of which are silent.
const BUFFER: usize = 16 << 10;
/// Maximum length in bytes of an answer. A page of 500 objects that are as large as etcd takes them has 750 MB; a page
/// of large objects in practice has some 10 MB.
const MAX_ANSWER: u64 = 256 << 20;
/// Number of objects in one page of a list.
const PAGE: usize = 500;

/// A request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// There was no answer.
    #[error("cannot ask the API server for {path}")]
    Request {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server refused.
    #[error("the API server refuses {path}: {code} {message}")]
    Status {
        /// The path.
        path: String,
        /// Status of HTTP.
        code: u16,
        /// Reason in one word, such as `NotFound`.
        reason: String,
        /// The reason for people.
        message: String,
    },
    /// The answer is not what it has to be.
    #[error("cannot read the answer of the API server to {path}: {problem}")]
    Answer {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The token cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl ApiError {
    /// Status of HTTP, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A client of one API server. Clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    server: String,
    token: Option<Credential>,
    /// Name of the writer, as objects record it.
    manager: String,
    /// How long the server keeps a watch open. A connection that has died unnoticed is found after that.
    watch: Duration,
}

impl Client {
    /// A client. `manager` is its name as a writer of fields.
    ///
    /// # Errors
    ///
    /// If the address or a file of the access cannot be used. Nothing is sent yet.
    pub fn new(access: &Access, manager: &str) -> Result<Self, AccessError> {
        access.check()?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // Credentials go to the server alone.
            .proxy(None)
            .user_agent(format!("tollgate/{}", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .tls_config(access.tls()?);
        Ok(Self {
            agent: Agent::new_with_config(config.build()),
            server: access.server.trim_end_matches('/').to_owned(),
            token: access.token.clone(),
            manager: manager.to_owned(),
            watch: Duration::from_secs(60),
        })
    }

    /// Changes how long the server keeps a watch open (default: 60 s).
    #[must_use]
    pub fn with_watch(self, watch: Duration) -> Self {
        Self { watch, ..self }
    }

    /// The same client under another name as a writer of fields: each name owns the fields that it has set.
    #[must_use]
    pub fn with_manager(&self, manager: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            ..self.clone()
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    ///
    /// With the code 404 if there is none.
    pub fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<Value, ApiError> {
        self.json(
            Request::builder().method("GET"),
            &resource.object_path(key),
            None,
        )
    }

    /// Creates or changes an object by server-side apply: fields that this client set before and that are missing now
    /// are removed. Fields that others have set are taken over.
    ///
    /// # Errors
    ///
    /// If the server refuses the object.
    pub fn apply(&self, resource: &Resource, object: &Value) -> Result<Value, ApiError> {
        self.apply_at(&resource.object_path(&key(object)), object)
    }

    /// Like [`Client::apply`], for the status of an object. An object that does not exist is not created. With a resource version
    /// in `object` it is written only if it still has that one.
    ///
    /// # Errors
    ///
    /// With the code 404 if there is no such object, and 409 if somebody else has changed it.
    pub fn apply_status(&self, resource: &Resource, object: &Value) -> Result<Value, ApiError> {
        let path = format!("{}/status", resource.object_path(&key(object)));
        self.apply_at(&path, object)
    }

    fn apply_at(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        let path = format!("{path}?fieldManager={}&force=true", self.manager);
        // JSON is YAML, too, but for what `text_of` escapes.
        let request = Request::builder()
            .method("PATCH")
            .header("content-type", "application/apply-patch+yaml");
        self.json(request, &path, Some(object))
    }

    /// Creates an object.
    ///
    /// # Errors
    ///
    /// With the code 409 if there is one with that name.
    pub fn create(&self, resource: &Resource, object: &Value) -> Result<Value, ApiError> {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let path = resource.clone().in_namespace(namespace).path();
        let path = format!("{path}?fieldManager={}", self.manager);
        let request = Request::builder()
            .method("POST")
            .header("content-type", "application/json");
        self.json(request, &path, Some(object))
    }

    /// Replaces an object, if it still has the resource version of `object`.
    ///
    /// # Errors
    ///
    /// With the code 409 if somebody else has changed it.
    pub fn replace(&self, resource: &Resource, object: &Value) -> Result<Value, ApiError> {
        let path = resource.object_path(&key(object));
        let path = format!("{path}?fieldManager={}", self.manager);
        let request = Request::builder()
            .method("PUT")
            .header("content-type", "application/json");
        self.json(request, &path, Some(object))
    }

    /// Deletes an object, if it still has this unique id.
    ///
    /// # Errors
    ///
    /// With the code 404 if there is none, and 409 if it is another one.
    pub fn delete(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        uid: &str,
    ) -> Result<Value, ApiError> {
        let options = serde_json::json!({ "preconditions": { "uid": uid } });
        let request = Request::builder()
            .method("DELETE")
            .header("content-type", "application/json");
        self.json(request, &resource.object_path(key), Some(&options))
    }

    /// Replaces the finalizers of an object, if it still has this unique id. An object that is being deleted goes with
    /// its last finalizer.
    ///
    /// # Errors
    ///
    /// With the code 404 if there is none, and 409 if it is another one.
    pub fn set_finalizers(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        uid: &str,
        finalizers: &[String],
    ) -> Result<Value, ApiError> {
        let patch = serde_json::json!({ "metadata": { "uid": uid, "finalizers": finalizers } });
        self.merge(resource, key, &patch)
    }

    /// Changes an object by a merge patch: `null` removes a field. With a resource version in `patch` only if the object still
    /// has that one.
    ///
    /// # Errors
    ///
    /// With the code 404 if there is no such object, and 409 if somebody else has changed it.
    pub fn merge(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let request = Request::builder()
            .method("PATCH")
            .header("content-type", "application/merge-patch+json");
        let path = format!(
            "{}?fieldManager={}",
            resource.object_path(key),
            self.manager
        );
        self.json(request, &path, Some(patch))
    }

    /// Sends any request, for tests of what an account may do. A `PATCH` is a server-side apply.
    ///
    /// # Errors
    ///
    /// If the server refuses it, or answers with anything but JSON.
    #[cfg(feature = "testing")]
    pub fn attempt(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let content = match method {
            "PATCH" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method)
            .header("content-type", content);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.json(request, path, body)
    }

    /// Lists all objects page by page, and returns the resource version of the list.
    ///
    /// # Errors
    ///
    /// If a page cannot be had. Objects before the failure were given already.
    pub fn list(
        &self,
        resource: &Resource,
        mut each: impl FnMut(Value),
    ) -> Result<String, ApiError> {
        let mut token = String::new();
        loop {
            let mut path = format!("{}?limit={PAGE}", resource.path());
            if !token.is_empty() {
                path.push_str("&continue=");
                path.push_str(&escaped(&token));
            }
            let request = Request::builder()
                .method("GET")
                .header("accept", accept(resource, "List"));
            let response = self.send(request, &path, None, LIST)?;
            let body = response.into_body().into_with_config().limit(MAX_ANSWER);
            let end = read_page(BufReader::new(body.reader()), &mut each);
            let end = end.map_err(|error| ApiError::Answer {
                path,
                problem: error.to_string(),
            })?;
            token = end.token;
            if token.is_empty() {
                return Ok(end.version);
            }
        }
    }

    /// Begins a watch, and returns its lines.
    pub(crate) fn lines(
        &self,
        resource: &Resource,
        version: &str,
    ) -> Result<BufReader<impl Read + use<>>, ApiError> {
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            resource.path(),
            self.watch.as_secs(),
            escaped(version)
        );
        let request = Request::builder()
            .method("GET")
            .header("accept", accept(resource, ""));
        let response = self.send(request, &path, None, self.watch + PATIENCE)?;
        let body = response.into_body().into_with_config().limit(u64::MAX);
        Ok(BufReader::new(body.reader()))
    }

    fn json(
        &self,
        request: ureq::http::request::Builder,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let mut response = self.send(request, path, body, TIMEOUT)?;
        let wrong = |problem: String| ApiError::Answer {
            path: path.to_owned(),
            problem,
        };
        let bytes = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_vec();
        let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
    }

    /// Sends a request; a status other than success is an error.
    fn send(
        &self,
        request: ureq::http::request::Builder,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Response<Body>, ApiError> {
        let failed = |source| ApiError::Request {
            path: path.to_owned(),
            source,
        };
        let mut request = request.uri(format!("{}{path}", self.server));
        if let Some(token) = &self.token {
            let token = token.read()?;
            let token = String::from_utf8_lossy(&token).trim().to_owned();
            request = request.header("authorization", format!("Bearer {token}"));
        }
        // A request without an object has an empty body.
        let body = body.map(text_of).unwrap_or_default();
        let request = request
            .body(body)
            .map_err(|error| failed(io::Error::other(error)))?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(timeout))
            .build();
        let response = self
            .agent
            .run(request)
            .map_err(|error| failed(error.into_io()))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refusal(path, response)),
        }
    }
}

/// The text of an object. A server-side apply is read as YAML, which refuses some characters of JSON, and takes others for ends of
/// lines: those are escaped, which both read alike.
fn text_of(object: &Value) -> String {
    let text = object.to_string();
    let is_other = |c: char| {
        matches!(
            c,
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
    };
    if !text.contains(is_other) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match is_other(c) {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped
}

/// The error of an answer that is no success.
fn refusal(path: &str, mut response: Response<Body>) -> ApiError {
    // A refusal is a short object; what a proxy says instead is of no use.
    let text = response
        .body_mut()
        .with_config()
        .limit(64 << 10)
        .read_to_vec();
    let status: Value = text
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let word = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    ApiError::Status {
        path: path.to_owned(),
        code: response.status().as_u16(),
        reason: word("reason"),
        message: word("message"),
    }
}

/// Namespace and name of an object.
pub(crate) fn key(object: &Value) -> ObjectKey {
    let text = |key: &str| {
        object["metadata"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    ObjectKey {
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// The form in which objects are asked for.
fn accept(resource: &Resource, suffix: &str) -> String {
    match resource.metadata_only {
        true => format!("application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"),
        false => "application/json".to_owned(),
    }
}

/// A text as a part of a query.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_that_yaml_reads_otherwise_are_escaped_and_stay_what_they_are() {
        let object = json!({ "k\u{7f}": "a\u{85}b\u{2028}c\u{2029}\u{9f}\u{feff}\u{ffff}\u{e9}\u{1f600}\"\\" });
        let text = text_of(&object);
        assert_eq!(
            text,
            "{\"k\\u007f\":\"a\\u0085b\\u2028c\\u2029\\u009f\\ufeff\\uffff\u{e9}\u{1f600}\\\"\\\\\"}"
        );
        let read: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(read, object);
    }
}
