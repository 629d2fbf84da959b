//! Rules as artefacts of a real registry, which is Debian's `docker-registry`.

mod registry;

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::PKCS_ECDSA_P256_SHA256;
use serde_json::{Value, json};

use registry::{LIMIT, Registry, copy, rule, test_of};

#[test]
fn published_rules_are_installed_once_and_pinned_by_digest() {
    let registry = Registry::start();
    let pushed = registry.run(
        "push %R/rules/marked:1.0.0 %F/marked.yaml --test %F/marked_test.yaml --sign-key %F/key.key --plain-http --json",
    );
    let pushed: Value = serde_json::from_str(&pushed.ok()).expect("it is JSON");
    let digest = pushed["digest"].as_str().expect("a digest");
    let said = registry.install("%R/rules/marked:1.0.0").ok();
    assert!(said.contains("files of tests passed: 1"), "{said}");
    assert_eq!(registry.rules(), ["artifact-00-marked.yaml"]);
    let path = registry.path("config/rules.d/artifact-00-marked.yaml");
    assert_eq!(
        fs::read_to_string(&path).expect("it is there"),
        rule("marked")
    );
    let state = registry.installed("marked");
    assert_eq!(
        [&state["version"], &state["digest"], &state["repository"]],
        ["1.0.0", digest, "rules/marked"]
    );
    let again = registry.install(&format!("%R/rules/marked@{digest}")).ok();
    assert!(again.contains("installed already"), "{again}");
    // A file that somebody changed is put back.
    fs::write(&path, "").expect("it can be written");
    registry.install("%R/rules/marked:1.0.0").ok();
    assert_eq!(
        fs::read_to_string(&path).expect("it is there"),
        rule("marked")
    );
    let other = format!("sha256:{}", "0".repeat(64));
    registry
        .install(&format!("%R/rules/marked@{other}"))
        .refused("no such artefact");
    // Another key, and none.
    registry.make_key("other", &PKCS_ECDSA_P256_SHA256);
    registry
        .run("verify %R/rules/marked:1.0.0 --plain-http --key %F/other.pub")
        .refused("by another key");
    let said = registry.run("verify %R/rules/marked:1.0.0 --plain-http");
    assert!(
        said.err.contains("--key") && said.code == Some(2),
        "{}",
        said.err
    );
}

#[test]
fn what_was_changed_replayed_or_not_signed_is_refused() {
    let registry = Registry::start();
    let first = registry.push("rules/marked:1.0.0", "marked.yaml");
    registry.file("other.yaml", &rule("other"));
    let words = "push %R/rules/marked:2.0.0 %F/other.yaml --plain-http --json";
    let second: Value = serde_json::from_str(&registry.run(words).ok()).expect("it is JSON");
    let second = second["digest"].as_str().expect("a digest").to_owned();
    registry
        .install("%R/rules/marked:2.0.0")
        .refused("it is not signed");
    // The signature of another artefact of the repository.
    let tags = registry.repository("rules/marked/_manifests/tags");
    let tag = |digest: &str| tags.join(format!("{}.sig", digest.replace(':', "-")));
    copy(&tag(&first), &tag(&second));
    registry
        .install("%R/rules/marked:2.0.0")
        .refused(&format!("a signature is one of {first}"));
    // An artefact of another repository with its signature.
    copy(
        &registry.repository("rules/marked"),
        &registry.repository("rules/copy"),
    );
    registry
        .install("%R/rules/copy:1.0.0")
        .refused("a signature is one of the repository");
    let place = format!("localhost:{}/rules/marked", registry.port);
    let original = format!("%R/rules/copy:1.0.0 --signed-as {place}");
    registry
        .run(&format!("verify {original} --plain-http --key %F/key.pub"))
        .ok();
    // Another artefact under the tag of a version.
    let old = tags.join("1.0.0/current/link");
    copy(
        &old,
        &registry.repository("rules/copy/_manifests/tags/2.0.0/current/link"),
    );
    registry
        .install(&format!("%R/rules/copy:2.0.0 --signed-as {place}"))
        .refused("the tag is 2.0.0, and its version is 1.0.0");
    assert!(registry.rules().is_empty(), "{:?}", registry.rules());
    let said = registry.run("verify %R/rules/marked:2.0.0 --plain-http --allow-unsigned");
    let said = said.ok();
    assert!(said.contains("2.0.0: read, and not verified"), "{said}");
    registry
        .run("install %R/rules/marked:2.0.0 --plain-http --allow-unsigned")
        .ok();
}

