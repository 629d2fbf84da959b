//! What the filter of the running command hands over, told to agents that take over: rules that
//! they load may need more.

use std::collections::BTreeMap;

use abi::{RegisterTest, Syscall, TestOp, TestWidth};
use event::{CallPlan, Need, Plan, StdioWatch};
use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::failure::Failure;

/// The part of a plan that its filter was compiled from. Calls are named, so that another version
/// of this program understands it.
#[derive(Deserialize, Serialize)]
struct Memo {
    stdio: u8,
    calls: BTreeMap<String, Vec<Vec<Test>>>,
}

/// Argument, whether all 64 bits count, operator, mask, value.
type Test = (u8, bool, Op, u64, u64);

#[derive(Clone, Copy, Deserialize, Serialize)]
enum Op {
    AllBits,
    AnyBit,
    Eq,
    Ge,
    Le,
    MaskedEq,
    Ne,
    NoBit,
}

const STDIO: [StdioWatch; 3] = [StdioWatch::Off, StdioWatch::Sockets, StdioWatch::Any];

/// The memo for an agent that takes over.
pub(super) fn encode(plan: &Plan) -> Vec<u8> {
    let stdio = STDIO.iter().position(|watch| *watch == plan.stdio);
    let stdio = stdio.expect("the table has every watch");
    let group = |group: &Vec<RegisterTest>| group.iter().map(test).collect();
    let calls = plan.calls.iter().map(|(call, planned)| {
        let any_of = planned.any_of.iter().map(group).collect();
        (call.name().to_owned(), any_of)
    });
    let memo = Memo {
        stdio: u8::try_from(stdio).expect("three of them"),
        calls: calls.collect(),
    };
    serde_json::to_vec(&memo).expect("names and numbers can be written")
}

fn test(test: &RegisterTest) -> Test {
    let (op, mask) = match test.op {
        TestOp::AllBits => (Op::AllBits, 0),
        TestOp::AnyBit => (Op::AnyBit, 0),
        TestOp::Eq => (Op::Eq, 0),
        TestOp::Ge => (Op::Ge, 0),
        TestOp::Le => (Op::Le, 0),
        TestOp::MaskedEq { mask } => (Op::MaskedEq, mask),
        TestOp::Ne => (Op::Ne, 0),
        TestOp::NoBit => (Op::NoBit, 0),
    };
    (
        test.arg,
        test.width == TestWidth::Full64,
        op,
        mask,
        test.value,
    )
}

/// The plan of a memo. Calls that this version does not know are left out: no rule of its asks for
/// one. A watch that it does not know counts as none: rules that need one are refused by name.
pub(super) fn decode(memo: &[u8]) -> Result<Plan, Failure> {
    let memo: Memo = serde_json::from_slice(memo).map_err(|error| {
        let message =
            format!("cannot take over: the agent before left no plan of its filter: {error}");
        Failure::new(Exit::Internal, message).help("start the command again")
    })?;
    let known = |(name, any_of): (String, Vec<Vec<Test>>)| {
        let call = Syscall::from_name(&name)?;
        let group = |group: Vec<Test>| group.into_iter().map(register_test).collect();
        let planned = CallPlan {
            any_of: any_of.into_iter().map(group).collect(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        };
        Some((call, planned))
    };
    Ok(Plan {
        // Of the kernel's own filter, which no keeper hands on.
        interests: BTreeMap::new(),
        calls: memo.calls.into_iter().filter_map(known).collect(),
        stdio: STDIO
            .get(usize::from(memo.stdio))
            .copied()
            .unwrap_or_default(),
        executable_file: false,
    })
}

fn register_test((arg, full, op, mask, value): Test) -> RegisterTest {
    let op = match op {
        Op::AllBits => TestOp::AllBits,
        Op::AnyBit => TestOp::AnyBit,
        Op::Eq => TestOp::Eq,
        Op::Ge => TestOp::Ge,
        Op::Le => TestOp::Le,
        Op::MaskedEq => TestOp::MaskedEq { mask },
        Op::Ne => TestOp::Ne,
        Op::NoBit => TestOp::NoBit,
    };
    let width = if full {
        TestWidth::Full64
    } else {
        TestWidth::Low32
    };
    RegisterTest {
        arg,
        width,
        op,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_files::{self, NoSink};

    #[test]
    fn a_memo_tells_what_the_filter_hands_over() {
        let mut loaded = rule_files::load(&[]);
        let (engine, plan) = loaded.compile(&rules::EngineOptions::default(), NoSink);
        let told = decode(&encode(&plan)).expect("a memo of this version");
        let groups = |plan: &Plan| -> Vec<_> {
            let calls = plan.calls.iter();
            calls
                .map(|(call, planned)| (*call, planned.any_of.clone()))
                .collect()
        };
        assert_eq!(groups(&told), groups(&plan));
        assert_eq!(told.stdio, plan.stdio);
        assert!(engine.unserved(&told).is_empty());
        assert!(!engine.unserved(&Plan::default()).is_empty());
    }

    #[test]
    fn what_is_no_memo_is_refused() {
        assert!(decode(b"").is_err());
        assert!(decode(b"{\"stdio\":0,\"calls\":{\"openat\":[[[0]]]}}").is_err());
    }
}
