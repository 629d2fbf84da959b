use std::fs;
use std::path::Path;

use super::*;
use crate::{Config, Layout, Package, PublicKey, push};

const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt
6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==
-----END PUBLIC KEY-----
";

struct NoCheck;

impl Checker for NoCheck {
    fn check(&self, _: &[Candidate]) -> Result<(), String> {
        Ok(())
    }
}

fn publish(folder: &Path, name: &str, version: &str, needs: &[&str]) {
    let reference = Reference::new("localhost:1", name).expect("it is good");
    let reference = reference.with(Some(version.to_owned()), None);
    let needs = needs.iter().map(|text| Dependency::parse(text));
    let package = Package {
        config: Config {
            name: Some(name.to_owned()),
            version: Some(version.to_owned()),
            dependencies: needs.collect::<Result<_, _>>().expect("they are good"),
            requirements: Vec::new(),
        },
        file: format!("{name}.yaml"),
        rules: format!("- list: {name}\n  items: []\n"),
        tests: Vec::new(),
    };
    let layout = Layout::create(&folder.join(name)).expect("it can be written");
    push(&layout, &reference, &package, &[], None).expect("it can be written");
}

fn installer(folder: &Path, trust: Trust, names: &[&str]) -> Installer<'static> {
    let mut index = Index::default();
    for name in names {
        let text = format!(
            "[{{name: {name}, type: rulesfile, registry: 'localhost:1', repository: {name}}}]"
        );
        index.add(name, &text).expect("it is good");
    }
    let options = InstallOptions {
        folder: folder.join("rules"),
        trust,
        allow_rollback: false,
        engine_version: Version::new(0, 57, 0),
        index,
    };
    let folder = folder.to_owned();
    Installer::new(options, move |reference: &Reference| {
        let layout = Layout::open(&folder.join(&reference.repository));
        Ok(Box::new(layout) as Box<dyn Source>)
    })
}

fn wanted(text: &str) -> Wanted {
    Wanted::parse(text).expect("it is good")
}

fn publish_three(folder: &Path) {
    publish(folder, "base", "1.0.0", &[]);
    publish(folder, "base", "1.2.0", &[]);
    publish(folder, "middle", "1.0.0", &["base:1.0.0"]);
    publish(folder, "web", "1.0.0", &["middle:1.0.0"]);
    publish(folder, "web", "1.1.0", &["middle:1.0.0"]);
}

#[test]
fn an_installed_dependency_counts_only_with_its_file_and_a_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    publish_three(folder);
    let here = installer(folder, Trust::Nobody, &["base", "middle", "web"]);
    let install = |text: &str| {
        let done = here.install(&wanted(text), &NoCheck).expect(text);
        let steps = done.steps.into_iter();
        let steps = steps.map(|step| format!("{} {}", step.name, step.installed.version));
        steps.collect::<Vec<_>>()
    };
    assert_eq!(install("base:1.2.0"), ["base 1.2.0"]);
    assert_eq!(install("web:1.0.0"), ["middle 1.0.0", "web 1.0.0"]);
    assert_eq!(install("web:1.0.0"), [""; 0]);
    let file = folder.join("rules/artifact-00-base.yaml");
    let good = fs::read_to_string(&file).expect("it is there");
    // Of what the dependency needs, on the way that reads the digest alone. The version stays the newer one.
    fs::write(&file, "").expect("it can be written");
    let all = ["base 1.2.0", "middle 1.0.0", "web 1.0.0"];
    assert_eq!(install("web:1.0.0"), all);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), good);
    fs::remove_file(&file).expect("it is there");
    let without = installer(folder, Trust::Nobody, &["web", "middle"]);
    let error = without
        .install(&wanted("web:1.1.0"), &NoCheck)
        .expect_err("there is no base");
    assert!(
        error.to_string().contains("`base` is installed, but"),
        "{error}"
    );
    assert_eq!(
        install("web:1.1.0"),
        ["base 1.2.0", "middle 1.0.0", "web 1.1.0"]
    );
    assert_eq!(fs::read_to_string(&file).expect("it is there"), good);
    // Whoever asks for a key does not take what was installed without one, or with another one.
    let key = PublicKey::from_pem(KEY).expect("it is a key");
    let trust = Trust::Keys {
        keys: vec![key.clone()],
        signed_as: None,
    };
    let strict = installer(folder, trust, &[]);
    let store = Store::open(&folder.join("rules")).expect("it is free");
    let mut state = store.read().expect("it is there");
    let mut counts = |name: &str, by: Option<Digest>| {
        let installed = state.0.get_mut(name).expect("it is installed");
        installed.key = by;
        strict
            .counts(&store, &state, "web")
            .expect("it can be read")
    };
    let by = Some(key.fingerprint());
    assert!(!counts("web", by.clone()));
    assert!(!counts("middle", by.clone()));
    assert!(!counts("base", Some(Digest::of(b"another key"))));
    assert!(counts("base", by));
}
