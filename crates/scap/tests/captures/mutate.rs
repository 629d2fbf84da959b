//! Spoils captures block by block, so that what is wrong is not found at the first frame already.
//!
//! The fuzz target (`fuzz/fuzz_targets/capture.rs`) takes this file in, too.

/// Numbers that follow from a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        // xorshift64*: G. Marsaglia; S. Vigna.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a length");
        usize::try_from(self.next() % limit).expect("less than a length")
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

#[derive(Clone)]
struct Block {
    ty: u32,
    body: Vec<u8>,
    /// What its two lengths are off by, mostly nothing.
    lie: [u32; 2],
}

/// Before the body type and length, behind it the length.
const FRAME: usize = 12;

/// Types of blocks of events.
const EVENTS: [u32; 5] = [0x204, 0x216, 0x217, 0x221, 0x222];

/// Numbers that readers trip over.
const ODD: [u64; 14] = [
    0,
    1,
    2,
    3,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// A capture like this one, with a few things changed; no longer than `limit`.
pub(crate) fn mutate(capture: &[u8], limit: usize, random: &mut Random) -> Vec<u8> {
    let (mut blocks, rest) = split(capture);
    for _ in 0..=random.below(4) {
        if blocks.is_empty() {
            break;
        }
        change(&mut blocks, random);
    }
    let mut bytes = join(&blocks);
    bytes.extend(rest);
    bytes.truncate(limit);
    bytes
}

fn split(mut bytes: &[u8]) -> (Vec<Block>, &[u8]) {
    let mut blocks = Vec::new();
    while let Some((head, _)) = bytes.split_at_checked(8) {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        let len = usize::try_from(number(4)).expect("32 bits");
        if len < FRAME || len > bytes.len() {
            break;
        }
        blocks.push(Block {
            ty: number(0),
            body: bytes[8..len - 4].to_vec(),
            lie: [0; 2],
        });
        bytes = &bytes[len..];
    }
    (blocks, bytes)
}

fn join(blocks: &[Block]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Block { ty, body, lie } in blocks {
        let len = u32::try_from(body.len() + FRAME).expect("a small block");
        bytes.extend(ty.to_le_bytes());
        bytes.extend(len.wrapping_add(lie[0]).to_le_bytes());
        bytes.extend(body);
        bytes.extend(len.wrapping_add(lie[1]).to_le_bytes());
    }
    bytes
}

fn change(blocks: &mut Vec<Block>, random: &mut Random) {
    let at = random.below(blocks.len());
    match random.below(16) {
        0 => {
            blocks.remove(at);
        }
        1 => {
            let again = blocks[at].clone();
            blocks.insert(random.below(blocks.len() + 1), again);
        }
        2 => {
            let other = random.below(blocks.len());
            blocks.swap(at, other);
        }
        3 => blocks[at].ty = 0x200 + u32::try_from(random.below(0x24)).expect("small"),
        4 if random.one_in(8) => blocks[at].lie[random.below(2)] = low(random.of(&ODD)),
        // The thread, or all of the head, of another event.
        5 => {
            let other = blocks[random.below(blocks.len())].body.clone();
            let len = random.of(&[10, 18, 24, 28]).min(other.len());
            if let Some(head) = blocks[at].body.get_mut(..len) {
                head.copy_from_slice(&other[..len]);
            }
        }
        6 | 7 => resize(&mut blocks[at], random),
        8 => {
            let code = u16::try_from(random.below(0x1c0)).expect("small");
            put(&mut blocks[at], 22, &code.to_le_bytes());
        }
        // Lengths of parameters.
        9 | 10 => {
            let place = 28 + 2 * random.below(12);
            let len = low(random.of(&ODD)).to_le_bytes();
            put(&mut blocks[at], place, &len[..2]);
        }
        11 | 12 => {
            let number = random.of(&ODD).to_le_bytes();
            let size = random.of(&[1, 2, 4, 8]);
            if let Some(last) = blocks[at].body.len().checked_sub(size) {
                let place = random.below(last + 1);
                put(&mut blocks[at], place, &number[..size]);
            }
        }
        _ => {
            for _ in 0..=random.below(4) {
                if blocks[at].body.is_empty() {
                    return;
                }
                let place = random.below(blocks[at].body.len());
                blocks[at].body[place] ^= 1 << random.below(8);
            }
        }
    }
}

fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("masked")
}

fn put(block: &mut Block, at: usize, bytes: &[u8]) {
    let flags = usize::from(matches!(block.ty, 0x217 | 0x222 | 0x208)) * 4;
    let at = if at < 18 { at } else { at + flags };
    if let Some(place) = block.body.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Takes bytes out or puts some in; an event's own length mostly follows.
fn resize(block: &mut Block, random: &mut Random) {
    let at = random.below(block.body.len() + 1);
    if random.one_in(2) {
        let end = (at + random.below(9)).min(block.body.len());
        block.body.drain(at..end);
    } else {
        let more = random.of(&[1, 2, 4, 8, 16, 300]);
        let fill = random.of(&[0, b'/', b'.', 0xff]);
        block.body.splice(at..at, std::iter::repeat_n(fill, more));
    }
    if EVENTS.contains(&block.ty) && !random.one_in(4) {
        let flags = usize::from(matches!(block.ty, 0x217 | 0x222)) * 4;
        let len = u32::try_from(block.body.len().saturating_sub(2 + flags)).expect("small");
        put(block, 18, &len.to_le_bytes());
    }
}
