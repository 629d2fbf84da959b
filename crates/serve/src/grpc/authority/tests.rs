use super::*;

const DATA: u8 = 0;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short one");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 1]);
    frame.extend(payload);
    frame
}

/// What a server reads when a client has said this after its preface.
fn read_of(said: &[u8]) -> Vec<u8> {
    let preface = [b'P'; PREFACE];
    let mut out = BytesMut::new();
    let mut renamer = Renamer::default();
    renamer.take(&preface, &mut out);
    renamer.take(said, &mut out);
    let mut in_pieces = BytesMut::new();
    let mut renamer = Renamer::default();
    for byte in preface.iter().chain(said) {
        renamer.take(&[*byte], &mut in_pieces);
    }
    assert_eq!(out, in_pieces, "how bytes arrive makes no difference");
    out.split_off(PREFACE).to_vec()
}

/// A header with a name of its own number, to be put into the table.
fn authority(value: &[u8]) -> Vec<u8> {
    let mut header = vec![0x41, u8::try_from(value.len()).expect("a short one")];
    header.extend(value);
    header
}

#[test]
fn characters_are_counted_as_the_standard_has_them() {
    for (code, length) in [
        (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com".len()),
        (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache".len()),
        (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key".len()),
        (b"\xae\xc3\x77\x1a\x4b", "private".len()),
        (
            b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff",
            "Mon, 21 Oct 2013 20:13:21 GMT".len(),
        ),
        (b"", 0),
    ] {
        assert_eq!(characters(code), Some(length), "{code:x?}");
    }
    assert_eq!(characters(b"\xff\xff\xff\xff"), None, "no text ends so");
    assert_eq!(
        characters(b"\x18"),
        None,
        "zeros stand behind the last code"
    );
}

#[test]
fn every_code_has_its_place() {
    let all: u64 = CODES
        .iter()
        .zip(1..)
        .map(|(count, length)| u64::from(*count) << (30 - length))
        .sum();
    assert_eq!(all, (1 << 30) - 1, "the last one ends no text");
    assert_eq!(CODES.iter().sum::<u32>(), 256);
}

#[test]
fn another_name_has_the_same_length() {
    let name = b"unix:///run/falco/falco.sock";
    let headers = [&[0x83, 0x86][..], &authority(name), &[0x44, 1, b'/']].concat();
    let renamed = [&[0x83, 0x86][..], &authority(&[b'a'; 28]), &[0x44, 1, b'/']].concat();
    let read = read_of(&frame(HEADERS, END_HEADERS, &headers));
    assert_eq!(read, frame(HEADERS, END_HEADERS, &renamed));
    // The name of the header as a string, and a header that is not to be put into the table.
    let headers = [&b"\x10\x0a:authority\x03/x/"[..], b"\x01\x01/"].concat();
    let renamed = [&b"\x10\x0a:authority\x03aaa"[..], b"\x01\x01a"].concat();
    let read = read_of(&frame(HEADERS, END_HEADERS, &headers));
    assert_eq!(read, frame(HEADERS, END_HEADERS, &renamed));
}

#[test]
fn a_name_in_huffman_codes_is_replaced_by_one_in_huffman_codes() {
    let code = b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    let headers = [&[0x41, 0x80 | 12][..], code].concat();
    let read = read_of(&frame(HEADERS, END_HEADERS, &headers));
    let value = &read[FRAME_HEADER + 2..];
    // 15 characters of 5 bits.
    assert_eq!(read[FRAME_HEADER..FRAME_HEADER + 2], [0x41, 0x80 | 10]);
    assert_eq!(value.len(), 10);
    assert_eq!(characters(value), Some(15));
    assert_eq!(value[..5], [0x18, 0xc6, 0x31, 0x8c, 0x63]);
}

#[test]
fn a_long_name_keeps_its_length() {
    let mut name = vec![0x41];
    let mut length = BytesMut::new();
    put_integer(1337, 7, 0, &mut length);
    name.extend(&length);
    let headers = |of: u8| [&name[..], &[of; 1337]].concat();
    let read = read_of(&frame(HEADERS, END_HEADERS, &headers(b'/')));
    assert_eq!(read, frame(HEADERS, END_HEADERS, &headers(b'a')));
}

#[test]
fn what_is_no_request_goes_through_as_it_is() {
    let said = [
        frame(4, 0, &[0; 12]),
        frame(HEADERS, END_HEADERS, &[0x83]),
        frame(DATA, 0, b"\x41\x01/"),
        frame(8, 0, &[0, 0, 1, 0]),
    ]
    .concat();
    assert_eq!(read_of(&said), said);
}

#[test]
fn headers_in_pieces_with_padding_are_put_together() {
    let padded = [&[3, 1, 2, 3, 4, 5, 0x41, 3][..], b"/", &[0; 3]].concat();
    let said = [
        frame(HEADERS, PADDED | HAS_PRIORITY, &padded),
        frame(CONTINUATION, END_HEADERS, b"x/"),
        frame(DATA, 1, b"d"),
    ]
    .concat();
    let whole = [&[1, 2, 3, 4, 5, 0x41, 3][..], b"aaa"].concat();
    let expected = [
        frame(HEADERS, END_HEADERS | HAS_PRIORITY, &whole),
        frame(DATA, 1, b"d"),
    ]
    .concat();
    assert_eq!(read_of(&said), expected);
}

#[test]
fn what_is_damaged_is_left_to_the_server() {
    for headers in [
        &b"\x41\x7f"[..],
        b"\x41\x05/",
        b"\x41\x81\x00",
        b"\x41\x7f\xff\xff\xff\xff\xff",
        b"\x41",
    ] {
        let said = frame(HEADERS, END_HEADERS, headers);
        assert_eq!(read_of(&said), said);
    }
    // Other frames between headers, headers of nobody, and padding that is longer than all.
    for said in [
        [frame(HEADERS, 0, b"\x83"), frame(DATA, 0, b"d")].concat(),
        frame(CONTINUATION, END_HEADERS, b"\x83"),
        [frame(HEADERS, PADDED, b"\x09\x83"), frame(DATA, 0, b"d")].concat(),
        [
            frame(HEADERS, 0, b"\x83"),
            frame(HEADERS, END_HEADERS, b"\x83"),
        ]
        .concat(),
    ] {
        assert_eq!(read_of(&said), said);
    }
    // More headers than anybody needs are not gathered.
    let more = frame(CONTINUATION, 0, &[0x83; MAX_PAYLOAD]);
    let said = [frame(HEADERS, 0, b"\x83"), more.repeat(5)].concat();
    let read = read_of(&said);
    let payload = |frames: &[u8]| frames.iter().filter(|byte| **byte == 0x83).count();
    assert_eq!(payload(&read), payload(&said));
}

proptest::proptest! {
    #[test]
    fn anything_can_be_said(said: Vec<u8>) {
        read_of(&said);
    }

    #[test]
    fn any_headers_can_be_sent(block: Vec<u8>, flags: u8) {
        let read = read_of(&frame(HEADERS, flags | END_HEADERS, &block));
        proptest::prop_assert!(read.len() <= FRAME_HEADER + block.len());
    }
}
