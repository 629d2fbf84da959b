//! Questions of the API server about objects, and the answers of a webhook: `AdmissionReview` of `admission.k8s.io/v1`.
//!
//! Whoever may create a pod chooses what is in a question. What is kept of it does not depend on how much that is: see [`kept`].

mod kept;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kinds::PolicyObject;
use kinds::validate::{self, Installation};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::{Value, json};

use crate::{Admission, RESTARTED_KINDS, Workload};

/// Maximum length of the id of a question in bytes. Kubernetes' are UUIDs.
const MAX_UID: usize = 128;
/// Maximum length of a message in bytes: it may repeat what the object says.
const MAX_MESSAGE: usize = 4096;
/// Maximum number of brackets and commas in a question about a policy, which is read as a whole. A value of JSON of two bytes can take
/// hundreds in memory.
const MAX_VALUES: usize = 32_768;

/// A question that cannot be answered, because it is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// It is no JSON, or has too many labels.
    #[error("cannot read the AdmissionReview: {problem}")]
    Json {
        /// What is wrong with it.
        problem: String,
    },
    /// It is another kind of object.
    #[error("cannot read the AdmissionReview: expected AdmissionReview of admission.k8s.io/v1")]
    Kind,
    /// It has no id that an answer could name.
    #[error(
        "cannot read the AdmissionReview: `request.uid` has to be a text of 1 to {MAX_UID} visible characters"
    )]
    Uid,
}

/// A question.
#[derive(Clone, Debug)]
pub struct Review<'a> {
    uid: String,
    /// What marks depend on.
    request: Value,
    /// The question as it came.
    bytes: &'a [u8],
}

/// The new object of a question, read as a policy.
#[derive(Deserialize)]
struct New {
    request: NewOfRequest,
}

#[derive(Deserialize)]
struct NewOfRequest {
    object: PolicyObject,
}

/// The object before, read as a policy.
#[derive(Deserialize)]
struct Old {
    request: OldOfRequest,
}

#[derive(Deserialize)]
struct OldOfRequest {
    #[serde(rename = "oldObject")]
    object: PolicyObject,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The object is taken, after these operations of a JSON patch.
    Allowed(Vec<Value>),
    /// The object is refused, with a status of HTTP and the reason.
    Refused(u16, String),
}

