//! Compiler from the interest plan to a seccomp filter.
//!
//! The kernel runs the filter before each call of the whole process tree, so the filter's layout determines
//! the cost of watching. Since Linux 5.11 the kernel precomputes the numbers for which a filter answers
//! "allow" regardless of the arguments, and skips the filter for those; it can do so only if the filter loads
//! nothing but architecture and number on that path. Hence the layout: dispatch by architecture, then by a
//! balanced tree over number ranges, and load arguments only in the leaf of their own call.
//!
//! The plan specifies the tests of a leaf, with the argument positions of the 64-bit call. A test is dropped
//! for architectures that pass the argument differently: the call is then reported too often, never too
//! rarely.
//!
//! The denials of a policy are compiled into the same program, so that one filter serves both at the cost of
//! one. A call that a rule watches is trapped even if the policy denies it: the receiver refuses it then, and
//! rules see that it failed. All other denials never leave the kernel.

mod assemble;
mod disassemble;
mod leaf;
mod numbers;
pub mod run;
pub mod table;

use abi::{Arch, Syscall};
use event::{Plan, Reason};
use policy::compile::seccomp::Profile;
use sys::seccomp::{
    BPF_MAXINSNS, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS,
    SECCOMP_RET_KILL_THREAD, SECCOMP_RET_LOG, SECCOMP_RET_TRACE, SECCOMP_RET_TRAP,
    SECCOMP_RET_USER_NOTIF, SockFilter,
};

use assemble::{Assembler, Label};
use leaf::Leaf;
pub use numbers::adapt;
use numbers::{Merged, Segment};

pub use disassemble::disassemble;

/// Maximum number of instructions of a filter in the kernel (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = BPF_MAXINSNS;

/// The kernel's action on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Make the call.
    Allow,
    /// Fail the call with this error number.
    Errno(u16),
    /// End the process.
    KillProcess,
    /// End the thread.
    KillThread,
    /// Make the call, and write it to the kernel's log.
    Log,
    /// Suspend the call and notify the listener.
    Notify,
    /// Stop the thread for the tracer, with this message.
    Trace(u16),
    /// Send SIGSYS to the thread.
    Trap,
}

impl Action {
    /// The filter's return value (include/uapi/linux/seccomp.h).
    pub fn to_raw(self) -> u32 {
        match self {
            Action::Allow => SECCOMP_RET_ALLOW,
            Action::Errno(number) => SECCOMP_RET_ERRNO | u32::from(number),
            Action::KillProcess => SECCOMP_RET_KILL_PROCESS,
            Action::KillThread => SECCOMP_RET_KILL_THREAD,
            Action::Log => SECCOMP_RET_LOG,
            Action::Notify => SECCOMP_RET_USER_NOTIF,
            Action::Trap => SECCOMP_RET_TRAP,
            Action::Trace(message) => SECCOMP_RET_TRACE | u32::from(message),
        }
    }

    /// The action of a return value from [`Action::to_raw`].
    pub fn from_raw(raw: u32) -> Option<Self> {
        let data = u16::try_from(raw & SECCOMP_RET_DATA).ok()?;
        match raw & !SECCOMP_RET_DATA {
            SECCOMP_RET_ALLOW => Some(Action::Allow),
            SECCOMP_RET_ERRNO => Some(Action::Errno(data)),
            SECCOMP_RET_KILL_PROCESS => Some(Action::KillProcess),
            SECCOMP_RET_KILL_THREAD => Some(Action::KillThread),
            SECCOMP_RET_LOG => Some(Action::Log),
            SECCOMP_RET_TRAP => Some(Action::Trap),
            SECCOMP_RET_USER_NOTIF => Some(Action::Notify),
            SECCOMP_RET_TRACE => Some(Action::Trace(data)),
            _ => None,
        }
    }
}

/// The treatment of a call that the filter cannot evaluate from registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialCall {
    /// Treat the call as the plan specifies.
    AsPlanned,
    /// Fail the call with ENOSYS, as a kernel without it does, unless a rule names the call.
    RefuseUnlessRule,
    /// Fail the call with ENOSYS.
    Refuse,
}

/// The party that refuses denied calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denials {
    /// The kernel, unless a rule or the policy requests a report.
    InKernel,
    /// The listener. It distinguishes the container runtime, to which the policy does not apply, from the
    /// container.
    Held,
}

