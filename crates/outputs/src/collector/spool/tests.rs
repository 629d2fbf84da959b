use super::*;

fn lines(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers
        .map(|n| format!("{{\"n\":{n},\"priority\":\"Error\"}}"))
        .collect()
}

fn numbers(spool: &mut Spool, at_most: usize) -> (u64, Vec<String>) {
    let pending = spool.pending(at_most).expect("readable").expect("some");
    let text = String::from_utf8(pending.text).expect("text");
    assert_eq!(text.lines().count(), pending.lines);
    (pending.first, text.lines().map(str::to_owned).collect())
}

#[test]
fn numbers_go_on_after_a_restart_and_an_incomplete_line_is_cut_off() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let mut spool = Spool::open(root.path(), 1 << 30).expect("writable");
    spool.append(&lines(1..6)).expect("writable");
    assert_eq!(numbers(&mut spool, 2), (1, lines(1..3)));
    spool.acknowledge(3).expect("writable");
    assert_eq!(numbers(&mut spool, 9), (4, lines(4..6)));
    drop(spool);
    let file = path(&root.path().join("0"), 1);
    let mut torn = OpenOptions::new()
        .append(true)
        .open(file)
        .expect("it is there");
    torn.write_all(b"{\"n\":").expect("writable");
    let mut spool = Spool::open(root.path(), 1 << 30).expect("readable");
    // Acknowledged lines of a segment come again; the collector knows their numbers.
    assert_eq!(numbers(&mut spool, 9), (1, lines(1..6)));
    assert_eq!(spool.next(), 6);
    spool.acknowledge(5).expect("writable");
    assert!(spool.pending(9).expect("readable").is_none());
    drop(spool);
    let mut spool = Spool::open(root.path(), 1 << 30).expect("readable");
    spool.append(&lines(6..7)).expect("writable");
    assert_eq!(numbers(&mut spool, 9), (6, lines(6..7)));
}

#[test]
fn a_second_process_has_a_spool_of_its_own() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let first = Spool::open(root.path(), 1).expect("writable");
    let second = Spool::open(root.path(), 1).expect("writable");
    assert_ne!(first.folder(), second.folder());
    let taken = first.folder().to_owned();
    drop(first);
    assert_eq!(
        Spool::open(root.path(), 1).expect("writable").folder(),
        taken
    );
}

/// Otherwise what the second of two agents left would wait until there are two again.
#[test]
fn a_spool_with_records_is_taken_before_an_empty_one() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let open = || Spool::open(root.path(), 1 << 20).expect("writable");
    let first = open();
    let mut second = open();
    second.append(&["{}".to_owned()]).expect("writable");
    let left = second.folder().to_owned();
    drop((first, second));
    let mut next = open();
    assert_eq!(next.folder(), left);
    next.acknowledge(1).expect("writable");
    drop(next);
    assert_eq!(open().folder(), root.path().join("0"));
    // A file in the place of a folder, and a damaged one that is not needed, keep nobody from starting.
    std::fs::write(root.path().join("2"), "").expect("writable");
    std::fs::write(left.join("x.lines"), "").expect("writable");
    assert_eq!(open().folder(), root.path().join("0"));
}

#[test]
fn a_full_spool_drops_old_records_of_low_priority_first_and_keeps_the_numbers() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let mut spool = Spool::open(root.path(), 3 << 20).expect("writable");
    let pad = "x".repeat(10_000);
    let line = |n: u64, priority: &str| {
        format!("{{\"n\":{n},\"priority\":\"{priority}\",\"p\":\"{pad}\"}}")
    };
    let mut dropped = 0;
    for n in 1..=400 {
        let priority = if n % 2 == 0 { "Notice" } else { "Critical" };
        dropped += spool.append(&[line(n, priority)]).expect("writable");
    }
    assert!((40..=200).contains(&dropped), "{dropped}");
    let (mut low, mut next) = (0, 1);
    while let Some(pending) = spool.pending(1000).expect("readable") {
        assert_eq!(pending.first, next, "no number is missing");
        for text in String::from_utf8(pending.text).expect("text").lines() {
            match text {
                DROPPED => low += 1,
                text => assert!(text.starts_with(&format!("{{\"n\":{next},")), "{next}"),
            }
            next += 1;
        }
        spool.acknowledge(next - 1).expect("writable");
    }
    assert_eq!((low, next), (dropped, 401));
    // Where nothing is of low priority, the oldest go, and their numbers are missing.
    for n in 401..=900 {
        spool.append(&[line(n, "Critical")]).expect("writable");
    }
    assert!(
        spool.first() > 401 && spool.bytes() <= 3 << 20,
        "{}",
        spool.first()
    );
}

