//! Tests of bundles.

use std::os::unix::fs::PermissionsExt;

use bundle::PrivateKey;

use super::*;
use crate::options::{Detection, Interception};
use crate::settings::{configuration, configuration_with};

struct Fixture {
    output: CollectorOutput,
    key: PrivateKey,
    folder: BundleFolder,
    _temporary: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let temporary = tempfile::tempdir().expect("a folder for temporary files");
    let key = PrivateKey::generate().expect("random numbers");
    let path = temporary.path().join("key");
    fs::write(&path, key.public().to_text()).expect("writable");
    let output = CollectorOutput {
        enabled: true,
        url: "https://c".to_owned(),
        bundle_key: path,
        spool: temporary.path().join("spool"),
        ..CollectorOutput::default()
    };
    let folder = BundleFolder::of(&output)
        .expect("a key")
        .expect("it is pinned");
    Fixture {
        output,
        key,
        folder,
        _temporary: temporary,
    }
}

fn bundle(key: &PrivateKey, version: u64) -> String {
    let rules = vec![File {
        name: "a.yaml".to_owned(),
        text: String::new(),
    }];
    let content = Content {
        version,
        rules,
        ..Content::default()
    };
    content.pack().expect("it is good").sign(key).to_text()
}

#[test]
fn the_last_bundle_is_believed_only_as_it_was_kept() {
    let Fixture { key, folder, .. } = &fixture();
    assert!(folder.last_good().expect("readable").is_none());
    let text = bundle(key, 3);
    folder.keep(Some(&text)).expect("writable");
    let last = folder.last_good().expect("readable").expect("it is there");
    assert_eq!(last.content.version, 3);
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!((mode(&folder.folder), mode(&folder.path())), (0o700, 0o600));

    let other = PrivateKey::generate().expect("random numbers");
    for (bad, expected) in [
        (bundle(&other, 4), "which is pinned"),
        (text.replace(":3", ":4"), "changed after it was signed"),
        (String::new(), "cannot be read"),
    ] {
        fs::write(folder.path(), bad).expect("writable");
        let problem = folder.last_good().expect_err(expected);
        assert!(problem.contains(expected), "{problem}");
    }
    fs::write(folder.path(), &text).expect("writable");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    for path in [folder.path(), folder.folder.clone()] {
        let before = mode(&path);
        set(&path, before | 0o020);
        let problem = folder.last_good().expect_err("others can write it");
        assert!(problem.contains("others can write"), "{problem}");
        set(&path, before);
    }
    assert!(folder.last_good().expect("readable").is_some());
    fs::rename(folder.path(), folder.folder.join("elsewhere")).expect("it is ours");
    std::os::unix::fs::symlink("elsewhere", folder.path()).expect("writable");
    folder.last_good().expect_err("a link");
}

#[test]
fn policies_come_after_a_last_bundle_that_can_be_read() {
    let Fixture {
        key,
        folder,
        output,
        ..
    } = &fixture();
    let with = |policies: &[File]| Content {
        version: 7,
        policies: policies.to_vec(),
        ..Content::default()
    };
    let (none, some) = (
        with(&[]),
        with(&[File {
            name: "web".to_owned(),
            text: "x".to_owned(),
        }]),
    );
    assert_eq!(folder.before(&some).map(|it| it.is_some()), Ok(false));
    folder.keep(Some(&bundle(key, 3))).expect("writable");
    let newer = CollectorOutput {
        bundle_min_version: 4,
        ..output.clone()
    };
    let newer = BundleFolder::of(&newer).expect("a key");
    let newer = newer.expect("it is pinned");
    newer.last_good().expect_err("it is too old to be used");
    for folder in [folder, &newer] {
        let before = folder.before(&some).expect("readable");
        assert_eq!(before.expect("it is there").version, 3);
    }
    fs::write(folder.path(), "no bundle").expect("writable");
    let why = folder.before(&some).expect_err("nobody knows what it had");
    assert!(
        why.contains("cannot be read") && why.contains("--allow-loosening"),
        "{why}"
    );
    assert_eq!(folder.before(&none).map(|it| it.is_some()), Ok(false));
    let loose = BundleFolder {
        allows_looser: true,
        ..folder.clone()
    };
    assert_eq!(loose.before(&some).map(|it| it.is_some()), Ok(false));
}

/// Settings of captures around alerts.
const ON_ALERT: &str = "collector_output.capture_on_alert";