impl<'a> Review<'a> {
    /// Reads a question.
    ///
    /// # Errors
    ///
    /// If it is none, or has no id.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ReviewError> {
        let problem = |error: serde_json::Error| ReviewError::Json {
            problem: error.to_string(),
        };
        let mut from = serde_json::Deserializer::from_slice(bytes);
        let mut review = kept::REVIEW.deserialize(&mut from).map_err(problem)?;
        from.end().map_err(problem)?;
        if !review.is_object() {
            return Err(ReviewError::Kind);
        }
        let is_review =
            review["apiVersion"] == "admission.k8s.io/v1" && review["kind"] == "AdmissionReview";
        if !is_review {
            return Err(ReviewError::Kind);
        }
        let request = review["request"].take();
        let uid = request["uid"].as_str().ok_or(ReviewError::Uid)?;
        let is_visible = uid.bytes().all(|byte| byte.is_ascii_graphic());
        if uid.is_empty() || uid.len() > MAX_UID || !is_visible {
            return Err(ReviewError::Uid);
        }
        Ok(Self {
            uid: uid.to_owned(),
            request,
            bytes,
        })
    }

    /// A text of the question; an error that names it if it is missing or something else.
    fn text(&self, key: &str) -> Result<&str, Decision> {
        let text = self.request[key].as_str();
        text.ok_or_else(|| refused(&format!("`request.{key}` has to be a text")))
    }

    /// The object that is asked about, and its kind.
    fn object(&self) -> Result<(&str, &Value), Decision> {
        let kind = self.request["kind"]["kind"].as_str();
        let kind = kind.ok_or_else(|| refused("`request.kind.kind` has to be a text"))?;
        let object = &self.request["object"];
        match object.is_object() {
            true => Ok((kind, object)),
            false => Err(refused("`request.object` has to be an object")),
        }
    }

    /// The marks that a workload gets.
    #[must_use]
    pub fn marks(&self, admission: &Admission) -> Decision {
        self.try_marks(admission).unwrap_or_else(|refusal| refusal)
    }

    fn try_marks(&self, admission: &Admission) -> Result<Decision, Decision> {
        let (kind, object) = self.object()?;
        let operation = self.text("operation")?;
        let is_marked = match kind {
            "Pod" => operation == "CREATE",
            kind => RESTARTED_KINDS.iter().any(|(known, _)| *known == kind),
        };
        // A part of an object, such as its status, has no marks.
        let is_whole = self.request["subResource"]
            .as_str()
            .is_none_or(str::is_empty);
        if !is_marked || !is_whole {
            return Ok(Decision::Allowed(Vec::new()));
        }
        check_texts(kind, object)?;
        let workload = Workload {
            kind,
            namespace: self.text("namespace")?,
            object,
        };
        Ok(Decision::Allowed(admission.patch(workload)))
    }

    /// Whether a policy is valid, as an operator with these settings sees it.
    #[must_use]
    pub fn validity(&self, installation: Installation<'_>) -> Decision {
        self.try_validity(installation)
            .unwrap_or_else(|refusal| refusal)
    }

    fn try_validity(&self, installation: Installation<'_>) -> Result<Decision, Decision> {
        let (kind, object) = self.object()?;
        let old = &self.request["oldObject"];
        let is_update = old.is_object();
        let owner = old["status"]["installation"].as_str();
        let is_of_other = owner.is_some_and(|one| !one.is_empty() && one != installation.namespace);
        if is_update && (is_of_other || object["metadata"]["deletionTimestamp"].is_string()) {
            // Nothing keeps a policy from going away, and one of another installation is that one's affair.
            return Ok(Decision::Allowed(Vec::new()));
        }
        self.check_size()?;
        let new: Result<New, _> = serde_json::from_slice(self.bytes);
        let old = is_update.then(|| serde_json::from_slice::<Old>(self.bytes));
        let new = match (new, &old) {
            (Ok(new), _) => new.request.object,
            // It is as unreadable as before.
            (Err(_), Some(Err(_))) => return Ok(Decision::Allowed(Vec::new())),
            (Err(error), _) => return Err(refused(&format!("cannot read the {kind}: {error}"))),
        };
        let old = old.and_then(Result::ok).map(|old| old.request.object);
        let mut invalid = validate::policy(&new, old.as_ref(), installation);
        if let Some(old) = &old {
            // A policy of another time may stay as invalid as it was: its labels and finalizers change all the same.
            let before = validate::policy(old, Some(old), installation);
            invalid.retain(|one| !before.contains(one));
        }
        if invalid.is_empty() {
            return Ok(Decision::Allowed(Vec::new()));
        }
        let invalid: Vec<String> = invalid.iter().map(ToString::to_string).collect();
        Err(Decision::Refused(422, invalid.join("; ")))
    }

    /// Refuses a question that takes too much memory as a whole.
    fn check_size(&self) -> Result<(), Decision> {
        let values = self.bytes.iter().filter(|byte| b"{[,".contains(byte));
        match values.count() > MAX_VALUES {
            true => Err(Decision::Refused(
                413,
                format!("the policy is too large: its request has more than {MAX_VALUES} values"),
            )),
            false => Ok(()),
        }
    }

    /// The answer, as the API server reads it.
    #[must_use]
    pub fn answer(&self, decision: &Decision) -> Value {
        let response = match decision {
            Decision::Allowed(patch) if patch.is_empty() => {
                json!({ "uid": self.uid, "allowed": true })
            }
            Decision::Allowed(patch) => {
                json!({ "uid": self.uid, "allowed": true, "patchType": "JSONPatch",
                "patch": STANDARD.encode(json!(patch).to_string()) })
            }
            Decision::Refused(code, message) => json!({ "uid": self.uid, "allowed": false,
                "status": { "code": code, "message": cut(message) } }),
        };
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }
}

/// Refuses labels and annotations that are something else: a mark among them could neither be found nor set.
fn check_texts(kind: &str, object: &Value) -> Result<(), Decision> {
    let pod = match kind {
        "Pod" => "",
        _ => "/spec/template",
    };
    for path in ["/metadata/labels", &format!("{pod}/metadata/annotations")] {
        let pairs = object.pointer(path).unwrap_or(&Value::Null);
        let is_right = match pairs {
            Value::Null => true,
            Value::Object(pairs) => pairs.values().all(Value::is_string),
            _ => false,
        };
        if !is_right {
            return Err(refused(&format!("`{path}` has to be a mapping of texts")));
        }
    }
    Ok(())
}

fn refused(problem: &str) -> Decision {
    Decision::Refused(400, problem.to_owned())
}

/// A message of bounded length.
fn cut(message: &str) -> &str {
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
