//! What a runtime may send to a plug-in: nothing may panic, and every event can be answered. The bytes are taken as
//! frames, and once more as the payload of a message, so that what is inside is reached without a frame around it.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nri::{Answer, Demultiplexer, Message, MessageKind, Options, Protocol, Step, encode};

fn receive(protocol: &mut Protocol, message: &Message) {
    if let Ok(Step::Deliver { stream, event }) = protocol.receive(message) {
        for answer in [Answer::Accept, Answer::Refuse("no".to_owned())] {
            protocol.answer(stream, &event, &answer).expect("an answer is short");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut protocol = Protocol::new(Options {
        name: "tollgate".to_owned(),
        index: 10,
        deadline: Duration::from_millis(200),
    });
    let mut demultiplexer = Demultiplexer::default();
    for message in demultiplexer.push(bytes).unwrap_or_default() {
        receive(&mut protocol, &message);
        if let Ok(encoded) = encode(&message) {
            let again = Demultiplexer::default().push(&encoded);
            assert_eq!(again.as_deref(), Ok(&[message][..]));
        }
    }
    for kind in [MessageKind::Request, MessageKind::Response] {
        for connection in [1, 2] {
            let payload = bytes.to_vec();
            let message = Message { connection, stream: 1, kind, payload };
            receive(&mut protocol, &message);
        }
    }
});
