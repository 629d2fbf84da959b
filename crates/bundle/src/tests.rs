//! Tests of bundles.

use super::*;

fn file(name: &str) -> File {
    File {
        name: name.to_owned(),
        text: String::new(),
    }
}

fn content() -> Content {
    Content {
        version: 3,
        rules: vec![File {
            name: "a.yaml".to_owned(),
            text: "- list: x\n  items: [\"é\"]\n".to_owned(),
        }],
        policies: vec![file("web")],
        settings: vec!["outputs.rate=5".to_owned()],
    }
}

#[test]
fn a_bundle_is_believed_only_as_its_key_signed_it() {
    let (key, other) = (
        PrivateKey::generate().expect("random numbers"),
        PrivateKey::generate().expect("random numbers"),
    );
    let unsigned = content().pack().expect("it is good");
    let signed = unsigned.clone().sign(&key);
    let again = Signed::parse(&signed.to_text()).expect("a bundle");
    assert_eq!(
        again.verify(&key.public()).expect("it is signed"),
        content()
    );
    assert_eq!(again.digest(), signed.digest());
    let error = again.verify(&other.public()).expect_err("another key");
    assert!(matches!(error, BundleError::OtherKey { .. }), "{error}");
    let error = unsigned
        .into_signed()
        .verify(&key.public())
        .expect_err("unsigned");
    assert!(matches!(error, BundleError::Unsigned), "{error}");
    // Each character of the payload and of the signature counts.
    let text = signed.to_text();
    for (from, to) in [
        ("\\\"version\\\":3", "\\\"version\\\":4"),
        ("rate=5", "rate=6"),
    ] {
        assert!(text.contains(from), "{text}");
        let changed = Signed::parse(&text.replace(from, to)).expect("a bundle");
        let error = changed.verify(&key.public()).expect_err("it was changed");
        assert!(matches!(error, BundleError::Tampered), "{error}");
    }
    let mut forged = signed.clone();
    forged.signature = Some((key.public(), other.sign(&message(&signed.payload))));
    let error = forged
        .verify(&key.public())
        .expect_err("another key signed");
    assert!(matches!(error, BundleError::Tampered), "{error}");
    // A signature over the payload alone is one for something else.
    forged.signature = Some((key.public(), key.sign(signed.payload.as_bytes())));
    assert!(forged.verify(&key.public()).is_err());
}

#[test]
fn a_bundle_that_another_key_signs_is_another_one() {
    let (key, other) = (
        PrivateKey::generate().expect("random numbers"),
        PrivateKey::generate().expect("random numbers"),
    );
    let unsigned = content().pack().expect("it is good").into_signed();
    let wrongly = unsigned.clone().sign(&other);
    let rightly = wrongly.clone().sign(&key);
    let digests = [&unsigned, &wrongly, &rightly].map(Signed::digest);
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    // Who says that the right key signed it, but did not, makes another one, too.
    let mut forged = wrongly.clone();
    forged.signature = Some((key.public(), other.sign(&message(&wrongly.payload))));
    assert!(!digests.contains(&forged.digest()));
    assert_eq!(unsigned.sign(&key).digest(), digests[2]);
}

#[test]
fn what_no_bundle_may_hold_is_refused() {
    let with = |rules: Vec<File>| Content { rules, ..content() };
    for (bad, expected) in [
        (
            Content {
                version: 0,
                ..content()
            },
            "version",
        ),
        (
            Content {
                version: u64::MAX,
                ..content()
            },
            "version",
        ),
        (
            Content {
                policies: Vec::new(),
                ..with(Vec::new())
            },
            "no rule file and no policy",
        ),
        (
            Content {
                policies: vec![file("a/b")],
                ..content()
            },
            "names no policy",
        ),
        (
            Content {
                policies: vec![file("a"), file("a")],
                ..content()
            },
            "policy a twice",
        ),
        (
            Content {
                policies: (0..=MAX_POLICIES).map(|n| file(&n.to_string())).collect(),
                ..content()
            },
            "may have 64",
        ),
        (with(vec![file("../a")]), "names no rule file"),
        (with(vec![file(".a")]), "names no rule file"),
        (with(vec![file("")]), "names no rule file"),
        (with(vec![file("a"), file("a")]), "rule file a twice"),
    ] {
        let error = bad.pack().expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn settings_that_name_a_program_a_file_or_a_server_are_refused() {
    for setting in [
        "program_output.program=sh",
        "collector_output.url=https://x",
        "outputs.rate",
        "rulesx=1",
        "collector_output.allow_captures=true",
        "collector_output.capture_on_alert.limit=12",
        "collector_output.capture_on_alert.max_per_hour=1000",
        "collector_output.capture_on_alert={priority: DEBUG}",
        "rules_files=/etc/passwd",
    ] {
        let settings = vec![setting.to_owned()];
        let error = Content {
            settings,
            ..content()
        }
        .pack()
        .expect_err(setting);
        assert!(
            error.to_string().contains("no setting that a bundle"),
            "{error}"
        );
    }
}

#[test]
fn a_bundle_that_is_too_large_is_refused() {
    let large = Content {
        rules: vec![File {
            text: "x".repeat(MAX_BYTES),
            ..file("a")
        }],
        ..content()
    };
    assert!(
        large
            .pack()
            .expect_err("too large")
            .to_string()
            .contains("exceeds")
    );
}

#[test]
fn a_newer_form_and_what_is_no_bundle_are_refused() {
    let newer = r#"{"tollgate_bundle": 2, "payload": ""}"#;
    let error = Signed::parse(newer).expect_err("newer");
    assert!(matches!(error, BundleError::Newer { found: 2 }), "{error}");
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"tollgate_bundle": 1, "payload": "", "key": "x"}"#,
    ] {
        assert!(Signed::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn keys_are_texts() {
    let key = PrivateKey::generate().expect("random numbers");
    let text = key.to_text();
    let again = PrivateKey::parse(&text).expect("a key");
    assert_eq!(again.public(), key.public());
    assert_eq!(
        PublicKey::parse(&key.public().to_text()).expect("a key"),
        key.public()
    );
    assert!(!format!("{key:?}").contains(text.lines().nth(1).expect("a line")));
    for bad in ["", "tgk_", "tgk_AAAA", &text] {
        assert!(PublicKey::parse(bad).is_err(), "{bad}");
    }
    assert!(PrivateKey::parse(&key.public().to_text()).is_err());
}

#[test]
fn policies_alone_make_a_bundle_and_one_without_is_read_by_older_builds() {
    let alone = Content {
        rules: Vec::new(),
        ..content()
    };
    alone.pack().expect("it has a policy");
    let without = Content {
        policies: Vec::new(),
        ..content()
    };
    let text = without
        .pack()
        .expect("it has rules")
        .into_signed()
        .to_text();
    assert!(!text.contains("policies"), "{text}");
}
