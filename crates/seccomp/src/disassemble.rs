//! Disassembler for filters.

use std::fmt::Write;

use abi::Arch;
use sys::seccomp::SockFilter;

use super::assemble::{AND, JA, JEQ, JGE, JGT, JSET, LD, OFFSET_ARCH, OFFSET_ARGS, OFFSET_NR, RET};
use super::{Action, FilterProgram};

/// Formats each instruction as one line: index, operation and jump targets.
pub fn disassemble(program: &FilterProgram) -> String {
    let mut text = String::new();
    let instructions = program.instructions();
    // The content of the accumulator decides the format of constants. Jumps only go forward, so one pass
    // propagates it to each instruction.
    let mut shown = vec![Shown::Number; instructions.len() + 1];
    for (index, instruction) in instructions.iter().enumerate() {
        let held = match (instruction.code, instruction.k) {
            (LD, OFFSET_ARCH) => Shown::Arch,
            (LD, OFFSET_NR) => Shown::Number,
            (LD, _) => Shown::Argument,
            _ => shown[index],
        };
        for target in targets(index, *instruction) {
            if let Some(target) = shown.get_mut(target) {
                *target = held;
            }
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{index:4}: {}", line(index, *instruction, held));
    }
    text
}

/// The possible next instructions.
fn targets(index: usize, instruction: SockFilter) -> [usize; 2] {
    let next = index + 1;
    match instruction.code {
        JA => [next.saturating_add(usize::try_from(instruction.k).unwrap_or(usize::MAX)); 2],
        JEQ | JGT | JGE | JSET => [
            next + usize::from(instruction.jt),
            next + usize::from(instruction.jf),
        ],
        _ => [next; 2],
    }
}

#[derive(Clone, Copy)]
enum Shown {
    Arch,
    Number,
    Argument,
}

fn line(index: usize, instruction: SockFilter, shown: Shown) -> String {
    let SockFilter { code, jt, jf, k } = instruction;
    let after = |skip: usize| index + 1 + skip;
    let constant = constant(k, shown);
    let branch = |operator: &str| {
        let (then, otherwise) = (after(usize::from(jt)), after(usize::from(jf)));
        format!("if A {operator} {constant} goto {then} else {otherwise}")
    };
    match code {
        LD => format!("A = {}", word(k)),
        AND => format!("A &= {k:#x}"),
        JA => match usize::try_from(k) {
            Ok(skip) => format!("goto {}", after(skip)),
            Err(_) => format!("goto +{k}"),
        },
        JEQ => branch("=="),
        JGT => branch(">"),
        JGE => branch(">="),
        JSET => branch("&"),
        RET => match Action::from_raw(k) {
            Some(Action::Allow) => "return ALLOW".to_owned(),
            Some(Action::Errno(number)) => format!("return ERRNO {number}"),
            Some(Action::KillProcess) => "return KILL_PROCESS".to_owned(),
            Some(Action::KillThread) => "return KILL_THREAD".to_owned(),
            Some(Action::Log) => "return LOG".to_owned(),
            Some(Action::Notify) => "return USER_NOTIF".to_owned(),
            Some(Action::Trap) => "return TRAP".to_owned(),
            Some(Action::Trace(message)) => format!("return TRACE {message}"),
            None => format!("return {k:#x}"),
        },
        _ => format!("unknown operation {code:#x} {jt} {jf} {k:#x}"),
    }
}

fn constant(k: u32, shown: Shown) -> String {
    match shown {
        Shown::Number if k >= abi::arch::X32_BIT => format!("x32:{}", k & !abi::arch::X32_BIT),
        Shown::Number => k.to_string(),
        Shown::Arch => Arch::ALL
            .iter()
            .find(|arch| arch.audit() == k)
            .map_or_else(|| format!("{k:#x}"), |arch| arch.name().to_owned()),
        Shown::Argument => format!("{k:#x}"),
    }
}

fn word(offset: u32) -> String {
    match offset {
        OFFSET_NR => "nr".to_owned(),
        OFFSET_ARCH => "arch".to_owned(),
        _ => {
            let position = offset.saturating_sub(OFFSET_ARGS) / 8;
            let half = if offset.is_multiple_of(8) {
                "low"
            } else {
                "high"
            };
            format!("arg{position}.{half}")
        }
    }
}
