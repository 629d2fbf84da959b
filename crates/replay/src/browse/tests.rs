use std::time::Duration;

use event::Stage;
use event::testing::{self, Arg, EventBuilder, FakeSystemInfo};
use scap::write::{Header, Writer};

use super::*;

/// A process below another one opens files.
fn capture(files: &[&str]) -> Vec<u8> {
    let mut writer = Writer::new(Header::default());
    let mut bytes = Vec::new();
    writer.begin(&mut bytes);
    let parent = testing::process(7, None, &["/bin/parent", "<arg>"]);
    let process = testing::process(42, Some(&parent), &["/bin/child"]);
    for (at, file) in files.iter().enumerate() {
        let builder = EventBuilder::new("openat")
            .process(&process)
            .world(FakeSystemInfo::default())
            .time_ns(1_000_000_000 + u64::try_from(at).expect("few"))
            .result(5)
            .arg("name", Arg::Text(file.as_bytes().to_vec()));
        writer.event(&builder.at(Stage::Exit), &mut bytes);
    }
    bytes
}

fn query(filter: &str) -> BrowseQuery<'_> {
    BrowseQuery {
        filter,
        after: 0,
        events: 2,
        processes: 10,
        scanned: 1000,
        time: Duration::from_secs(60),
    }
}

#[test]
fn events_come_page_by_page_with_the_tree_of_all_processes() {
    let data = capture(&["/a", "/b", "/c\u{1b}<b>", "/d"]);
    let found = browse(&*data, query("")).expect("all");
    assert_eq!((found.events.len(), found.has_more), (2, true));
    assert_eq!((found.scanned, &found.stopped), (4, &None));
    assert!(found.events[0].arguments.contains("/a"), "{found:?}");
    let after = found.events[1].number;
    let next = BrowseQuery { after, ..query("") };
    let rest = browse(&*data, next).expect("all");
    assert_eq!((rest.events.len(), rest.has_more), (2, false));
    assert!(rest.events[0].arguments.contains("/c"), "{rest:?}");
    assert_eq!(rest.processes, found.processes);
    let [parent, child] = &found.processes[..] else {
        panic!("{found:?}");
    };
    assert_eq!((parent.pid, parent.parent), (7, None));
    assert_eq!(parent.command, "/bin/parent <arg>");
    assert_eq!((child.pid, child.parent), (42, Some(0)));
}

#[test]
fn a_condition_selects_and_a_mistake_has_its_place() {
    let data = capture(&["/a", "/b"]);
    let found = browse(&*data, query("evt.arg.name endswith b")).expect("usable");
    assert_eq!(found.events.len(), 1, "{found:?}");
    assert_eq!(found.events[0].call, "openat");
    let none = browse(&*data, query("evt.type = execve")).expect("usable");
    assert_eq!((none.events.len(), none.processes.len()), (0, 2));
    let places = [
        ("evt.type = openat and", 21),
        ("  evt.type = openat and (", 23),
        ("evt.type = openat and evt.nothing = 1", 22),
        ("é = 1", 0),
        ("evt.type = a\nb", 12),
    ];
    for (filter, at) in places {
        let error = browse(&*data, query(filter)).expect_err(filter);
        assert_eq!(error.at, Some(at), "{filter:?}: {error:?}");
        assert!(!error.message.is_empty());
    }
    // What would be YAML is no condition.
    for hostile in ["\"", "#", "- rule: x", "{a: b}", "evt.type = 'x", "a: |"] {
        browse(&*data, query(hostile)).expect_err(hostile);
    }
}

#[test]
fn what_is_broken_or_too_much_is_said() {
    let data = capture(&["/a", "/b", "/c"]);
    let cut = browse(&data[..data.len() - 9], query("")).expect("usable");
    assert_eq!(cut.events.len(), 2);
    assert!(
        cut.stopped
            .is_some_and(|why| why.contains("cannot be read"))
    );
    for foreign in [&b""[..], b"no capture at all", &[0x1f, 0x8b, 8, 0, 0]] {
        let found = browse(foreign, query("")).expect("usable");
        assert!(
            found.stopped.is_some() && found.events.is_empty(),
            "{found:?}"
        );
    }
    let packed = browse(&[&GZIP[..], &data].concat()[..], query("")).expect("usable");
    assert!(
        packed
            .stopped
            .is_some_and(|why| why.contains("is compressed"))
    );
    let many: Vec<_> = std::iter::repeat_n("/x", 600).collect();
    let few = BrowseQuery {
        scanned: 300,
        ..query("")
    };
    let found = browse(&*capture(&many), few).expect("usable");
    assert!(found.stopped.is_some() && found.scanned < 600, "{found:?}");
    let none = BrowseQuery {
        processes: 1,
        ..query("")
    };
    let found = browse(&*data, none).expect("usable");
    assert_eq!((found.processes.len(), found.has_more_processes), (1, true));
}