/// Options of the filter compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The native architecture of the kernel.
    pub native: Arch,
    /// The action on planned calls: [`Action::Notify`], or [`Action::Trace`] for a tracer.
    pub planned: Action,
    /// Treatment of `clone3`, whose flags are in memory. A refusal makes libc fall back to `clone`, whose
    /// flags are in a register, so that new threads pass without a stop; container runtimes do the same.
    pub clone3: SpecialCall,
    /// Treatment of io_uring, which makes calls that no filter sees. Does not apply to the creation of a
    /// ring, which is always visible. A refusal also makes a ring useless that another process created and
    /// passed on.
    pub io_uring: SpecialCall,
    /// The action on unknown numbers: calls of future kernels, and x32 numbers out of range.
    pub unknown_numbers: Action,
    /// The party that refuses what the policy denies.
    pub denials: Denials,
}

impl FilterOptions {
    /// Options like [`FilterOptions::notify`], for a tracer that receives `message` with each stop.
    pub fn trace(native: Arch, message: u16) -> Self {
        Self {
            planned: Action::Trace(message),
            unknown_numbers: Action::Trace(message),
            ..Self::notify(native)
        }
    }

    /// Options for a policy that reports nothing: there is no listener, and calls that are not denied are
    /// made. The policy alone decides on the flags of `clone3`.
    pub fn confine(native: Arch) -> Self {
        Self {
            native,
            planned: Action::Allow,
            clone3: SpecialCall::AsPlanned,
            io_uring: SpecialCall::AsPlanned,
            unknown_numbers: Action::Allow,
            denials: Denials::InKernel,
        }
    }

    /// Options for a listener: reports planned calls and unknown numbers, refuses clone3 unless a rule names
    /// it, and allows the use of rings.
    pub fn notify(native: Arch) -> Self {
        Self {
            native,
            planned: Action::Notify,
            clone3: SpecialCall::RefuseUnlessRule,
            io_uring: SpecialCall::AsPlanned,
            unknown_numbers: Action::Notify,
            denials: Denials::InKernel,
        }
    }
}

/// Size of an instruction in bytes.
const INSTRUCTION: usize = 8;

/// A compiled filter, ready to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterProgram {
    instructions: Vec<SockFilter>,
}

impl FilterProgram {
    /// The instructions in order.
    pub fn instructions(&self) -> &[SockFilter] {
        &self.instructions
    }

    /// Returns true if the filter notifies the listener of every such call, regardless of its arguments.
    #[must_use]
    pub fn always_asks(&self, arch: Arch, call: Syscall) -> bool {
        let asks = |number| {
            let (audit, args) = (arch.audit(), [0; 6]);
            let data = run::SeccompData {
                number,
                audit,
                args,
            };
            run::run(self, &data)
                .is_some_and(|verdict| verdict.constant && verdict.action == Action::Notify)
        };
        call.number(arch).is_some_and(asks)
    }

    /// Serialises the program.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.instructions.len() * INSTRUCTION);
        for instruction in &self.instructions {
            bytes.extend_from_slice(&instruction.code.to_le_bytes());
            bytes.extend_from_slice(&[instruction.jt, instruction.jf]);
            bytes.extend_from_slice(&instruction.k.to_le_bytes());
        }
        bytes
    }

    /// Deserialises the result of [`Self::to_bytes`]; `None` if the bytes are invalid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (each, rest) = bytes.as_chunks::<INSTRUCTION>();
        let read = |[a, b, jt, jf, k @ ..]: &[u8; INSTRUCTION]| SockFilter {
            code: u16::from_le_bytes([*a, *b]),
            jt: *jt,
            jf: *jf,
            k: u32::from_le_bytes(*k),
        };
        let instructions: Vec<_> = each.iter().map(read).collect();
        let fits = rest.is_empty() && (1..=MAX_INSTRUCTIONS).contains(&instructions.len());
        fits.then_some(Self { instructions })
    }
}

/// The reason why a plan cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The filter has too many instructions for the kernel.
    #[error(
        "cannot compile the filter: {instructions} instructions, the kernel allows {limit}; `{call}` \
        alone has {tests} argument tests (needed by {wanted_by})"
    )]
    TooLong {
        /// Number of instructions.
        instructions: usize,
        /// Maximum number of instructions.
        limit: usize,
        /// The call with the most argument tests.
        call: Syscall,
        /// Number of tests of that call.
        tests: usize,
        /// Rules that watch that call.
        wanted_by: String,
    },
    /// A test refers to an argument that calls do not have.
    #[error(
        "cannot compile the filter: `{call}` has no argument {argument} (needed by {wanted_by})"
    )]
    NoSuchArgument {
        /// The call.
        call: Syscall,
        /// Index of the argument.
        argument: u8,
        /// Rules that request the test.
        wanted_by: String,
    },
}

