//! From the interest plan to a seccomp filter.
//!
//! The kernel runs the filter before each call of the whole process tree, so its layout decides
//! what watching costs. Since Linux 5.11 the kernel finds out beforehand for which numbers a filter
//! answers "allow" whatever the arguments are, and skips it for those; it can do so only if nothing
//! but architecture and number was loaded on the way. Hence: dispatch by architecture, then by a
//! balanced tree over number ranges, and load arguments only in the leaf of their own call.
//!
//! What a leaf tests comes from the plan, whose argument positions are those of the 64-bit call.
//! Where another architecture passes an argument differently, the test is dropped there: the call
//! is then reported too often, never too rarely.
//!
//! A policy's denials go into the same program, so that one filter serves both and costs once. A call
//! that a rule asks for is handed over even if it is denied: the receiver refuses it then, and rules
//! see that it failed. All other denials never leave the kernel.

mod assemble;
mod disassemble;
mod leaf;
mod numbers;
pub mod run;

use abi::{Arch, Syscall};
use event::{Plan, Reason};
use policy::compile::seccomp::Profile;
use sys::seccomp::SockFilter;

use assemble::{Assembler, Label};
use leaf::Leaf;
pub use numbers::adapt;
use numbers::{Merged, Segment};

pub use disassemble::disassemble;

/// The kernel's limit on instructions (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Carry it out.
    Allow,
    /// Fail it with this error number.
    Errno(u16),
    /// End the process.
    KillProcess,
    /// End the thread.
    KillThread,
    /// Hold it and ask the listener.
    Notify,
    /// Stop it for the tracer, with this message.
    Trace(u16),
    /// Send the thread a SIGSYS.
    Trap,
}

impl Action {
    /// The filter's return value (include/uapi/linux/seccomp.h).
    pub fn to_raw(self) -> u32 {
        match self {
            Action::Allow => 0x7fff_0000,
            Action::Errno(number) => 0x0005_0000 | u32::from(number),
            Action::KillProcess => 0x8000_0000,
            Action::KillThread => 0,
            Action::Notify => 0x7fc0_0000,
            Action::Trap => 0x0003_0000,
            Action::Trace(message) => 0x7ff0_0000 | u32::from(message),
        }
    }

    /// The action of a return value that [`Action::to_raw`] makes.
    pub fn from_raw(raw: u32) -> Option<Self> {
        let data = u16::try_from(raw & 0xffff).ok()?;
        match raw & 0xffff_0000 {
            0x7fff_0000 => Some(Action::Allow),
            0x0005_0000 => Some(Action::Errno(data)),
            0x8000_0000 => Some(Action::KillProcess),
            0 => Some(Action::KillThread),
            0x0003_0000 => Some(Action::Trap),
            0x7fc0_0000 => Some(Action::Notify),
            0x7ff0_0000 => Some(Action::Trace(data)),
            _ => None,
        }
    }
}

/// What becomes of a call that the filter cannot judge like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialCall {
    /// It is treated as the plan says.
    AsPlanned,
    /// It fails with ENOSYS, as if the kernel did not have it, unless a rule names it.
    RefuseUnlessRule,
    /// It fails with ENOSYS.
    Refuse,
}

/// Who refuses what a policy denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denials {
    /// The kernel, unless a rule or the policy asks to be told.
    InKernel,
    /// The listener, which tells a container runtime, that the policy is not about, from the container.
    Held,
}

/// How a filter is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The architecture the kernel runs natively.
    pub native: Arch,
    /// What happens to planned calls: [`Action::Notify`], or [`Action::Trace`] for a tracer.
    pub planned: Action,
    /// `clone3`, whose flags are in memory. Refusing makes libc fall back to `clone`, whose flags
    /// are in a register, so that new threads pass without a stop; container runtimes do the same.
    pub clone3: SpecialCall,
    /// What is done with an io_uring, which carries out calls that no filter sees. To ask for one is
    /// not meant: that is seen, whatever becomes of it. Refused, a ring that was made by somebody
    /// else and handed over is of no use either.
    pub io_uring: SpecialCall,
    /// Numbers that no table knows, i.e. calls of kernels to come, and x32 numbers out of range.
    pub unknown_numbers: Action,
    /// Who refuses what the policy denies.
    pub denials: Denials,
}

