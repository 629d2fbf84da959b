//! The rule of a silenced alert still detects its own action.

use std::fs;

use e2e::program;
use serde_json::{Value, json};

use super::{Place, alert};

/// The action that the rule is for is performed by the event generator, which is this program.
#[test]
fn the_rule_must_still_detect_its_own_action() {
    let place = Place::new();
    let own = alert("/usr/bin/backup", "/etc/shadow");
    let finished = place.silence(&["--json"], &own);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let object: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let played = &object["own_action"];
    assert_eq!(
        (&played["verdict"], &played["action"]),
        (
            &json!("detected"),
            &json!("syscall.ReadSensitiveFileUntrusted")
        ),
        "{object}"
    );
    let before = place.files();
    let exe = fs::canonicalize(program()).expect("it is there");
    let by_generator = alert(exe.to_str().expect("it is text"), "/etc/shadow");
    let refused = place.silence(&[], &by_generator);
    assert_eq!(refused.code(), 2, "{refused:?}");
    let message = "the rule no longer detects its own action syscall.ReadSensitiveFileUntrusted";
    assert!(refused.stderr.contains(message), "{refused:?}");
    assert_eq!(place.files(), before, "nothing is written");
    let forced = place.silence(&["--force"], &by_generator);
    assert_eq!(forced.code(), 0, "{forced:?}");
    assert!(
        forced
            .stdout
            .contains("not detected: the rule's own action"),
        "{forced:?}"
    );
}

#[test]
fn an_exception_to_a_hunting_rule_is_written_while_its_level_is_off() {
    let place = Place::new();
    let mut hunting = alert("/usr/bin/backup", "/home/ann/.ssh/id_rsa");
    hunting["rule"] = "Read ssh information".into();
    let finished = place.silence(&[], &hunting);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let name = "silence-read-ssh-information-1.yaml";
    let test = format!("rules.d/tests/{name}");
    assert_eq!(place.files(), [format!("rules.d/{name}"), test.clone()]);
    assert!(place.read(&test).contains("level: hunting\n"));
    let tested = place.run(&["rules", "test", &test], "");
    assert_eq!(tested.code(), 0, "{tested:?}");
}
