//! What an administrator, a runtime or a collector configures: settings, policies, bundles of rules, `config.json`.

use std::hint::black_box;
use std::sync::LazyLock;

use ::bundle::{PrivateKey, Signed};
use ::config::{CompatMode, Effective, Request, ShownOrigin};
use ::policy::compile::{MachineFeatures, apparmor, bpf, caps, landlock, seccomp};
use runtime::Spec;
use serde_json::{Map, Value};

use crate::{Outcome, text, yaml_lines};

/// Takes a configuration file in the format of `falco.yaml`, as both programs read it: what is set is shown so that the same is
/// set by it. The file includes no others: the fuzzer reads no files of this machine.
///
/// # Panics
///
/// If that does not hold.
pub fn config(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let results = [CompatMode::Tollgate, CompatMode::Falco].map(|mode| {
        let loaded = load(text, &[], mode);
        if let Ok(loaded) = &loaded {
            check_shown(loaded, mode);
        }
        loaded.is_ok()
    });
    Outcome::accepted_if(results[0])
}

fn load(text: &str, options: &[String], mode: CompatMode) -> Result<Effective, String> {
    let fragments = [("f.yaml".to_owned(), text.to_owned())];
    let request = Request {
        fragments: &fragments,
        options,
        mode,
        ..Request::default()
    };
    request.load().map_err(|failure| failure.render())
}

/// Checks that what is shown, written as a file, sets the same.
fn check_shown(loaded: &Effective, mode: CompatMode) {
    let mut written = Value::Object(Map::new());
    let shown = loaded.shown();
    for key in shown
        .iter()
        .filter(|key| key.origin != ShownOrigin::Default)
    {
        let mut place = &mut written;
        for name in key.path.split('.') {
            place = &mut place[name];
        }
        *place = key.value.clone();
    }
    // JSON is YAML.
    let again = load(&written.to_string(), &[], mode);
    let again = again.unwrap_or_else(|error| panic!("{written}: {error}"));
    for (first, second) in shown.iter().zip(again.shown()) {
        assert_eq!((first.path, &first.value), (second.path, &second.value));
    }
}

/// Takes `-o` options, one a line: those that are accepted one after the other are shown so that the same is set by it.
///
/// # Panics
///
/// If that does not hold.
pub fn option(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    // The fuzzer reads no files of this machine.
    let options = text
        .lines()
        .filter(|line| !line.starts_with("config_files"));
    let options: Vec<String> = options.map(str::to_owned).collect();
    let loaded = load("", &options, CompatMode::Tollgate);
    if let Ok(loaded) = &loaded {
        check_shown(loaded, CompatMode::Tollgate);
    }
    Outcome::accepted_if(loaded.is_ok())
}

/// Takes a policy file, and policies of other programs: what is wrong has a place in it, what loads is compiled for each
/// enforcer, and what is converted loads.
///
/// # Panics
///
/// If that does not hold.
pub fn policy(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let (policies, diagnostics) = ::policy::load("f.yaml", text);
    for diagnostic in &diagnostics {
        assert!(
            diagnostic.location.line <= yaml_lines(text) + 1,
            "{diagnostic:?}"
        );
    }
    let machine = MachineFeatures::default();
    for policy in &policies {
        black_box(seccomp::Profile::compile(policy));
        black_box(landlock::Profile::compile(policy, &machine));
        black_box(caps::Profile::compile(policy));
        black_box(bpf::Profile::compile(policy, &machine));
        black_box(apparmor::profile(policy, &machine));
    }
    let is_wrong = diagnostics.iter().any(|found| found.is_error());
    Outcome::accepted_if((!is_wrong && !policies.is_empty()) | converts(text))
}

/// Returns whether it is a policy of another program.
fn converts(text: &str) -> bool {
    let options = kinds::convert::Options {
        enforcers: None,
        target: None,
    };
    let Ok(conversions) = kinds::convert::convert("f.yaml", text, &options) else {
        return false;
    };
    for conversion in &conversions {
        black_box(conversion.problems("f.yaml", &[]));
        if !conversion.is_empty() {
            let (_, diagnostics) = ::policy::load("f.yaml", &conversion.yaml());
            assert!(
                !diagnostics.iter().any(|found| found.is_error()),
                "{diagnostics:?}"
            );
        }
    }
    conversions.iter().any(|conversion| !conversion.is_empty())
}

/// Takes a bundle of rules as a collector sends it: none is believed that the key has not signed.
///
/// # Panics
///
/// If that does not hold.
pub fn bundle(bytes: &[u8]) -> Outcome {
    static KEY: LazyLock<PrivateKey> =
        LazyLock::new(|| PrivateKey::generate().expect("random numbers"));
    let Some(signed) = text(bytes).and_then(|text| Signed::parse(text).ok()) else {
        return Outcome::Refused;
    };
    assert!(signed.verify(&KEY.public()).is_err(), "the key is new");
    black_box((signed.digest(), signed.content().is_ok()));
    let again = Signed::parse(&signed.to_text()).expect("it is a bundle");
    assert_eq!(again.digest(), signed.digest());
    let own = signed.sign(&KEY);
    // Only the content can be refused now.
    assert_eq!(own.verify(&KEY.public()).is_ok(), own.content().is_ok());
    Outcome::Accepted
}

/// Takes the `config.json` of a container: what is read of it is in it.
///
/// # Panics
///
/// If that does not hold.
pub fn oci(bytes: &[u8]) -> Outcome {
    let Ok(spec) = Spec::parse(bytes) else {
        return Outcome::Refused;
    };
    for name in ["", "PATH", "TOLLGATE"] {
        let value = spec.variable(name);
        assert!(value.is_none_or(|value| value.len() + name.len() < bytes.len()));
    }
    let listener = spec.listener().map(|path| path.as_os_str().len());
    assert!(listener.is_none_or(|length| length > 0 && length < bytes.len()));
    assert!(
        spec.cgroups_path()
            .is_none_or(|path| path.len() < bytes.len())
    );
    let annotations = spec.annotations.iter();
    let length: usize = annotations
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(length < bytes.len());
    black_box(spec.has_own_mounts());
    Outcome::Accepted
}