#[test]
fn content_that_a_registry_changed_is_refused() {
    let registry = Registry::start();
    registry.push("rules/third:1.0.0", "marked.yaml");
    let words = "verify %R/rules/third:1.0.0 --plain-http --key %F/key.pub --json";
    let third: Value = serde_json::from_str(&registry.run(words).ok()).expect("it is JSON");
    for part in ["layer_digest", "digest"] {
        let path = registry.blob(third[part].as_str().expect("a digest"));
        let good = fs::read(&path).expect("it is there");
        let mut bad = good.clone();
        let last = bad.len() - 3;
        bad[last] ^= 1;
        fs::write(&path, bad).expect("it can be written");
        let said = registry.install("%R/rules/third:1.0.0");
        // The registry itself looks at manifests, and refuses that one.
        assert_ne!(said.code, Some(0), "{part}: {}", said.out);
        let is_noticed = said.err.contains("its digest is") || part == "digest";
        assert!(is_noticed && registry.rules().is_empty(), "{}", said.err);
        fs::write(&path, good).expect("it can be written");
    }
    registry.install("%R/rules/third:1.0.0").ok();
}

#[test]
fn older_versions_and_other_content_of_a_version_are_refused() {
    let registry = Registry::start();
    registry.push("rules/marked:1.0.0 --add-tag 1", "marked.yaml");
    registry.file("newer.yaml", &(rule("marked") + "# newer\n"));
    registry.push("rules/marked:1.1.0 --add-tag 1", "newer.yaml");
    registry.install("%R/rules/marked:1").ok();
    assert_eq!(registry.installed("marked")["version"], "1.1.0");
    // The tag is moved back.
    registry.push("rules/marked:1.0.0 --add-tag 1", "marked.yaml");
    registry
        .install("%R/rules/marked:1")
        .refused("refusing marked 1.0.0: the newer version 1.1.0 is installed");
    assert_eq!(registry.installed("marked")["version"], "1.1.0");
    registry.install("%R/rules/marked:1 --allow-rollback").ok();
    assert_eq!(registry.installed("marked")["version"], "1.0.0");
    registry.file("again.yaml", &(rule("marked") + "# again\n"));
    registry.push("rules/marked:1.0.0", "again.yaml");
    registry
        .install("%R/rules/marked:1.0.0")
        .refused("refusing marked 1.0.0: it was installed as");
}

/// Publishes a version of `marked` without this program, and tries to install it.
fn install_put(registry: &Registry, version: &str, layer: &[u8]) -> registry::Said {
    let config = json!({"name": "marked", "version": version});
    registry.put(
        &format!("rules/marked:{version}"),
        "rulesfile",
        &config,
        layer,
    );
    install_version(registry, version)
}

fn install_version(registry: &Registry, version: &str) -> registry::Said {
    registry.run(&format!(
        "install %R/rules/marked:{version} --plain-http --allow-unsigned"
    ))
}

/// The first version is installed, as it was.
#[track_caller]
fn assert_unchanged(registry: &Registry) {
    assert_eq!(registry.installed("marked")["version"], "1.0.0");
    assert_eq!(registry.rules(), ["artifact-00-marked.yaml"]);
    let path = registry.path("config/rules.d/artifact-00-marked.yaml");
    assert_eq!(
        fs::read_to_string(path).expect("it is there"),
        rule("marked")
    );
}

