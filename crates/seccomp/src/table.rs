//! Compiler for filters that specify an action for each call, such as `linux.seccomp` of a container.

use abi::{Arch, RegisterTest};

use super::assemble::Assembler;
use super::leaf::{Clause, Leaf};
use super::{Action, FilterProgram, MAX_INSTRUCTIONS, dispatch, numbers};

/// An action for some calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Numbers of the calls in the architecture's table.
    pub numbers: Vec<u32>,
    /// Tests that must all hold. Arguments are in the order of that architecture.
    pub when: Vec<RegisterTest>,
    /// The action if all tests hold.
    pub action: Action,
}

/// The actions for the calls of one architecture. Rules with tests are evaluated before rules without; within
/// each group, the first rule on a call decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The architecture.
    pub arch: Arch,
    /// The rules.
    pub rules: Vec<Rule>,
    /// The action for a call that no rule decides.
    pub otherwise: Action,
    /// The action for such a call whose number is above the numbers of all rules without tests.
    pub newer: Action,
}

impl Table {
    /// The first number above all rules without tests.
    fn end(&self) -> u32 {
        let untested = self.rules.iter().filter(|rule| rule.when.is_empty());
        let last = untested.flat_map(|rule| &rule.numbers).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn leaf(&self, number: u32, end: u32) -> Leaf {
        let about = |rule: &&Rule| rule.numbers.contains(&number);
        let (tested, untested): (Vec<_>, Vec<_>) = self
            .rules
            .iter()
            .filter(about)
            .partition(|rule| !rule.when.is_empty());
        let clauses: Vec<Clause> = tested
            .into_iter()
            .chain(untested)
            .map(|rule| (rule.when.clone(), rule.action))
            .collect();
        let otherwise = if number < end {
            self.otherwise
        } else {
            self.newer
        };
        Leaf::decide(clauses, otherwise)
    }
}

/// The filter has too many instructions for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot compile the filter: {instructions} instructions, the kernel takes {MAX_INSTRUCTIONS}"
)]
pub struct TooLong {
    /// Number of instructions.
    pub instructions: usize,
}

/// Compiles tables for a kernel of the architecture `native`. `unnamed` is the action for calls of
/// architectures without a table.
///
/// # Errors
/// Fails if the program is too long for the kernel.
pub fn compile(native: Arch, tables: &[Table], unnamed: Action) -> Result<FilterProgram, TooLong> {
    let ends: Vec<_> = tables.iter().map(|table| (table, table.end())).collect();
    let leaf = |arch: Arch, number: Option<u32>| {
        let found = ends.iter().find(|(table, _)| table.arch == arch);
        match (found, number) {
            (None, _) => Leaf::Always(unnamed),
            (Some((table, _)), None) => Leaf::Always(table.newer),
            (Some((table, end)), Some(number)) => table.leaf(number, *end),
        }
    };
    let mut assembler = Assembler::default();
    dispatch(&mut assembler, native, unnamed, |arch| {
        numbers::by_number(arch, leaf)
    });
    let instructions = assembler.finish();
    match instructions.len() {
        0..=MAX_INSTRUCTIONS => Ok(FilterProgram { instructions }),
        instructions => Err(TooLong { instructions }),
    }
}

#[cfg(test)]
mod tests {
    use abi::TestOp;

    use super::*;
    use crate::run::{SeccompData, run};

    fn action(program: &FilterProgram, arch: Arch, number: u32, args: [u64; 6]) -> Action {
        let data = SeccompData {
            number: arch.raw_number(number),
            audit: arch.audit(),
            args,
        };
        run(program, &data).expect("it is one of ours").action
    }

    #[test]
    fn rules_with_tests_go_first_and_new_calls_have_an_action_of_their_own() {
        let rule = |number, when, action| Rule {
            numbers: vec![number],
            when,
            action,
        };
        let is_seven = RegisterTest::full(1, TestOp::Eq, 7);
        let table = Table {
            arch: Arch::X86_64,
            rules: vec![
                rule(3, Vec::new(), Action::Allow),
                rule(3, vec![is_seven], Action::Trap),
                rule(3, Vec::new(), Action::Log),
                rule(9, vec![is_seven], Action::Log),
                rule(5, Vec::new(), Action::Allow),
            ],
            otherwise: Action::Errno(13),
            newer: Action::Errno(38),
        };
        let program = compile(Arch::X86_64, &[table], Action::KillThread).expect("it is short");
        let of = |number, arg| action(&program, Arch::X86_64, number, [0, arg, 0, 0, 0, 0]);
        assert_eq!(of(3, 7), Action::Trap);
        assert_eq!(of(3, 7 << 32), Action::Allow);
        assert_eq!(of(4, 7), Action::Errno(13));
        assert_eq!(of(5, 7), Action::Allow);
        assert_eq!(of(6, 7), Action::Errno(38));
        assert_eq!([of(9, 7), of(9, 8)], [Action::Log, Action::Errno(38)]);
        assert_eq!(of(5000, 7), Action::Errno(38));
        for other in [Arch::X32, Arch::I386, Arch::Aarch64] {
            let does = action(&program, other, 5, [0; 6]);
            assert_eq!(does, Action::KillThread, "{other}");
        }
    }

    #[test]
    fn a_program_that_the_kernel_does_not_take_is_an_error() {
        let rules = |count: u64| {
            let rule = |value| Rule {
                numbers: vec![1],
                when: vec![RegisterTest::full(0, TestOp::Eq, value)],
                action: Action::Trap,
            };
            vec![Table {
                arch: Arch::X86_64,
                rules: (0..count).map(rule).collect(),
                otherwise: Action::Allow,
                newer: Action::Allow,
            }]
        };
        assert!(compile(Arch::X86_64, &rules(100), Action::Trap).is_ok());
        let error = compile(Arch::X86_64, &rules(2000), Action::Trap);
        assert!(error.is_err_and(|error| error.instructions > MAX_INSTRUCTIONS));
    }
}