impl FilterOptions {
    /// As [`FilterOptions::notify`], but for a tracer, which gets `message` with each stop.
    pub fn trace(native: Arch, message: u16) -> Self {
        Self {
            planned: Action::Trace(message),
            unknown_numbers: Action::Trace(message),
            ..Self::notify(native)
        }
    }

    /// For a policy that reports nothing: there is no listener, and what is not denied is carried out.
    /// The flags of `clone3` are for the policy to care about.
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

    /// Reports planned calls to a listener; refuses clone3 unless a rule names it; lets rings be
    /// used; reports unknown numbers.
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

/// Bytes of an instruction.
const INSTRUCTION: usize = 8;

/// A filter ready to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterProgram {
    instructions: Vec<SockFilter>,
}

impl FilterProgram {
    /// The instructions in order.
    pub fn instructions(&self) -> &[SockFilter] {
        &self.instructions
    }

    /// Whether the listener is asked of every such call, whatever its arguments are.
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

    /// As bytes, to be kept.
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

    /// From the bytes of [`Self::to_bytes`]; `None` if they are none.
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

/// Why a plan has no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// More than the kernel takes.
    #[error(
        "cannot compile the plan: {instructions} instructions, the kernel takes {limit}; \
         `{call}` alone has {tests} argument tests (wanted by {wanted_by})"
    )]
    TooLong {
        /// How many it would be.
        instructions: usize,
        /// How many the kernel takes.
        limit: usize,
        /// The call with most argument tests.
        call: Syscall,
        /// How many tests it has.
        tests: usize,
        /// Which rules ask for it.
        wanted_by: String,
    },
    /// A test of an argument that calls do not have.
    #[error("cannot compile the plan: `{call}` has no argument {argument} (wanted by {wanted_by})")]
    NoSuchArgument {
        /// The call.
        call: Syscall,
        /// The argument's position.
        argument: u8,
        /// Which rules ask for it.
        wanted_by: String,
    },
}

/// Compiles a plan. What the plan wants, the filter reports, on every architecture the kernel
/// offers beside the native one.
pub fn compile(plan: &Plan, options: &FilterOptions) -> Result<FilterProgram, FilterError> {
    compile_with(plan, &Profile::default(), options)
}

/// As [`compile`], with what a policy denies. Without a listener nothing can be reported: what is to be
/// reported and refused is refused then, and what is only to be reported passes.
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
    let entry = match options.native {
        Arch::Aarch64 => {
            let native = tree(&mut assembler, &numbers::segments(&merged, Arch::Aarch64));
            let foreign = assembler.ret(merged.foreign());
            by_audit(&mut assembler, &[(Arch::Aarch64, native)], foreign)
        }
        Arch::X86_64 | Arch::X32 | Arch::I386 => {
            let compat = tree(&mut assembler, &numbers::segments(&merged, Arch::I386));
            let native = tree(&mut assembler, &numbers::segments(&merged, Arch::X86_64));
            let foreign = assembler.ret(merged.foreign());
            let known = [(Arch::X86_64, native), (Arch::I386, compat)];
            by_audit(&mut assembler, &known, foreign)
        }
    };
    debug_assert!(assembler.is_last(entry));
    let instructions = assembler.finish();
    if instructions.len() > MAX_INSTRUCTIONS {
        return Err(too_long(plan, profile, instructions.len()));
    }
    Ok(FilterProgram { instructions })
}

/// An audit architecture outside the list is one this filter has no table for.
fn by_audit(assembler: &mut Assembler, known: &[(Arch, Label)], foreign: Label) -> Label {
    let mut next = foreign;
    for (arch, table) in known.iter().rev() {
        next = assembler.jump(assemble::JEQ, arch.audit(), *table, next);
    }
    assembler.load(assemble::OFFSET_ARCH, next)
}

/// The number's load and the tree below it.
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
            Reason::Floor(why) => format!("the floor: {why}"),
            Reason::State(why) => format!("the engine: {why}"),
        })
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