/// Compiles a plan. The filter reports what the plan requests, on the native architecture and on every other
/// architecture of the kernel.
pub fn compile(plan: &Plan, options: &FilterOptions) -> Result<FilterProgram, FilterError> {
    compile_with(plan, &Profile::default(), options)
}

/// Compiles a plan like [`compile`], together with the denials of a policy. Without a listener, nothing can
/// be reported: the filter refuses calls that are to be reported and refused, and lets calls pass that are
/// only to be reported.
pub fn compile_with(
    plan: &Plan,
    profile: &Profile,
    options: &FilterOptions,
) -> Result<FilterProgram, FilterError> {
    check_arguments(plan)?;
    let merged = Merged {
        plan,
        profile,
        options,
    };
    let mut assembler = Assembler::default();
    dispatch(&mut assembler, options.native, merged.foreign(), |arch| {
        numbers::segments(&merged, arch)
    });
    let instructions = assembler.finish();
    if instructions.len() > MAX_INSTRUCTIONS {
        return Err(too_long(plan, profile, instructions.len()));
    }
    Ok(FilterProgram { instructions })
}

/// Emits the whole program: dispatch by architecture, then by number.
fn dispatch(
    assembler: &mut Assembler,
    native: Arch,
    foreign: Action,
    segments: impl Fn(Arch) -> Vec<Segment>,
) {
    // x32 calls have the audit value of x86-64, and are part of its tree.
    let [native, compat] = match native {
        Arch::Aarch64 | Arch::Arm => [Arch::Aarch64, Arch::Arm],
        Arch::X86_64 | Arch::X32 | Arch::I386 => [Arch::X86_64, Arch::I386],
    };
    let below_compat = tree(assembler, &segments(compat));
    let below_native = tree(assembler, &segments(native));
    let foreign = assembler.ret(foreign);
    let known = [(native, below_native), (compat, below_compat)];
    let entry = by_audit(assembler, &known, foreign);
    debug_assert!(assembler.is_last(entry));
}

/// Emits the dispatch by audit architecture. An architecture outside of the list has no table in this filter.
fn by_audit(assembler: &mut Assembler, known: &[(Arch, Label)], foreign: Label) -> Label {
    let mut next = foreign;
    for (arch, table) in known.iter().rev() {
        next = assembler.jump(assemble::JEQ, arch.audit(), *table, next);
    }
    assembler.load(assemble::OFFSET_ARCH, next)
}

/// Emits the load of the number and the tree below it.
fn tree(assembler: &mut Assembler, segments: &[Segment]) -> Label {
    let root = subtree(assembler, segments);
    assembler.load(assemble::OFFSET_NR, root)
}

fn subtree(assembler: &mut Assembler, segments: &[Segment]) -> Label {
    match segments {
        [only] => leaf::emit(assembler, &only.leaf),
        _ => {
            let (low, high) = segments.split_at(segments.len() / 2);
            let above = subtree(assembler, high);
            let below = subtree(assembler, low);
            assembler.jump(assemble::JGE, high[0].first, above, below)
        }
    }
}

fn check_arguments(plan: &Plan) -> Result<(), FilterError> {
    for (call, wanted) in &plan.calls {
        if let Some(test) = wanted.any_of.iter().flatten().find(|test| test.arg > 5) {
            return Err(FilterError::NoSuchArgument {
                call: *call,
                argument: test.arg,
                wanted_by: wanted_by(&wanted.reasons),
            });
        }
    }
    Ok(())
}

fn too_long(plan: &Plan, profile: &Profile, instructions: usize) -> FilterError {
    let planned = plan.calls.iter().map(|(call, wanted)| {
        let tests: usize = wanted.any_of.iter().map(Vec::len).sum();
        (tests, *call, wanted_by(&wanted.reasons))
    });
    let denied = profile.rules.iter().map(|rule| {
        let same = profile.rules.iter().filter(|other| other.call == rule.call);
        let tests = same.map(|rule| rule.when.len()).sum();
        (
            tests,
            rule.call,
            format!("the policy's rule `{}`", rule.rule),
        )
    });
    let largest = planned.chain(denied).max_by_key(|(tests, ..)| *tests);
    let (tests, call, wanted_by) = largest.expect("an empty plan compiles to a handful");
    FilterError::TooLong {
        instructions,
        limit: MAX_INSTRUCTIONS,
        call,
        tests,
        wanted_by,
    }
}

fn wanted_by(reasons: &[Reason]) -> String {
    let names: Vec<_> = reasons
        .iter()
        .map(|reason| match reason {
            Reason::Rule(name) => format!("rule `{name}`"),
            Reason::Floor(why) => format!("always trapped: {why}"),
            Reason::State(why) => format!("the engine: {why}"),
        })
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
