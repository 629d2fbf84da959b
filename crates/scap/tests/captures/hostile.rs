//! Captures that lie.

use std::io::Write as _;

use event::testing::FieldReader;
use proptest::prelude::*;
use scap::Error;
use scap::read::Reader;
use scap::replay::Replay;

use crate::mutate::{Random, mutate};
use crate::round_trip::sample;

/// Replays what can be replayed; how many events that was, and what ended it.
fn play(file: &[u8]) -> (u64, Result<(), Error>) {
    let glance = FieldReader::default();
    let mut replay = Replay::new(&glance, 0);
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (0, Err(error)),
    };
    loop {
        match replay.step(&mut reader, 64) {
            Ok(true) => {}
            Ok(false) => return (replay.counts().events, Ok(())),
            Err(error) => return (replay.counts().events, Err(error)),
        }
    }
}

#[test]
fn a_capture_that_ends_early_gives_what_it_has() {
    let file = sample();
    let (whole, result) = play(&file);
    assert!(result.is_ok() && whole > 100);
    let mut last = 0;
    for len in (1..file.len()).step_by(1999) {
        let (events, result) = play(&file[..len]);
        assert!(events >= last, "{len}");
        last = events;
        if let Err(error) = result {
            assert!(error.is_truncation(), "{len}: {error}");
        }
    }
    assert!(last > whole / 2);
}

#[test]
fn a_compressed_capture_is_read_and_its_end_may_be_missing() {
    let file = sample();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&file).unwrap();
    let packed = packed.finish().unwrap();
    let (whole, result) = play(&packed);
    assert!(result.is_ok());
    assert_eq!(whole, play(&file).0);
    let (part, result) = play(&packed[..packed.len() / 2]);
    assert!(part > 0 && part < whole);
    assert!(result.unwrap_err().is_truncation());
}

#[test]
fn what_is_no_capture_is_said_to_be_none() {
    let elf = [b"\x7fELF\x02\x01\x01\x00".as_slice(), &[0; 64]].concat();
    assert!(matches!(play(&elf).1, Err(Error::Foreign { .. })));
    assert!(matches!(play(b"").1, Err(Error::Empty)));
    assert!(matches!(
        play(b"\n\r\r").1,
        Err(Error::Truncated { offset: 0 })
    ));
    let mut newer = sample();
    newer[12] = 2;
    assert!(matches!(
        play(&newer).1,
        Err(Error::Version { major: 2, .. })
    ));
}

#[test]
fn captures_of_networks_and_of_other_machines_are_told_apart() {
    let section = |order: fn(u32) -> [u8; 4]| {
        let words = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        words.map(order).concat()
    };
    let mut packets = section(u32::to_le_bytes);
    packets.extend([1, 20, 1, 0, 20].map(u32::to_le_bytes).concat());
    match play(&packets) {
        (0, Err(Error::Packets { offset: 28 })) => {}
        other => panic!("{other:?}"),
    }
    match play(&section(u32::to_be_bytes)).1 {
        Err(Error::Corrupt { offset: 0, problem }) => {
            assert!(problem.contains("byte order"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_length_that_lies_is_refused_where_it_stands() {
    let mut file = sample();
    // The second block: the machine.
    let second = usize::from(file[4]);
    file[second + 4..second + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    let offset = u64::try_from(second).unwrap();
    match play(&file).1 {
        Err(Error::Corrupt {
            offset: at,
            problem,
        }) => {
            assert_eq!(at, offset);
            assert!(problem.contains("4294967295"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn spoilt_bytes_do_no_harm(spots in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut file = sample();
        for (spot, byte) in spots {
            let at = spot.index(file.len());
            file[at] = byte;
        }
        let (_, result) = play(&file);
        if let Err(error) = result {
            prop_assert!(error.to_string().starts_with("cannot read"));
        }
    }

    #[test]
    fn blocks_with_something_wrong_in_them_do_no_harm(seed in any::<u64>(), rounds in 1..40_usize) {
        let mut random = Random::new(seed);
        let mut file = sample();
        for _ in 0..rounds {
            file = mutate(&file, 1 << 20, &mut random);
        }
        let (_, result) = play(&file);
        if let Err(error) = result {
            prop_assert!(error.to_string().starts_with("cannot read"));
        }
    }

    #[test]
    fn blocks_of_noise_do_no_harm(types in prop::collection::vec(0x200_u32..0x223, 1..20), noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut file = sample();
        // Behind the header: whole blocks whose content means nothing.
        for ty in types {
            let len = u32::try_from(noise.len() + 12).unwrap();
            file.extend(ty.to_le_bytes());
            file.extend(len.to_le_bytes());
            file.extend(&noise);
            file.extend(len.to_le_bytes());
        }
        let _ = play(&file);
    }
}