#[test]
fn rules_that_do_not_compile_or_fail_their_tests_leave_the_old_ones() {
    let registry = Registry::start();
    install_put(&registry, "1.0.0", &registry.tar(&[], &["marked.yaml"])).ok();
    let bad = "- rule: B\n  condition: no.field = 1\n  desc: d\n  output: o\n  priority: INFO\n";
    registry.file("bad.yaml", bad);
    install_put(&registry, "1.1.0", &registry.tar(&[], &["bad.yaml"])).refused("no.field");
    fs::create_dir(registry.path("tests")).expect("it is new");
    registry.file("tests/fails.yaml", &test_of("marked", "other"));
    let layer = registry.tar(&[], &["marked.yaml", "tests"]);
    install_put(&registry, "1.2.0", &layer).refused("tests of marked fail");
    registry.file(
        "tests/fails.yaml",
        "tests: [{name: n, capture: /etc/shadow, alerts: []}]",
    );
    let layer = registry.tar(&[], &["marked.yaml", "tests"]);
    install_put(&registry, "1.3.0", &layer).refused("is not beside the tests");
    assert_unchanged(&registry);
}

#[test]
fn archives_and_manifests_of_another_form_leave_the_old_rules() {
    let registry = Registry::start();
    let good = registry.tar(&[], &["marked.yaml"]);
    install_put(&registry, "1.0.0", &good).ok();
    let layer = registry.tar(&["--transform=s,^,../,"], &["marked.yaml"]);
    install_put(&registry, "1.3.0", &layer).refused("leads out of it");
    std::os::unix::fs::symlink("/etc/passwd", registry.path("link.yaml")).expect("it is new");
    let layer = registry.tar(&[], &["marked.yaml", "link.yaml"]);
    install_put(&registry, "1.4.0", &layer).refused("neither a file nor a folder");
    fs::write(registry.path("zeros.yaml"), vec![b'\n'; 20 << 20]).expect("there is space");
    let layer = registry.tar(&[], &["zeros.yaml"]);
    install_put(&registry, "1.5.0", &layer).refused("unpacks to more than");
    let named = |version: &str| json!({"name": "marked", "version": version});
    let needs = json!({"name": "marked", "version": "1.9.0", "requirements": [
        {"name": "engine_version_semver", "version": "0.999.0"},
    ]});
    for (version, kind, config, problem) in [
        (
            "1.6.0",
            "plugin",
            named("1.6.0"),
            "this program installs none",
        ),
        (
            "1.7.0",
            "driver",
            named("1.7.0"),
            "falco.driver.config.v1+json",
        ),
        ("1.8.0", "rulesfile", json!({}), "it has no name"),
        (
            "1.9.0",
            "rulesfile",
            needs,
            "it requires Falco's engine 0.999.0",
        ),
    ] {
        registry.put(&format!("rules/marked:{version}"), kind, &config, &good);
        install_version(&registry, version).refused(problem);
    }
    assert_unchanged(&registry);
}

#[test]
fn what_rules_need_is_installed_before_them_from_an_index() {
    let registry = Registry::start();
    let index = format!(
        "- {{name: base, type: rulesfile, registry: 'localhost:{0}', repository: rules/base, keywords: [files]}}\n\
         - {{name: web, type: rulesfile, registry: 'localhost:{0}', repository: rules/web}}\n\
         - {{name: k8saudit, type: plugin, registry: 'localhost:{0}', repository: plugins/k8saudit}}\n",
        registry.port
    );
    registry.file("index.yaml", &index);
    registry.file(
        "base.yaml",
        "- macro: opens\n  condition: evt.type in (open, openat)\n",
    );
    registry.file(
        "web.yaml",
        "- {rule: W, desc: d, condition: opens and fd.name = /w, output: o, priority: INFO}\n",
    );
    registry.push("rules/base:1.2.0", "base.yaml");
    registry.push("rules/web:3.0.0 --depends-on base:1.2.0", "web.yaml");
    let said = registry.run("search FILES --index %F/index.yaml").ok();
    assert!(
        said.contains("rules/base") && !said.contains("rules/web"),
        "{said}"
    );
    registry
        .install("webs:3.0.0 --index %F/index.yaml")
        .refused("did you mean `web`?");
    registry
        .install("k8saudit --index %F/index.yaml")
        .refused("it is a plug-in");
    registry
        .install("%R/rules/web:3.0.0")
        .refused("no index has `base`");
    registry.install("web:3.0.0 --index %F/index.yaml").ok();
    assert_eq!(
        registry.rules(),
        ["artifact-00-base.yaml", "artifact-01-web.yaml"]
    );
    registry.push("rules/web:3.1.0 --depends-on k8saudit:0.1.0", "web.yaml");
    registry
        .install("web:3.1.0 --index %F/index.yaml")
        .refused("`k8saudit` is a plugin");
}

