//! What other processes and other machines say: agents, plugins, virtual machines, name servers, collectors of OpenTelemetry.

use ::plugin::protocol::{self, FieldType, Reply};
use agent::spec::AgentSpec;
use agent::testing;
use vm::{Frame, FrameError};

use crate::{Outcome, text};

/// Takes the specification of an agent: it is written and read again the same.
///
/// # Panics
///
/// If that does not hold.
pub fn agent_spec(bytes: &[u8]) -> Outcome {
    let Ok(spec) = AgentSpec::decode(bytes) else {
        return Outcome::Refused;
    };
    let written = spec.encode();
    let again = AgentSpec::decode(&written);
    let again = again.unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!(again.encode(), written);
    Outcome::Accepted
}

/// Takes what an agent says to another, or to a keeper. The first letter says what follows: `q`, a request to watch a container;
/// `c`, held calls; `a`, an answer; `o`, orders; `m`, words of our processes. What is read is no more than was sent.
///
/// # Panics
///
/// If that does not hold.
pub fn handoff(bytes: &[u8]) -> Outcome {
    let Some((letter, bytes)) = bytes.split_first() else {
        return Outcome::Refused;
    };
    let is_accepted = match letter {
        b'q' => {
            let request = testing::handoff_request(bytes).expect("sockets");
            let length = request
                .as_ref()
                .map(|(id, threads)| id.len() + threads.len());
            assert!(length.is_none_or(|length| length <= bytes.len()));
            request.is_some()
        }
        b'c' => {
            let calls = testing::held_calls(bytes).expect("sockets");
            assert!(calls.is_none_or(|calls| calls <= bytes.len()));
            calls.is_some()
        }
        b'a' => {
            let answer = testing::handoff_answer(bytes).expect("sockets");
            if let Some(Err(why)) = &answer {
                // Each byte that is no text becomes a character of three.
                assert!(why.len() <= 3 * bytes.len());
            }
            answer.is_some()
        }
        b'o' => {
            let orders = testing::orders(bytes).expect("sockets");
            assert!(orders * 5 <= bytes.len());
            orders > 0
        }
        b'm' => {
            let words = bytes.as_chunks::<8>().0.iter().copied();
            let mut messages =
                words.map(|word| supervisor::testing::message(u64::from_le_bytes(word)));
            messages
                .next()
                .is_some_and(|first| messages.fold(first, |all, one| all & one))
        }
        _ => false,
    };
    Outcome::accepted_if(is_accepted)
}

/// Takes what a process that loads plugins sends: what is read is written and read again the same, and what passes the checks is
/// within their limits.
///
/// # Panics
///
/// If that does not hold.
pub fn plugin(mut bytes: &[u8]) -> Outcome {
    let mut is_accepted = !bytes.is_empty();
    while !bytes.is_empty() {
        let Ok(reply) = protocol::read::<Reply>(&mut bytes) else {
            return Outcome::Refused;
        };
        let mut written = Vec::new();
        if protocol::write(&mut written, &reply).is_ok() {
            let again: Reply = protocol::read(&mut &*written).expect("it was written");
            assert_eq!(again, reply);
        }
        match &reply {
            Reply::Loaded(plugins) => {
                for plugin in plugins {
                    let checked = plugin.check();
                    is_accepted &= checked.is_ok();
                    assert!(checked.is_err() || plugin.name.is_ascii());
                }
            }
            Reply::Batch(records) => {
                // As if the rules asked for a text and a list of numbers.
                let wanted = [(FieldType::Text, false), (FieldType::Uint, true)];
                for record in records {
                    let checked =
                        [true, false].map(|with_data| record.check(&wanted, with_data).is_ok());
                    assert!(checked != [true, true], "it has bytes, or has not");
                    is_accepted &= checked != [false, false];
                }
            }
            _ => {}
        }
    }
    Outcome::accepted_if(is_accepted)
}

/// Takes the answer of a name server to a question for `example.com`: an address takes more bytes there than here.
///
/// # Panics
///
/// If that does not hold.
pub fn dns(bytes: &[u8]) -> Outcome {
    let answers =
        [false, true].map(|is_v6| outputs::testing::dns_answer("example.com", is_v6, bytes));
    for addresses in answers.iter().flatten() {
        assert!(addresses.len() * 14 <= bytes.len());
    }
    Outcome::accepted_if(answers.iter().any(Option::is_some))
}

/// Takes the answer of a collector of OpenTelemetry, in JSON if it begins with a brace, as `Retry-After` if it begins with `r`, and
/// in Protocol Buffers else.
///
/// # Panics
///
/// If the reason of a refusal is longer than the answer.
pub fn otlp_answer(bytes: &[u8]) -> Outcome {
    if let Some(value) = bytes.strip_prefix(b"r") {
        let pause = text(value).and_then(outputs::testing::otlp_retry_after);
        return Outcome::accepted_if(pause.is_some());
    }
    let partial = outputs::testing::otlp_partial(bytes, bytes.first() == Some(&b'{'));
    if let Ok((_, why)) = &partial {
        assert!(why.len() <= bytes.len());
    }
    Outcome::accepted_if(partial.is_ok())
}

/// Takes frames that a virtual machine sends: they are written again as they were sent.
///
/// # Panics
///
/// If that does not hold.
pub fn vm_frame(bytes: &[u8]) -> Outcome {
    let mut rest = bytes;
    let mut written = Vec::new();
    loop {
        match Frame::read(&mut rest) {
            Ok(frame) => frame.write(&mut written).expect("memory takes it"),
            Err(error) => {
                assert!(bytes.starts_with(&written));
                return Outcome::accepted_if(
                    matches!(error, FrameError::Ended) && !bytes.is_empty(),
                );
            }
        }
    }
}