/// A bundle with one file of rules.
fn with(rules: &str, settings: &[&str]) -> Content {
    Content {
        version: 7,
        rules: vec![File {
            name: "a.yaml".to_owned(),
            text: rules.to_owned(),
        }],
        policies: Vec::new(),
        settings: settings.iter().map(|it| (*it).to_owned()).collect(),
    }
}

fn rule(condition: &str) -> String {
    format!("- rule: r\n  desc: d\n  condition: {condition}\n  output: o\n  priority: INFO\n")
}

/// Checks that an agent starts without a bundle that it kept, and says why.
fn is_refused(
    key: &PrivateKey,
    (detection, folder): &(Detection, BundleFolder),
    content: &Content,
    expected: &str,
) {
    let text = content.pack().expect("it is good").sign(key).to_text();
    folder.keep(Some(&text)).expect("writable");
    let (config, warnings) = settings(detection);
    assert!(config.bundled_rules.is_empty(), "{expected}");
    let is_said = |warning: &String| {
        warning.contains("the last bundle is not used") && warning.contains(expected)
    };
    assert!(warnings.iter().any(is_said), "{warnings:?}");
    let record = record(&config, detection)
        .report()
        .expect("a key is pinned");
    assert_eq!(record.in_force, None);
    let (digest, reason) = record.refused.expect("it is refused");
    let signed = Signed::parse(&text).expect("a bundle");
    assert_eq!(digest, signed.digest());
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn a_bundle_that_this_build_cannot_load_is_refused_and_own_rules_come_into_force() {
    let Fixture {
        key,
        folder,
        output,
        ..
    } = &fixture();
    let agent = started(output, folder);
    for (content, expected) in [
        (with(&rule("no.such.field = 1"), &[]), "no.such.field"),
        (with("- no list", &[]), "cannot use the rules"),
        (with(&rule("evt.type = open"), &["priority=loud"]), "loud"),
    ] {
        is_refused(key, &agent, &content, expected);
    }
    let (detection, folder) = &agent;
    let good = with(&rule("evt.type = open"), &[]);
    let text = good.pack().expect("it is good").sign(key).to_text();
    folder.keep(Some(&text)).expect("writable");
    let (config, warnings) = settings(detection);
    assert_eq!((config.bundled_rules.len(), warnings.len()), (1, 0));
    let record = record(&config, detection)
        .report()
        .expect("a key is pinned");
    assert_eq!(record.in_force.expect("it is in force").0, 7);
    assert_eq!(record.refused, None);
}

#[test]
fn alerts_to_record_around_in_a_bundle_are_checked_as_those_of_the_agent() {
    let Fixture {
        key,
        folder,
        output,
        ..
    } = &fixture();
    let agent = started(output, folder);
    let many = vec!["rules[]=R"; 201];
    for (named, expected) in [
        (
            &["priority=loud"][..],
            "unknown priority `loud`; name one as in rules, such as WARNING",
        ),
        (&["before=61"], "expected a number from 0 to 60, found 61"),
        (
            &many,
            "201 rules are named to record around, and 200 is the most",
        ),
        // As an agent that names them itself without this.
        (&["priority=WARNING"], "collector_output.allow_captures"),
    ] {
        let named = named.iter().map(|setting| format!("{ON_ALERT}.{setting}"));
        let named: Vec<_> = named.collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let content = with(&rule("evt.type = open"), &named);
        is_refused(key, &agent, &content, expected);
    }
}

#[test]
fn a_bundle_names_alerts_to_record_around_for_agents_that_allow_captures() {
    let Fixture {
        key,
        folder,
        output,
        ..
    } = &fixture();
    let (mut detection, folder) = started(output, folder);
    let allows = "collector_output.allow_captures=true".to_owned();
    let own = format!("{ON_ALERT}.max_per_hour=2");
    detection.options.extend([allows, own]);
    let named = ["priority=WARNING", "rules[]=R", "before=7", "after=8"];
    let content = Content {
        settings: named.map(|setting| format!("{ON_ALERT}.{setting}")).into(),
        ..with("- list: l\n  items: [a]\n", &[])
    };
    let text = content.pack().expect("it is good").sign(key).to_text();
    folder.keep(Some(&text)).expect("writable");
    let (config, warnings) = settings(&detection);
    assert_eq!(warnings, Vec::<String>::new());
    let on_alert = &config.outputs.collector.capture_on_alert;
    assert_eq!(on_alert.priority, Some(rules::Priority::Warning));
    assert_eq!(on_alert.rules, ["R"]);
    assert_eq!((on_alert.before, on_alert.after), (7, 8));
    assert_eq!(on_alert.max_per_hour, 2, "the agent decides");
}

#[test]
fn a_reload_records_which_bundle_is_in_force_then() {
    let Fixture {
        key,
        folder,
        output,
        ..
    } = &fixture();
    let (detection, folder) = started(output, folder);
    folder.keep(Some(&bundle(key, 3))).expect("writable");
    let record = record(&settings(&detection).0, &detection);
    let report = || record.report().expect("a key is pinned");
    assert_eq!(report().in_force.expect("one").0, 3);
    // What was refused when it arrived stays so.
    let refused = Some(("d".to_owned(), "why".to_owned()));
    record.set(BundleReport {
        refused: refused.clone(),
        ..report()
    });
    let renew = || record.renew(&settings(&detection).0);
    assert_eq!(renew(), None);
    assert_eq!(report().refused, refused);
    record.adopted("other");
    assert_eq!(report().refused, refused);
    record.adopted(&report().in_force.expect("one").1);
    assert_eq!(report().refused, None);
    fs::write(folder.path(), "no bundle").expect("writable");
    let problem = renew().expect("it is not believed");
    assert!(problem.contains("cannot be read"), "{problem}");
    assert_eq!(renew(), None, "that is known");
    let after = report();
    assert_eq!(after.in_force, None);
    assert_eq!(after.refused.expect("one"), (String::new(), problem));
    folder.keep(Some(&bundle(key, 4))).expect("writable");
    assert_eq!(renew(), None);
    assert_eq!(report().in_force.expect("one").0, 4);
    assert_eq!(report().refused, None);
    folder.keep(None).expect("writable");
    assert_eq!(renew(), None);
    assert_eq!(report(), BundleReport::default());
}

/// Returns an agent with its own rules that takes bundles, and where it keeps them.
fn started(output: &CollectorOutput, folder: &BundleFolder) -> (Detection, BundleFolder) {
    let setting = |name: &str, path: &Path| {
        let path = path.display();
        format!("collector_output.{name}={path}")
    };
    let detection = Detection {
        rules: vec!["/dev/null".into()],
        options: vec![
            "collector_output.enabled=true".to_owned(),
            "collector_output.url=https://c".to_owned(),
            "collector_output.token_file=/t".to_owned(),
            setting("bundle_key", &output.bundle_key),
            setting("spool", &output.spool),
        ],
        ..Detection::default()
    };
    let own = BundleFolder::of(&settings(&detection).0.outputs.collector)
        .expect("a key")
        .expect("it is pinned")
        .folder;
    let folder = BundleFolder {
        folder: own,
        ..folder.clone()
    };
    (detection, folder)
}

fn settings(detection: &Detection) -> (Config, Vec<String>) {
    let made = configuration(detection, &Interception::default());
    made.expect("a bundle is no reason not to start")
}

fn record(config: &Config, detection: &Detection) -> BundleRecord {
    let detection = detection.clone();
    let with: ConfigWith = Box::new(move |content| {
        let interception = Interception::default();
        configuration_with(&detection, &interception, Some(content)).map(|made| made.0)
    });
    BundleRecord::of(config, with, PolicyTaker::Not("watch"))
}

#[test]
fn an_agent_without_a_bundle_takes_none_before_the_least_version() {
    let Fixture { key, output, .. } = &fixture();
    for allow_rollback in [false, true] {
        let output = CollectorOutput {
            bundle_min_version: 3,
            allow_rollback,
            ..output.clone()
        };
        let folder = BundleFolder::of(&output)
            .expect("a key")
            .expect("it is pinned");
        folder.accept(bundle(key, 3)).expect("it is new enough");
        let problem = folder.accept(bundle(key, 2)).expect_err("it is older");
        assert!(problem.contains("version 2 is older than 3"), "{problem}");
        // What was kept before the agent was told so is not used, either.
        folder.keep(Some(&bundle(key, 2))).expect("writable");
        folder.last_good().expect_err("it is older");
    }
}

#[test]
fn a_key_that_cannot_be_read_is_an_error_and_no_key_takes_no_bundles() {
    assert!(
        BundleFolder::of(&CollectorOutput::default())
            .expect("no key")
            .is_none()
    );
    let output = CollectorOutput {
        enabled: true,
        bundle_key: "/proc/self/cmdline".into(),
        ..CollectorOutput::default()
    };
    let failure = BundleFolder::of(&output).expect_err("no key");
    assert!(
        failure.message().contains("expected a public key"),
        "{}",
        failure.message()
    );
}