#[test]
fn a_follower_installs_newer_rules_and_a_running_watch_loads_them() {
    let registry = Registry::start();
    fs::create_dir_all(registry.path("config/rules.d")).expect("it is new");
    registry.file("config/config.yaml", "watch_config_files: true\n");
    registry.file("marked", "");
    registry.file("harmless.yaml", "- list: harmless\n  items: []\n");
    registry.push("rules/marked:1.0.0 --add-tag 1", "harmless.yaml");
    let log = |name: &str| fs::File::create(registry.path(name)).expect("it can be made");
    let text = |name: &str| fs::read_to_string(registry.path(name)).expect("it is there");
    let follow = "follow %R/rules/marked:1 --plain-http --key %F/key.pub --every 1s";
    let mut follower = registry
        .command(follow)
        .stderr(log("followed"))
        .spawn()
        .expect("it can be started");
    let script = format!(
        "while [ ! -e {0}/stop ]; do cat {0}/marked; sleep 0.1; done",
        registry.folder.path().display()
    );
    let mut watch = Command::new(e2e::program())
        .args(["run", "--", "sh", "-c", &script])
        .env("TOLLGATE_CONFIG_DIR", registry.path("config"))
        .stdin(Stdio::null())
        .stderr(log("alerts"))
        .spawn()
        .expect("it can be started");
    let wait = |name: &str, words: &str| {
        let deadline = Instant::now() + LIMIT;
        while !text(name).contains(words) {
            assert!(
                Instant::now() < deadline,
                "no `{words}`: {}{}",
                text("followed"),
                text("alerts")
            );
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait("followed", "installed marked 1.0.0");
    registry.push("rules/marked:1.1.0 --add-tag 1", "marked.yaml");
    wait("followed", "installed marked 1.1.0 (before: 1.0.0)");
    wait("alerts", "opened ");
    registry.file("stop", "");
    assert!(watch.wait().expect("it is a child").success());
    follower.kill().expect("it runs");
    follower.wait().expect("it is a child");
}

#[test]
fn a_layout_on_disk_has_the_same_digests_and_is_verified() {
    let registry = Registry::start();
    let digest = registry.push("rules/marked:1.0.0", "marked.yaml");
    let layout = "%R/rules/marked:1.0.0 --layout %F/layout";
    let words = "--sign-key %F/key.key --json";
    let said = registry
        .run(&format!("push {layout} %F/marked.yaml {words}"))
        .ok();
    assert!(said.contains(&digest), "{said}");
    registry
        .run(&format!("verify {layout} --key %F/key.pub"))
        .ok();
    registry.make_key("other", &PKCS_ECDSA_P256_SHA256);
    registry
        .run(&format!("verify {layout} --key %F/other.pub"))
        .refused("by another key");
    registry
        .run(&format!(
            "push {layout} %F/marked.yaml --sign-key %F/other.key"
        ))
        .ok();
    registry
        .run(&format!("verify {layout} --key %F/other.pub"))
        .ok();
}
