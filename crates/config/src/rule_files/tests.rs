use super::*;

#[test]
fn the_builtin_rules_compile_without_a_problem() {
    let mut loaded = load(&[]);
    loaded.compile(&EngineOptions::default(), NoSink);
    assert_eq!(loaded.render(loaded.diagnostics.iter()), "");
    assert!(!loaded.ruleset.rules.is_empty());
}

#[test]
fn folders_give_their_yaml_files_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.yml", "a.yaml", "c.txt"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let names: Vec<_> = expand(dir.path(), |_| true)
        .iter()
        .map(|file| file.name.rsplit('/').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a.yaml", "b.yml"]);
}

#[test]
fn what_is_named_as_a_rule_file_and_is_none_does_not_vanish() {
    let dir = tempfile::tempdir().unwrap();
    let link = |name: &str| std::os::unix::fs::symlink("/no/such", dir.path().join(name));
    link("site.yaml").unwrap();
    link(".#lock.yaml").unwrap();
    fs::create_dir(dir.path().join("x.yml")).unwrap();
    let sources = |named: &[PathBuf], folder: Option<&Path>| RuleSources {
        named: named.to_vec(),
        folder: folder.map(Path::to_owned),
        ..RuleSources::default()
    };
    let own = [dir.path().to_owned()];
    for sources in [sources(&own, None), sources(&[], Some(dir.path()))] {
        let loaded = sources.load();
        let text = loaded.render(loaded.diagnostics.iter());
        for part in [
            "site.yaml: error",
            "No such file",
            "x.yml: error",
            "it is not a file",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("lock.yaml"), "{text}");
    }
    // Falco passes them over.
    fs::write(dir.path().join("a.yaml"), "").unwrap();
    let as_falco = RuleSources {
        as_falco: true,
        ..sources(&own, None)
    };
    let loaded = as_falco.load();
    assert_eq!((loaded.files.len(), loaded.diagnostics.len()), (1, 0));
    let expected = ["site.yaml", "x.yml"].map(|name| dir.path().join(name));
    assert_eq!(passed_over(&own), expected);
}

#[test]
fn an_added_folder_without_rules_is_an_error_as_a_named_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut sources = RuleSources {
        added: vec![dir.path().to_owned()],
        ..RuleSources::default()
    };
    let loaded = sources.load();
    let text = loaded.render(loaded.diagnostics.iter());
    assert!(text.contains("the folder has no .yaml"), "{text}");
    let file = tempfile::NamedTempFile::new().unwrap();
    sources.added.push(file.path().to_owned());
    assert!(
        sources.load().diagnostics.is_empty(),
        "the other one may have them"
    );
}

#[test]
fn a_folder_may_be_empty_if_there_are_rules_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, file) = (dir.path().join("rules.d"), dir.path().join("a.yaml"));
    fs::create_dir(&empty).unwrap();
    fs::write(&file, "").unwrap();
    let loaded = load(&[empty.clone(), file]);
    assert_eq!((loaded.files.len(), loaded.diagnostics.len()), (1, 0));
    let diagnostics = load(&[empty]).diagnostics;
    assert!(diagnostics[0].message.contains("the folder has no .yaml"));
}

#[test]
fn what_cannot_be_read_is_a_diagnostic_and_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let latin1 = dir.path().join("latin1.yaml");
    fs::write(&latin1, b"# caf\xe9\n").unwrap();
    for (path, cause) in [
        (dir.path().join("none.yaml"), "No such file"),
        (dir.path().join(""), "latin1.yaml"),
        (latin1.clone(), "it is not UTF-8 text (byte 5)"),
    ] {
        let loaded = load(&[path]);
        let text = loaded.render(loaded.diagnostics.iter());
        assert!(text.contains(cause), "{text}");
        assert!(text.contains("LOAD_ERR_FILE_READ"), "{text}");
        let is_about_text = text.contains("it is not UTF-8 text");
        assert_eq!(
            text.contains("save it as UTF-8 text"),
            is_about_text,
            "{text}"
        );
        assert_eq!(loaded.usable().unwrap_err().exit, Exit::BadInput);
    }
}
