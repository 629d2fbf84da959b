//! Cost of evaluating an event that no rule matches, with the rules that Falco ships.
//!
//! The rule file is read from beside the repository; without it nothing is measured.

#[path = "../tests/judging/case.rs"]
#[allow(dead_code, reason = "the tests of the crate use more of it")]
mod case;

use std::path::Path;
use std::sync::Arc;

use abi::Syscall;
use bumpalo::Bump;
use criterion::{Criterion, criterion_group, criterion_main};
use event::{DescriptorKind, Evaluator, Event, Relevance, Stage};
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

use case::Case;

struct Nowhere;

impl AlertSink for Nowhere {
    fn emit(&self, _: Alert) {}
}

fn text() -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/reference/upstream/falco_rules.yaml");
    let text = std::fs::read_to_string(&path);
    if text.is_err() {
        eprintln!("skipped: no copy of the stock rules at {}", path.display());
    }
    text.ok()
}

fn load(text: &str) -> Ruleset {
    Loader::new().add("falco_rules.yaml", text).finish().0
}

fn cases() -> Vec<(&'static str, Case)> {
    let open = |call, registers, path: &str| {
        let mut case = Case::new(call, registers);
        case.text = Some(path.as_bytes().to_vec());
        case.result = Some(3);
        case
    };
    let mut exec = open(
        Syscall::EXECVE,
        [0x1000, 0x1000, 0x1000, 0, 0, 0],
        "/usr/bin/cat",
    );
    exec.result = Some(0);
    // An ordinary user with a login would match "System user interactive".
    exec.uid = 0;
    let mut connect = Case::new(Syscall::CONNECT, [3, 0x1000, 16, 0, 0, 0]);
    connect.descriptor = DescriptorKind::Ipv4;
    vec![
        (
            "openat a library",
            open(
                Syscall::OPENAT,
                [0xffff_ff9c, 1, 0, 0, 0, 0],
                "/usr/lib/libc.so.6",
            ),
        ),
        (
            "openat below etc",
            open(
                Syscall::OPENAT,
                [0xffff_ff9c, 1, 0, 0, 0, 0],
                "/etc/ld.so.cache",
            ),
        ),
        (
            "openat for writing",
            open(
                Syscall::OPENAT,
                [0xffff_ff9c, 1, 1, 0, 0, 0],
                "/home/u/file",
            ),
        ),
        (
            "openat relative",
            open(Syscall::OPENAT, [0xffff_ff9c, 1, 0, 0, 0, 0], "src/main.c"),
        ),
        ("execve", exec),
        ("connect", connect),
        (
            "symlinkat",
            open(Syscall::SYMLINKAT, [1, 3, 1, 0, 0, 0], "/usr/bin/cat"),
        ),
        (
            "ptrace peek",
            Case::new(Syscall::PTRACE, [1, 100, 0, 0, 0, 0]),
        ),
    ]
}

/// Returns the same event with another arena, so that a benchmark can evaluate it repeatedly.
fn with_arena<'a>(event: &Event<'a>, arena: &'a Bump) -> Event<'a> {
    Event {
        image: Arc::clone(&event.image),
        params: event.params,
        descriptor: event.descriptor,
        arena,
        ..*event
    }
}

fn evaluate(criterion: &mut Criterion) {
    let Some(text) = text() else { return };
    let (engine, _) = Engine::new(&load(&text), &EngineOptions::default(), Box::new(Nowhere));
    let mut scratch = engine.scratch();
    for (name, case) in cases() {
        for stage in [Stage::Registers, Stage::Strings, Stage::Exit] {
            let mut arena = Bump::with_capacity(1 << 16);
            let live_arena = Bump::new();
            let mut group = criterion.benchmark_group("evaluate");
            group.bench_function(format!("{name} at {stage:?}"), |bencher| {
                case.at_in(stage, &live_arena, |event| {
                    assert_ne!(engine.prefilter(&mut scratch, event), Relevance::Settled);
                    bencher.iter(|| {
                        arena.reset();
                        let event = with_arena(event, &arena);
                        engine.prefilter(&mut scratch, &event)
                    });
                });
            });
            group.finish();
        }
    }
}

fn compile(criterion: &mut Criterion) {
    let Some(text) = text() else { return };
    criterion.bench_function("load the stock rules", |bencher| {
        bencher.iter(|| load(&text))
    });
    let ruleset = load(&text);
    criterion.bench_function("compile the stock rules", |bencher| {
        bencher.iter(|| Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nowhere)));
    });
    let (engine, _) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nowhere));
    criterion.bench_function("plan the stock rules", |bencher| {
        bencher.iter(|| engine.plan())
    });
}

criterion_group!(benches, evaluate, compile);
criterion_main!(benches);
