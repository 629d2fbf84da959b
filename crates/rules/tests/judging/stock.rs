//! The rules that Falco ships, if a copy of them lies beside this repository.

use std::path::Path;

use abi::Syscall;
use event::{Evaluator, Relevance, Stage, StdioWatch};
use rules::{Engine, EngineOptions, Loader};

use crate::case::Case;
use crate::engine::{compile, weigh};

/// Returns the engine of the stock rules, or the reason why there is none.
fn stock() -> Result<Engine, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/reference/upstream/falco_rules.yaml");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Err(format!("cannot read {}", path.display()));
    };
    let (ruleset, diagnostics) = Loader::new().add("falco_rules.yaml", &text).finish();
    let (engine, _, more) = compile(&ruleset, &EngineOptions::default());
    let errors: Vec<_> = diagnostics
        .iter()
        .chain(&more)
        .filter(|found| found.is_error())
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let doubts: Vec<_> = more.iter().map(ToString::to_string).collect();
    assert!(doubts.is_empty(), "{doubts:#?}");
    Ok(engine)
}

/// Returns the engine of the stock rules; skips the test if there is no copy of them.
macro_rules! need_stock {
    () => {
        match stock() {
            Ok(engine) => engine,
            Err(why) => testing::skip!("needs Falco's stable rules beside the repository", || Ok(
                why
            )),
        }
    };
}

#[test]
fn the_stock_rules_compile_without_an_error() {
    let engine = need_stock!();
    assert_eq!(engine.matches().count(), 25);
}

#[test]
fn the_stock_rules_trap_no_hot_call() {
    let engine = need_stock!();
    let (plan, warnings) = engine.plan();
    assert_eq!(plan.stdio, StdioWatch::Sockets);
    let always = |call: &&Syscall| {
        plan.calls
            .get(call)
            .is_some_and(|planned| planned.any_of.iter().any(Vec::is_empty))
    };
    let trapped: Vec<&Syscall> = rules::plan::HOT_CALLS.iter().filter(always).collect();
    assert_eq!(trapped, [] as [&Syscall; 0]);
    assert!(warnings.is_empty(), "{warnings:#?}");
    // "Disallowed SSH Connection Non Standard Port" asks for datagrams too; the address that
    // sendmsg sends to is in memory.
    let explained = engine.explain(&plan);
    let noted: Vec<Syscall> = explained
        .calls
        .iter()
        .filter(|call| call.note.is_some())
        .map(|call| call.call)
        .collect();
    assert_eq!(noted, [Syscall::SENDMSG]);
    for call in [Syscall::READ, Syscall::WRITE, Syscall::DUP, Syscall::UMASK] {
        assert!(!plan.calls.contains_key(&call), "{call}");
    }
}

#[test]
fn an_ordinary_open_is_rejected_by_its_name() {
    let engine = need_stock!();
    let mut case = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, 0, 0, 0, 0]);
    case.text = Some(b"/usr/lib/libc.so.6".to_vec());
    case.result = Some(3);
    assert_eq!(weigh(&engine, &case, Stage::Strings), Relevance::Reject);
    case.text = Some(b"/etc/shadow".to_vec());
    assert_ne!(weigh(&engine, &case, Stage::Strings), Relevance::Reject);
}

#[test]
fn judging_events_that_match_nothing_allocates_nothing() {
    let engine = need_stock!();
    let mut open = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, 0, 0, 0, 0]);
    open.text = Some(b"/usr/lib/libc.so.6".to_vec());
    let connect = Case::new(Syscall::CONNECT, [3, 0x1000, 16, 0, 0, 0]);
    let mut exec = Case::new(Syscall::EXECVE, [0x1000, 0x1000, 0x1000, 0, 0, 0]);
    exec.text = Some(b"/usr/bin/cat".to_vec());
    exec.uid = 0;
    let mut scratch = engine.scratch();
    let mut arena = bumpalo::Bump::with_capacity(1 << 16);
    for case in [&open, &connect, &exec] {
        for stage in [
            Stage::Registers,
            Stage::Strings,
            Stage::Descriptor,
            Stage::Entry,
            Stage::Exit,
        ] {
            arena.reset();
            let allocated = case.at_in(stage, &arena, |event| {
                // The world of the test allocates its answers: the second look finds them.
                engine.prefilter(&mut scratch, event);
                allocation_counter::measure(|| {
                    assert_ne!(engine.prefilter(&mut scratch, event), Relevance::Settled);
                })
            });
            assert_eq!(allocated.count_total, 0, "{} at {stage:?}", case.call);
        }
    }
}
