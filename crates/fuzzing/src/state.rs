//! Files and memory in which our programs keep what they know, and reports that they read again.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ::rules::{Alert, AlertSink, Engine, EngineOptions, Loader};
use cluster::modeling::Modeling;
use cluster::{Admission, Decision, Review};
use kinds::validate::Installation;
use kinds::{ArmorProfileModel, BehaviorReport, Scope};
use runtime::Store;
use supervisor::handover_state as state;
use tempfile::TempDir;

use crate::Outcome;

/// Makes a folder in memory if there is one: these targets write files for each input.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => TempDir::new_in(memory),
        false => TempDir::new(),
    };
    made.expect("a folder for files can be made")
}

/// Takes the record of a container: it is written and read again the same.
///
/// # Panics
///
/// If that does not hold.
pub fn container_record(bytes: &[u8]) -> Outcome {
    let folder = folder();
    let store = |id| Store::new(folder.path(), None, id).expect("a folder name");
    let given = store("given");
    fs::create_dir_all(given.folder()).expect("a folder can be made");
    fs::write(given.file("container.json"), bytes).expect("a file can be written");
    let Ok(note) = given.note() else {
        return Outcome::Refused;
    };
    let note = note.expect("there is a file");
    let copy = store("copy");
    assert!(copy.begin(&note).expect("it can be written"));
    let again = copy.note().expect("it can be read");
    assert_eq!(again.as_ref(), Some(&note));
    Outcome::Accepted
}

/// Takes the state that an agent leaves to the next: it is written and read again the same, and its filter can be made.
///
/// # Panics
///
/// If that does not hold.
pub fn handover_state(bytes: &[u8]) -> Outcome {
    let (Ok((plan, in_force)), Ok(first)) = (state::decode(bytes), state::decode_first(bytes))
    else {
        return Outcome::Refused;
    };
    let groups = plan.calls.values().flat_map(|call| &call.any_of);
    let of_rules = in_force.profile.rules.iter().map(|rule| &rule.when);
    for test in groups.chain(of_rules).flatten() {
        assert!(test.arg < 6, "{test:?}: a call has six arguments");
    }
    let written = state::encode(&plan, &in_force, first.as_ref());
    let (plan_again, in_force_again) = state::decode(&written).expect("it was written");
    assert_eq!(in_force_again, in_force);
    assert_eq!(plan_again, plan);
    assert_eq!(
        state::decode_first(&written).expect("it was written"),
        first
    );
    Outcome::Accepted
}

/// Takes what a dead process left in its spool of records for the collector: files, each after a line with its name, which begins
/// with `#`. Every whole line is sent once, under ascending numbers, before what is added.
///
/// # Panics
///
/// If that does not hold.
pub fn spool(bytes: &[u8]) -> Outcome {
    let root = folder();
    let spool = root.path().join("0");
    fs::create_dir(&spool).expect("a folder can be made");
    let mut file: Option<PathBuf> = None;
    let mut has_lines = false;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if let Some(name) = line.strip_prefix(b"#") {
            file = std::str::from_utf8(name)
                .ok()
                .and_then(|name| file_in(&spool, name));
            if let Some(file) = &file {
                append(file, b"");
            }
        } else if let Some(file) = &file {
            append(file, line);
            has_lines = true;
        }
    }
    let drained =
        outputs::testing::drain_spool(root.path(), 4096, &["{\"rule\":\"new\"}".to_owned()]);
    let Ok(drained) = drained else {
        return Outcome::Refused;
    };
    assert!(drained.lines.windows(2).all(|pair| pair[0].0 < pair[1].0));
    let (last, text) = drained.lines.last().expect("what was added");
    assert_eq!(
        (text.as_slice(), last + 1),
        (&b"{\"rule\":\"new\"}\n"[..], drained.next)
    );
    let length: usize = drained.lines.iter().map(|(_, line)| line.len()).sum();
    assert!(length <= bytes.len() + text.len());
    // What is left is an empty spool with the next number.
    let again = outputs::testing::drain_spool(root.path(), 4096, &[]).expect("it was written");
    assert_eq!((again.lines.len(), again.next), (0, drained.next));
    Outcome::accepted_if(has_lines)
}

/// Returns the path of a plain file name.
fn file_in(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = name.trim_end();
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    (is_plain && !name.starts_with('.') && (1..64).contains(&name.len())).then(|| folder.join(name))
}

fn append(file: &Path, bytes: &[u8]) {
    use std::io::Write;
    let opened = fs::OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(bytes));
    written.expect("a file can be written");
}

