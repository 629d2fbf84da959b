use super::*;

fn record(values: Vec<FieldValue>) -> Record {
    Record {
        time_ns: 1,
        info: FieldValue::Absent,
        asynchronous: None,
        values,
        data: None,
    }
}

#[test]
fn a_message_is_read_as_it_was_written() {
    let value = FieldValue::Many(vec![Scalar::Text(b"x".to_vec())]);
    let sent = Reply::Batch(vec![record(vec![FieldValue::Absent, value])]);
    let mut frame = Vec::new();
    write(&mut frame, &sent).expect("it is short");
    assert_eq!(read::<Reply>(&mut &*frame).expect("it is whole"), sent);
    let cut = &frame[..frame.len() - 1];
    assert!(matches!(
        read::<Reply>(&mut &*cut),
        Err(ProtocolError::Io(_))
    ));
}

#[test]
fn lengths_and_kinds_that_cannot_be_are_refused() {
    let long = [0xff; 4];
    let refused = read::<Reply>(&mut &long[..]);
    assert!(matches!(refused, Err(ProtocolError::TooLong(_))));
    // A batch that claims more records than memory could hold.
    let claims = [6, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let refused = read::<Reply>(&mut &claims[..]);
    assert!(
        matches!(refused, Err(ProtocolError::Malformed(_))),
        "{refused:?}"
    );
    let unknown = [1, 0, 0, 0, 99];
    assert!(matches!(
        read::<Reply>(&mut &unknown[..]),
        Err(ProtocolError::Malformed(_))
    ));
}

#[test]
fn values_have_to_be_those_that_were_asked_for() {
    let text = || FieldValue::One(Scalar::Text(Vec::new()));
    let wanted = [(FieldType::Text, false), (FieldType::AbsTime, true)];
    let good = [text(), FieldValue::Many(vec![Scalar::Uint(1)])];
    record(good.to_vec())
        .check(&wanted, false)
        .expect("they fit");
    for bad in [
        vec![text()],
        vec![text(), text()],
        vec![text(), FieldValue::One(Scalar::Uint(1))],
        vec![FieldValue::Many(vec![]), FieldValue::Absent],
        vec![FieldValue::One(Scalar::Bool(true)), FieldValue::Absent],
    ] {
        assert!(
            record(bad.clone()).check(&wanted, false).is_err(),
            "{bad:?}"
        );
    }
}

#[test]
fn bytes_of_an_event_come_exactly_when_they_were_asked_for() {
    let with = |data: Option<Vec<u8>>| Record {
        data,
        ..record(Vec::new())
    };
    for (data, with_data, expected) in [
        (None, false, ""),
        (Some(vec![0; MAX_EVENT_DATA]), true, ""),
        (Some(vec![]), false, "which were not asked for"),
        (None, true, "an event without its bytes"),
        (
            Some(vec![0; MAX_EVENT_DATA + 1]),
            true,
            "bytes of an event, above",
        ),
    ] {
        let checked = with(data).check(&[], with_data);
        let error = checked.map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(error.is_empty(), expected.is_empty(), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
