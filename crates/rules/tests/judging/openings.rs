//! The cache of openings changes no result.

use abi::Syscall;
use event::{Evaluator, Event, Opening, OpeningParams, Stage};
use rules::Engine;

use crate::case::Case;
use crate::engine::{Kept, all_matching, engine, rule_text};

/// Conditions on the facts of an opening, alone and together with facts of the process.
const CONDITIONS: &[&str] = &[
    "evt.type in (open, openat) and fd.name = /etc/shadow",
    "evt.type = openat and fd.name startswith /etc and proc.name = cat",
    "evt.is_open_write = true and fd.directory = /var/log and user.uid = 0",
    "evt.is_open_create = true and fd.filename contains core",
    "evt.is_open_exec = true and not proc.name in (cat, sh)",
    "evt.type = openat and evt.res = ENOENT and fd.nameraw contains ..",
    "evt.type = openat and fd.num = 7",
    "evt.type = openat and fd.num in (12, 13) and fd.typechar = d",
    "evt.type = openat and evt.rawres < -2",
    "evt.type = openat and fd.name = val(proc.exepath)",
    "evt.type = openat and evt.failed = true and tolower(fd.filename) = shadow",
    "evt.type = openat and fd.name endswith passwd and container.id != host",
];

const NAMES: &[&[u8]] = &[
    b"/etc/shadow",
    b"/etc/passwd",
    b"/etc/../etc/shadow",
    b"/var/log/syslog",
    b"/var/log/",
    b"/tmp/core.1",
    b"/usr/lib/libc.so.6",
    b"/bin/cat",
    b"/etc/SHADOW",
    b"shadow",
    b"../passwd",
    b"",
];

fn pick<T: Copy>(state: &mut u64, values: &[T]) -> T {
    // Numerical Recipes' generator: any will do.
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let at = usize::try_from(*state >> 33).expect("31 bits") % values.len();
    values[at]
}

fn some_case(state: &mut u64) -> Case {
    let call = pick(state, &[Syscall::OPENAT, Syscall::OPENAT, Syscall::OPEN]);
    // O_RDONLY, O_WRONLY | O_CREAT, O_RDWR | O_CREAT | O_EXCL, O_DIRECTORY
    let flags = pick(state, &[0, 0, 0o101, 0o302, 0o200_000]);
    let mode = pick(state, &[0, 0o644, 0o755]);
    let registers = match call {
        Syscall::OPEN => [0x1000, flags, mode, 0, 0, 0],
        _ => [0xffff_ff9c, 0x1000, flags, mode, 0, 0],
    };
    let mut case = Case::new(call, registers);
    case.text = Some(pick(state, NAMES).to_vec());
    case.result = pick(state, &[-13, -2, -1, 0, 3, 4, 7, 12, 13, 14].map(Some));
    case.names = vec![pick(state, &["cat", "sh", "shadow", "core"]), "init"];
    case.uid = pick(state, &[0, 1000]);
    case
}

fn opening<'a>(event: &Event<'a>) -> Option<Opening<'a>> {
    Opening::of(event, OpeningParams::of(event.kind)?)
}

fn no_answer_changes(engine: &Engine, kept: &Kept) {
    let mut remembering = engine.scratch();
    let mut state = 1;
    let (mut matched, mut passed, mut alike) = (0, 0, 0);
    for _ in 0..40_000 {
        let case = some_case(&mut state);
        case.at(Stage::Exit, |event| {
            let undecided = engine.evaluate(&mut engine.scratch(), event);
            let alerts = kept.take().len();
            assert_eq!(engine.evaluate(&mut remembering, event), undecided);
            assert_eq!(kept.take().len(), alerts, "{case:?}");
            matched += alerts;
            let ruled_out =
                opening(event).and_then(|opening| engine.has_ruled_out(&mut remembering, &opening));
            if let Some(ruled_out) = ruled_out {
                assert_eq!((alerts, undecided.len()), (0, 0), "{case:?}");
                passed += 1;
                if passed % 16 == 0 {
                    alike += alike_are_ruled_out(engine, kept, &case, ruled_out.alike_from);
                }
            }
        });
    }
    assert!(passed > 1000 && matched > 1000, "{passed} {matched}");
    assert!(alike > 100, "{alike}");
}

/// Checks the same opening with other results on an engine without a cache. Returns their number.
fn alike_are_ruled_out(engine: &Engine, kept: &Kept, case: &Case, alike_from: i64) -> u32 {
    if case.result.is_none_or(|result| result < alike_from) {
        return 0;
    }
    let mut others = 0;
    for result in [-2, -1, 0, 3, 7, 12, 13, 14, 15, 1000] {
        if result < alike_from {
            continue;
        }
        let mut other = case.clone();
        other.result = Some(result);
        other.at(Stage::Exit, |event| {
            let undecided = engine.evaluate(&mut engine.scratch(), event);
            assert_eq!((kept.take().len(), undecided.len()), (0, 0), "{other:?}");
        });
        others += 1;
    }
    others
}

#[test]
fn no_alert_is_lost_or_made_by_what_is_remembered() {
    let rules: String = CONDITIONS
        .iter()
        .enumerate()
        .map(|(at, condition)| rule_text(&format!("rule {at}"), condition))
        .collect();
    let (engine, kept) = engine(&rules, &all_matching());
    no_answer_changes(&engine, &kept);
}

#[test]
fn one_rule_is_ruled_out_as_well() {
    let rules = rule_text("one", "evt.type = openat and fd.name startswith /etc");
    let (engine, kept) = engine(&rules, &all_matching());
    no_answer_changes(&engine, &kept);
}