/// Takes a cached file of compiled rules: one that is read is written again byte by byte. The bytes are taken once more as changes
/// of an image whose checksum holds: three bytes for each, its place and the new byte. What is read of it is not used here: whoever
/// can write an image could write rules as well.
///
/// # Panics
///
/// If that does not hold.
pub fn rules_cache(bytes: &[u8]) -> Outcome {
    static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let text = "- rule: R\n  desc: d\n  condition: evt.type = open and fd.name startswith /etc\n  \
                    output: o %fd.name\n  priority: INFO\n";
        let (ruleset, _) = Loader::new().add("f.yaml", text).finish();
        let (engine, _) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoAlerts));
        let (plan, _) = engine.plan();
        engine.to_image(&plan)
    });
    let parts = agent::testing::cached_parts(bytes);
    if let Some(parts) = parts {
        assert_eq!(agent::testing::cache_file(parts), bytes);
    }
    let mut image = IMAGE.clone();
    for [low, high, new] in bytes.as_chunks::<3>().0 {
        let place = usize::from(u16::from_le_bytes([*low, *high])) % image.len();
        image[place] = *new;
    }
    let is_changed = image != *IMAGE;
    let (sum, body) = image
        .split_first_chunk_mut::<8>()
        .expect("it has a checksum");
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    *sum = hasher.finish().to_le_bytes();
    let read = Engine::from_image(&image, &EngineOptions::default(), Box::new(NoAlerts));
    assert!(is_changed || read.is_ok(), "the checksum is another");
    Outcome::accepted_if(parts.is_some())
}

struct NoAlerts;

impl AlertSink for NoAlerts {
    fn emit(&self, _alert: Alert) {}
}

/// Takes a question to the webhook: its answer names the question, is short beside it, and a patch has something to act on.
///
/// # Panics
///
/// If that does not hold.
pub fn review(bytes: &[u8]) -> Outcome {
    let Ok(review) = Review::read(bytes) else {
        return Outcome::Refused;
    };
    let mut admission = Admission::new("tollgate");
    for kind in ["Pod", "Deployment", "StatefulSet", "DaemonSet"] {
        let target = serde_json::json!({ "kind": kind, "selector": { "matchExpressions": [
            { "key": "tier", "operator": "NotIn", "values": ["a"] }] } });
        let policy = serde_json::json!({ "metadata": { "name": kind.to_lowercase() }, "spec": { "target": target } });
        admission.apply(Scope::Cluster, &policy);
    }
    let installation = Installation {
        namespace: "tollgate",
        behavior_modeling: true,
    };
    let marks = review.marks(&admission);
    for decision in [&marks, &review.validity(installation)] {
        let answer = review.answer(decision);
        assert!(answer["response"]["uid"].is_string());
        assert!(answer.to_string().len() < 64 << 10, "{answer}");
    }
    Outcome::accepted_if(matches!(marks, Decision::Allowed(_)))
}

/// Takes what a node reports of the behaviour of containers, or a model that was written earlier: a model has no more than its
/// limits, does not depend on how often a report comes, and is written and adopted again the same.
///
/// # Panics
///
/// If that does not hold.
pub fn behavior(bytes: &[u8]) -> Outcome {
    let mut modeling = Modeling::default();
    let report = serde_json::from_slice::<BehaviorReport>(bytes);
    let model = serde_json::from_slice::<ArmorProfileModel>(bytes);
    let mut is_accepted = report.is_ok();
    if let Ok(report) = &report {
        modeling.observe("n", report);
        let once = modeling.recording();
        modeling.observe("n", report);
        assert_eq!(modeling.recording(), once);
        let written = serde_json::to_vec(report).expect("it is JSON");
        let again = serde_json::from_slice::<BehaviorReport>(&written);
        assert_eq!(again.expect("it was written"), *report);
    }
    if let Ok(model) = &model {
        is_accepted |= modeling.adopt(model).is_ok();
    }
    let recording = modeling.recording();
    let written = serde_json::to_vec(&recording).expect("it is JSON");
    assert!(written.len() <= 1 << 20);
    assert!(modeling.lacks().count() <= 32);
    if let Ok(run) = "1764352272/30".parse() {
        let progress = modeling.progress(run);
        assert!(progress.is_none_or(|progress| progress.containers >= progress.from_start));
    }
    Outcome::accepted_if(is_accepted)
}

/// The container that the files of the target `engine_state` are about.
const CONTAINER: &str = "c0ffee";

/// Takes a file of a container engine. The first letter says which: `d`, docker's `config.v2.json`; `c`, a `config.json` of
/// containerd's; `b`, containerd's database; `s`, the containers of podman and CRI-O; `p`, podman's database. Nothing is told of the
/// container that is not in the file.
///
/// # Panics
///
/// If that does not hold.
pub fn engine_state(bytes: &[u8]) -> Outcome {
    let Some((letter, bytes)) = bytes.split_first() else {
        return Outcome::Refused;
    };
    let Some(place) = b"dcbsp".iter().position(|known| known == letter) else {
        return Outcome::Refused;
    };
    let root = folder();
    let files = container::testing::state_files(CONTAINER).map(|file| root.path().join(file));
    let write = |place: usize, bytes: &[u8]| {
        let file: &Path = &files[place];
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
        fs::write(file, bytes).expect("a file can be written");
    };
    // Containerd's database is read for a container that has a bundle.
    if *letter == b'b' {
        write(1, b"{}");
    }
    write(place, bytes);
    let told = container::KnownContainer::by_id(CONTAINER, root.path());
    let texts = [&told.name, &told.image, &told.details.image_id];
    for text in texts.into_iter().flatten() {
        // The id is the name where nothing else is; what is escaped in JSON is longer there.
        assert!(text == CONTAINER || text.len() <= bytes.len(), "{text:?}");
    }
    let labels = told.details.labels.iter();
    let length: usize = labels.map(|(key, value)| key.len() + value.len()).sum();
    assert!(length <= 8 * bytes.len(), "{length}");
    Outcome::accepted_if(told.image.is_some())
}
