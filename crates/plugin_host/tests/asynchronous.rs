//! Threads of a plugin call the handler of asynchronous events until the very end of the process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plugin::protocol::{PluginSpec, Reply, Wanted};
use plugin::{Helper, HelperError, Limits};

fn compiled(folder: &Path, name: &str, init_config: &str) -> PluginSpec {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let library = folder.join(name);
    let compiled = Command::new("gcc")
        .args(["-O1", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(fixtures.join(format!("{name}.c")))
        .output()
        .expect("gcc is installed");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    PluginSpec {
        name: name.to_owned(),
        library: library.display().to_string(),
        init_config: init_config.to_owned(),
        open_params: "2".to_owned(),
    }
}

#[test]
fn the_handler_answers_after_the_end_of_the_source_and_of_the_program() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let answers = folder.path().join("answers");
    let plugins = [
        compiled(folder.path(), "toy_plugin", "{}"),
        compiled(
            folder.path(),
            "async_plugin",
            &format!("first {}", answers.display()),
        ),
    ];
    let limits = Limits {
        program: env!("CARGO_BIN_EXE_tollgate-plugin-host").into(),
        deadline: Duration::from_secs(10),
    };
    let mut helper = Helper::start(&limits).expect("it starts");
    let described = helper.load(&plugins).expect("they can be loaded");
    assert_eq!(described[1].async_events, ["ping", "pong"]);
    helper.open(&Wanted::default()).expect("it opens");
    let mut names = Vec::new();
    loop {
        match helper.reply().expect("nothing fails") {
            Reply::Batch(records) => {
                names.extend(records.into_iter().map(|record| record.asynchronous));
            }
            Reply::Missed(missed) => assert_eq!((missed.lost, missed.refused), (0, 1)),
            Reply::Idle => {}
            Reply::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    let (ping, pong) = (Some("ping".to_owned()), Some("pong".to_owned()));
    assert_eq!(names, [None, ping.clone(), pong, ping, None]);
    let Err(HelperError::Ended(status)) = helper.reply() else {
        panic!("it does not end");
    };
    assert!(status.success(), "{status}");
    let answers = std::fs::read_to_string(answers).expect("the plugin has written it");
    let last: Vec<_> = answers.lines().skip(3).collect();
    let closed = "1 the event source is closed";
    assert_eq!(
        last,
        [format!("closed: {closed}"), format!("ended: {closed}")]
    );
}