#[test]
fn renumbering_keeps_what_is_not_acknowledged() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let mut spool = Spool::open(root.path(), 1 << 30).expect("writable");
    spool.append(&lines(1..6)).expect("writable");
    spool.acknowledge(2).expect("writable");
    spool.renumber().expect("writable");
    assert_eq!(numbers(&mut spool, 9), (1, lines(3..6)));
    spool.append(&lines(6..7)).expect("writable");
    assert_eq!(numbers(&mut spool, 9), (1, lines(3..7)));
}

#[test]
fn what_the_collector_may_have_is_not_counted_as_dropped() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let mut spool = Spool::open(root.path(), 3 << 20).expect("writable");
    let pad = "x".repeat(10_000);
    let line = |n: u64| format!("{{\"n\":{n},\"priority\":\"Notice\",\"p\":\"{pad}\"}}");
    spool
        .append(&[line(1), line(2), line(3)])
        .expect("writable");
    // Sent, and the acknowledgement does not arrive.
    let sent = spool.pending(2).expect("readable").expect("two lines");
    assert_eq!(sent.lines, 2);
    let mut dropped = 0;
    for n in 4..=400 {
        dropped += spool.append(&[line(n)]).expect("writable");
    }
    let pending = spool.pending(3).expect("readable").expect("three lines");
    let text = String::from_utf8(pending.text).expect("text");
    let kept: Vec<_> = text.lines().map(|line| line == DROPPED).collect();
    assert_eq!((pending.first, kept), (1, vec![false, false, true]));
    assert!(dropped > 0);
}

/// Found by fuzzing: the lines behind a missing file were numbered anew, and then empty batches were sent for ever.
#[test]
fn lines_behind_a_missing_or_empty_file_keep_their_numbers() {
    let root = tempfile::tempdir().expect("a folder for temporary files");
    let folder = root.path().join("0");
    fs::create_dir(&folder).expect("writable");
    for (first, text) in [(1, "half"), (2, "a\nb\n"), (9, "c\n")] {
        fs::write(path(&folder, first), text).expect("writable");
    }
    let mut spool = Spool::open(root.path(), 1 << 30).expect("readable");
    assert_eq!(
        numbers(&mut spool, 9),
        (2, vec!["a".to_owned(), "b".to_owned()])
    );
    spool.acknowledge(3).expect("writable");
    assert_eq!(numbers(&mut spool, 9), (9, vec!["c".to_owned()]));
    spool.acknowledge(9).expect("writable");
    assert!(spool.pending(9).expect("readable").is_none());
    assert_eq!(spool.next(), 10);
}

/// Found by fuzzing: the number after the last one did not fit.
#[test]
fn files_with_numbers_of_others_or_without_a_next_one_are_refused() {
    for (first, second) in [(1, 2), (u64::MAX, u64::MAX), (0, 9)] {
        let root = tempfile::tempdir().expect("a folder for temporary files");
        let folder = root.path().join("0");
        fs::create_dir(&folder).expect("writable");
        for first in [first, second] {
            fs::write(path(&folder, first), "a\nb\n").expect("writable");
        }
        let error = Spool::open(root.path(), 1 << 30).expect_err("no guess");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(
            error.to_string().contains(".lines cannot have a number"),
            "{error}"
        );
    }
}
