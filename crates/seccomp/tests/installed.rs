//! Tests of compiled filters in the kernel: a C program installs a filter and makes calls by every convention
//! that the host offers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abi::{Arch, Errno, RegisterTest, Syscall, TestOp};
use event::{CallPlan, Need, Plan, Reason};
use seccomp::{Action, FilterOptions, FilterProgram, SpecialCall, compile};

/// Error number that the filters of these tests return in place of a notification.
const MARK: u16 = 1000;

fn plan(calls: Vec<(Syscall, Vec<Vec<RegisterTest>>)>) -> Plan {
    let entry = |any_of| CallPlan {
        any_of,
        strings: false,
        result: Need::Never,
        reasons: vec![Reason::Rule("test".to_owned())],
    };
    Plan {
        calls: calls
            .into_iter()
            .map(|(call, any_of)| (call, entry(any_of)))
            .collect(),
        ..Plan::default()
    }
}

fn program(plan: &Plan, native: Arch) -> FilterProgram {
    let options = FilterOptions {
        planned: Action::Errno(MARK),
        unknown_numbers: Action::Allow,
        clone3: SpecialCall::AsPlanned,
        ..FilterOptions::notify(native)
    };
    compile(plan, &options).expect("the plan is small")
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("filter-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    /// The calling program for the native or the 32-bit architecture; `None` without a compiler.
    fn caller(&self, narrow: bool) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/installed/caller.c");
        let binary = self.0.join(if narrow { "caller32" } else { "caller" });
        let mut compiler = Command::new("gcc");
        compiler
            .args(narrow.then_some("-m32"))
            .arg("-O1")
            .arg("-o")
            .arg(&binary)
            .arg(source);
        let built = compiler
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        built.then_some(binary)
    }

    /// The result of each call.
    fn results(
        &self,
        caller: &Path,
        program: Option<&FilterProgram>,
        calls: &[String],
    ) -> Vec<i64> {
        let mut command = Command::new(caller);
        if let Some(program) = program {
            let file = self.0.join("program");
            let bytes: Vec<u8> = program
                .instructions()
                .iter()
                .flat_map(|one| {
                    let mut bytes = one.code.to_ne_bytes().to_vec();
                    bytes.extend([one.jt, one.jf]);
                    bytes.extend(one.k.to_ne_bytes());
                    bytes
                })
                .collect();
            std::fs::write(&file, bytes).expect("the scratch directory is writable");
            command.arg(file);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the caller was just built");
        let mut input = child.stdin.take().expect("it is piped");
        input
            .write_all((calls.join("\n") + "\n").as_bytes())
            .expect("the caller reads");
        drop(input);
        let output = child.wait_with_output().expect("the caller ends");
        assert!(output.status.success(), "{:?}", output.status);
        let text = String::from_utf8(output.stdout).expect("numbers");
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MARKED: i64 = -(MARK as i64);
const ENOSYS: i64 = Errno::ENOSYS.result();

/// A plan of dup2 to the standard descriptors, writing opens, and execve.
fn small_plan() -> Plan {
    plan(vec![
        (
            Syscall::DUP2,
            vec![vec![RegisterTest::low(1, TestOp::Le, 2)]],
        ),
        (
            Syscall::OPENAT,
            vec![vec![RegisterTest::low(2, TestOp::AnyBit, 3)]],
        ),
        (
            Syscall::PERSONALITY,
            vec![vec![RegisterTest::full(0, TestOp::Eq, 0xffff_ffff)]],
        ),
        (Syscall::EXECVE, vec![vec![]]),
        (Syscall::CONNECT, vec![vec![]]),
    ])
}

#[test]
fn the_kernel_answers_as_planned_for_every_way_in() {
    if Arch::native() != Some(Arch::X86_64) {
        testing::skip!("has numbers of x86-64", || Ok(format!(
            "{:?}",
            Arch::native()
        )));
    }
    let scratch = Scratch::new("ways");
    let Some(caller) = scratch.caller(false) else {
        testing::skip!("needs gcc", || Ok("the caller was not built".to_owned()));
    };
    let program = program(&small_plan(), Arch::X86_64);
    let cases: &[(&str, &[i64])] = &[
        ("native 33 999 2", &[MARKED]),
        ("native 33 999 3", &[Errno::EBADF.result()]),
        // The kernel ignores the upper half.
        ("native 33 999 0xffffffff00000002", &[MARKED]),
        ("native 257 -100 0 1", &[MARKED]),
        ("native 257 -100 0 0x700000000", &[-14]),
        ("native 135 0xffffffff", &[MARKED]),
        ("native 135 0x1ffffffff", &[0]),
        ("native 59 0 0 0", &[MARKED]),
        ("native 42 999 0 0", &[MARKED]),
        ("native 9999", &[ENOSYS]),
        // i386: execve 11, dup2 63, openat 295, connect 362, socketcall 102. A kernel without 32-bit calls
        // returns ENOSYS: the calls do not reach the filter.
        ("int80 11 0 0 0", &[MARKED, ENOSYS]),
        ("int80 63 999 1", &[MARKED, ENOSYS]),
        ("int80 63 999 3", &[Errno::EBADF.result(), ENOSYS]),
        ("int80 295 -100 0 2", &[MARKED, ENOSYS]),
        ("int80 295 -100 0 0", &[-14, ENOSYS]),
        ("int80 362 999 0 0", &[MARKED, ENOSYS]),
        ("int80 102 3 0", &[MARKED, ENOSYS]),
        ("int80 102 0x700000003 0", &[MARKED, ENOSYS]),
        ("int80 102 2 0", &[-14, ENOSYS]),
        // The filter runs before the check for x32, so this holds on kernels without x32 too.
        ("native 0x40000208 0 0 0", &[MARKED]),
        ("native 0x40000021 999 2", &[MARKED]),
        ("native 0x40000021 999 3", &[Errno::EBADF.result(), ENOSYS]),
        ("native 0x4000003b 0 0 0", &[MARKED]),
        ("native 520 0 0 0", &[MARKED]),
    ];
    let calls: Vec<_> = cases.iter().map(|(call, _)| (*call).to_owned()).collect();
    let results = scratch.results(&caller, Some(&program), &calls);
    assert_eq!(results.len(), cases.len());
    for ((call, expected), result) in cases.iter().zip(results) {
        assert!(
            expected.contains(&result),
            "{call} gave {result}, not {expected:?}"
        );
    }
}

#[test]
fn a_32_bit_program_is_seen() {
    let scratch = Scratch::new("narrow");
    let Some(caller) = scratch.caller(true) else {
        testing::skip!("needs gcc -m32", || Ok(
            "the caller was not built".to_owned()
        ));
    };
    let program = program(&small_plan(), Arch::X86_64);
    let calls = [
        "native 11 0 0 0",
        "native 63 999 1",
        "native 63 999 3",
        "native 102 3 0",
    ];
    let results = scratch.results(&caller, Some(&program), &calls.map(str::to_owned));
    assert_eq!(results, [MARKED, MARKED, Errno::EBADF.result(), MARKED]);
}

#[test]
fn a_filter_of_every_call_with_tests_is_accepted() {
    let native = Arch::native().expect("the filter is for this machine");
    let scratch = Scratch::new("large");
    let Some(caller) = scratch.caller(false) else {
        testing::skip!("needs gcc", || Ok("the caller was not built".to_owned()));
    };
    // A test that never holds, so that the calling program still works.
    let test = vec![vec![
        RegisterTest::full(0, TestOp::Eq, 0x1234_5678_9abc_def0),
        RegisterTest::low(1, TestOp::MaskedEq { mask: 0xffff }, 0x7777),
    ]];
    let all = plan(Syscall::all().map(|call| (call, test.clone())).collect());
    let program = program(&all, native);
    assert!(program.instructions().len() > 20);
    let missing = Syscall::OPENAT
        .number(native)
        .expect("every architecture has it");
    let results = scratch.results(
        &caller,
        Some(&program),
        &[format!("native {missing} -100 0 0")],
    );
    assert!(
        results == [-14] || results == [Errno::ENOENT.result()],
        "{results:?}"
    );
}
